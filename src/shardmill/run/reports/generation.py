"""Generated texts in a report: how long they are, and why they ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardmill.core.console import count
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.results.merge import part_schema, read_rows
from shardmill.run.reports.shape import Chart, Grid, Section
from shardmill.run.status.state import Status

_REASON, _TOKENS = "finish_reason", "tokens_out"
# What an answer that was cut ends with.
_CUT = "length"


@dataclass(frozen=True, slots=True)
class Generation:
    """The answers of a finished run: why they ended, the most frequent first, and how many have 2^i tokens or more.

    `empty` answers have no token.
    """

    answers: int
    tokens: int
    longest: int
    empty: int
    reasons: dict[str, int]
    lengths: tuple[int, ...]

    name: ClassVar[str] = "generation"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def headline(self) -> tuple[tuple[str, str], ...]:
        return ()

    def section(self) -> Section:
        return describe_generation(self)


def read_generation(ledger: Ledger, plan: Plan, status: Status) -> Generation | None:
    """Read all answers' reasons and lengths; None if the run generated none, or is not complete."""
    if status.state != "complete" or not plan.shards or plan.work.to is not None:
        return None
    if not {_REASON, _TOKENS} <= set(part_schema(ledger, plan).names):
        return None
    reasons: Counter[str] = Counter()
    lengths = np.zeros(32, np.int64)
    answers = tokens = longest = empty = 0
    for batch in read_rows(ledger, plan, [_REASON, _TOKENS]):
        # Where a prompt has several answers, columns are lists.
        why, counts = (
            pc.list_flatten(column) if pa.types.is_list(column.type) else column
            for column in (batch.column(_REASON), batch.column(_TOKENS))
        )
        reasons.update(why.drop_null().to_pylist())
        made = counts.drop_null().to_numpy(zero_copy_only=False)
        positive = made[made > 0]
        lengths += np.bincount(np.log2(positive).astype(int), minlength=32)[:32]
        answers, tokens, empty = answers + len(made), tokens + int(made.sum()), empty + len(made) - len(positive)
        longest = max(longest, int(made.max(initial=0)))
    kept = int(np.flatnonzero(lengths).max(initial=-1)) + 1
    return Generation(answers, tokens, longest, empty, dict(reasons.most_common()), tuple(lengths[:kept].tolist()))


def describe_generation(made: Generation) -> Section:
    """What matters of generated texts, as a section."""
    facts = (
        ("answers", f"{made.answers:,}"),
        ("tokens made", f"{made.tokens:,}"),
        ("tokens of an answer", f"{made.tokens / max(1, made.answers):,.1f} on average, {made.longest:,} at most"),
        *((("empty answers", f"{made.empty:,}"),) if made.empty else ()),
    )
    total = max(1, sum(made.reasons.values()))
    reasons = tuple((reason, f"{n:,}", f"{n / total:.1%}") for reason, n in made.reasons.items())
    cut = made.reasons.get(_CUT, 0)
    notes = (f"{count(cut, 'answer')} reached the limit of tokens: raise --max-tokens if they end too early.",)
    first = next((power for power, n in enumerate(made.lengths) if n), 0)
    labels = tuple(f"{1 << power:,}" for power in range(first, len(made.lengths)))
    chart = Chart("answers by their tokens, each bar from one number on", made.lengths[first:], labels, bars=True)
    lengths = tuple(zip(labels, (f"{n:,}" for n in made.lengths[first:]), strict=True))
    grids = (Grid(("ended by", "answers", "share"), reasons, (1, 2)), Grid(("from tokens", "answers"), lengths, (0, 1)))
    return Section(
        "What was generated",
        facts,
        tuple(grid for grid in grids if grid.rows),
        (chart,) if labels else (),
        notes=notes if cut else (),
    )
