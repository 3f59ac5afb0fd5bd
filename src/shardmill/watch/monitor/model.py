"""What the monitor tells: the page and machines read the same. Every text is made safe to show, and bounded."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator

from shardmill.watch.monitor.files import shorten

ShownText = Annotated[str, BeforeValidator(shorten)]


class RunSummary(BaseModel):
    """One run at a glance. `age_s` is how long ago it was read; `trouble` says why it could not be read since."""

    name: ShownText
    key: str
    state: ShownText
    share: float
    rows: int
    expected_rows: int | None
    errors: int
    rows_per_s: float
    tokens_per_s: float
    eta_s: float | None
    eta_low_s: float | None
    eta_high_s: float | None
    usd: float | None
    usd_at_end: float | None
    shards: int
    shard_states: dict[str, int]
    workers_live: int
    workers_lost: int
    task: ShownText
    began_at: float | None
    seen_s: float | None
    age_s: float | None
    trouble: ShownText
    hint: ShownText


class OpenAlert(BaseModel):
    """An alert that holds; `run` is the key of its run."""

    id: str
    run: ShownText
    rule: str
    text: ShownText
    raised_at: float


class RunList(BaseModel):
    """All runs of a folder. `trouble` says why the folder could not be listed the last time.

    `remarks` are what else goes wrong in the monitor, and `alerts` are those that hold, the oldest first.
    """

    url: ShownText
    trouble: ShownText
    remarks: list[ShownText]
    alerts: list[OpenAlert]
    runs: list[RunSummary]


class WorkerSeen(BaseModel):
    """One worker. It is `lost` if it fell silent without an end, and a straggler if others are much faster.

    `said` is the last report of the long item that it works on.
    """

    id: ShownText
    state: ShownText
    live: bool
    straggler: bool
    host: ShownText
    device: ShownText
    rows: int
    rows_per_s: float
    tokens_per_s: float
    memory_bytes: float
    device_bytes: float | None
    use: float | None
    shards: list[int]
    said: ShownText
    beat_s: float
    error: ShownText
    place: ShownText
    link: ShownText
    has_log: bool


class FailedRows(BaseModel):
    """Failed rows of one reason, with one example."""

    reason: ShownText
    count: int
    file: ShownText
    shard: int | None
    line: int | None
    id: ShownText
    example: ShownText


class RunOutlook(BaseModel):
    """What the run has cost and will have cost; its forecast, deadline and budget."""

    usd: float | None
    usd_at_end: float | None
    budget_usd: float | None
    deadline_at: float | None
    wanted: int | None
    wanted_why: ShownText
    began_at: float | None
    elapsed_s: float | None
    parts_s: dict[str, float]
    device_s: float
    forecast_s: float | None
    forecast_low_s: float | None
    forecast_high_s: float | None
    forecast_basis: ShownText
    forecast_off: float | None


class PlanSeen(BaseModel):
    """What the run does: its work as it was planned."""

    id: ShownText
    task: ShownText
    source: list[ShownText]
    format: ShownText
    files: int
    bytes: int
    shards: int
    largest_bytes: int
    model: ShownText
    text: ShownText
    kept: list[ShownText]
    engine: ShownText
    fingerprint: dict[ShownText, ShownText]


class HistorySeen(BaseModel):
    """Points in time: means over the seconds up to each. A point of nulls is a time in which nothing was recorded."""

    at: list[float]
    rows_per_s: list[float | None]
    tokens_per_s: list[float | None]
    tokens_out_per_s: list[float | None]
    memory_bytes: list[float | None]
    device_bytes: list[float | None]
    use: list[float | None]


class LogLines(BaseModel):
    """The last lines of a worker's log."""

    text: str


class SearchHit(BaseModel):
    """One item that was found: its row in the source, its cosine, its id and kept columns, its point on a map."""

    row: int
    score: float
    values: dict[str, str]
    span: str = ""
    point: int | None = None


class SearchAnswer(BaseModel):
    """The nearest items, nearest first."""

    hits: list[SearchHit]


class RunStep(BaseModel):
    """A step after the last shard."""

    step: ShownText
    state: ShownText


class EditionSeen(BaseModel):
    """Which edition of a run is read, and how its refreshes go. `next` was begun and is not read yet; 0 if none was."""

    edition: int
    made_at: float | None
    fresh_at: float | None
    behind_since: float | None
    failures: int
    error: ShownText
    next: int
    next_state: ShownText
    next_share: float


class RunDetail(RunSummary):
    """Everything that is shown of one run."""

    url: ShownText
    plan_id: ShownText
    at: float
    mean_rows_per_s: float
    mean_tokens_per_s: float
    tokens: int
    tokens_out: int
    truncated: int
    placement: ShownText
    by: ShownText
    cause: ShownText
    advice: ShownText
    bound: dict[str, float | str] | None
    view_age_s: float | None
    steps: list[RunStep]
    workers: list[WorkerSeen]
    workers_listed_of: int
    reasons: list[FailedRows] | None
    outlook: RunOutlook
    edition: EditionSeen | None
    plan: PlanSeen
    history: HistorySeen
    states_version: str
    reports: list[str]
    searchable: bool
