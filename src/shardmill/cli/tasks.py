"""Verbs that start a run: any task from its spec, and one verb per task."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardmill.cli import options as o
from shardmill.cli.command import Verb, print_json, takes
from shardmill.cli.specs import read_options
from shardmill.console import count, duration, say
from shardmill.errors import SpecError, UsageError

if TYPE_CHECKING:
    from shardmill.run import Run

FAMILY = "Run a task"
# Verbs that resume an interrupted call of themselves.
RESUMING = (
    *("run", "embed", "load", "generate", "summarize", "answer", "augment", "apply", "dedup", "train", "tune"),
    *("index", "map", "resume", "work", "split"),
)


def add_to(app: typer.Typer) -> None:
    app.command("embed", cls=Verb, rich_help_panel=FAMILY, epilog=_EMBED)(embed)
    app.command("load", cls=Verb, rich_help_panel=FAMILY, epilog=_LOAD)(load)
    app.command("augment", cls=Verb, rich_help_panel=FAMILY, epilog=_AUGMENT)(augment)
    app.command("run", cls=Verb, rich_help_panel=FAMILY, epilog=_RUN)(run)


_EMBED = """\
shardmill embed reviews.jsonl --text reviewText --out runs/reviews
shardmill embed s3://bucket/docs --text "{title}: {body}" --id doc_id --keep price --out s3://bucket/runs/docs
shardmill embed run:runs/summaries --text output --out runs/vectors
shardmill embed wiki.parquet --text text --out /shared/runs/wiki --engine slurm --partition gpu --workers 16"""


@takes(*o.READING, *o.EMBEDDING, *o.KEEPING, "dtype", "allow_code", *o.PLACING, "detach", "then", *o.LIMITING)
def embed(
    out: o.Out = "", spec: o.SpecFile = None, resume: o.Resume = None, as_json: o.AsJson = False, **options: Any
) -> None:
    """Embed every item of a source. The same command resumes an interrupted run."""
    code = options.pop("allow_code")
    work, execution = read_options(spec, options)
    if (task := work.setdefault("task", "embed")) != "embed":
        raise SpecError(f"{spec}: its task is {task!r}.", hint=f"shardmill run --spec {spec} runs any task.")
    carry_out(work, execution, out, resume, as_json, code)


_LOAD = """\
shardmill load corpus.parquet --text body --id doc_id --to postgresql:///docs --table documents
shardmill load reviews.jsonl --metadata meta.jsonl --to embedded:shop --schema amazon-reviews-2023"""


@takes(
    *(*o.READING, *o.LOADING, *o.EMBEDDING, *o.KEEPING, "allow_code"),
    *(*o.PLACING, "detach", "then", *o.LIMITING, "batch_rows"),
)
def load(
    out: o.TableOut = "", spec: o.SpecFile = None, resume: o.Resume = None, as_json: o.AsJson = False, **options: Any
) -> None:
    """Embed every item of a source and load it into PostgreSQL. The same command resumes an interrupted run."""
    code = options.pop("allow_code")
    work, execution = read_options(spec, options)
    carry_out({**work, "to": work.get("to", {"url": ""})}, execution, out, resume, as_json, code)


_RUN = """\
shardmill run --spec job.toml --out runs/job
shardmill run reviews.jsonl --task lengths:CountWords --param lower=true --text reviewText --out runs/lengths
shardmill run reviews.jsonl --task lengths:CountWords --text reviewText --id asin --to embedded:shop --table words"""


@takes(
    *o.CHOOSING, *o.READING, *o.LOADING, *o.KEEPING, "allow_code", *o.PLACING, "detach", "then", "batch_rows",
    *o.LIMITING,
)  # fmt: skip
def run(
    out: o.Out = "", spec: o.SpecFile = None, resume: o.Resume = None, as_json: o.AsJson = False, **options: Any
) -> None:
    """Run any task over every item of a source. The same command resumes an interrupted run."""
    code = options.pop("allow_code")
    work, execution = read_options(spec, options)
    if not work.get("task"):
        raise UsageError("No task was given.", hint="Name one: --task embed, or task = … in [work] of a spec.")
    carry_out(work, execution, out, resume, as_json, code)


_AUGMENT = """\
shardmill augment --num-samples 100M --preset moderate --out runs/parameters"""


@takes(*o.PLACING, "detach", "then")
def augment(
    num_samples: Annotated[
        str, typer.Option(metavar="N", help="Number of items: 250000, 250k, 100M.", show_default=False)
    ],
    out: o.Out,
    preset: Annotated[str, typer.Option(help="mild, moderate or aggressive.")] = "moderate",
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    epoch: Annotated[int, typer.Option(help="Epoch number.")] = 0,
    start_id: Annotated[int, typer.Option(min=0, help="The first item's id.")] = 0,
    resume: o.Resume = None,
    as_json: o.AsJson = False,
    **options: Any,
) -> None:
    """Write augmentation parameters, which depend only on seed, id and epoch. The same command resumes."""
    from shardmill.augment.streams import parse_count

    ids = f"range:{start_id}:{start_id + parse_count(num_samples)}"
    params = {"preset": preset, "seed": seed, "epoch": epoch}
    work = {"source": ids, "text": "sample_id", "id": "sample_id", "task": "augment", "params": params}
    _, execution = read_options(None, options)
    carry_out(work, {"device": "cpu", **execution}, out, resume, as_json)


def carry_out(
    work: dict[str, Any],
    execution: dict[str, Any],
    out: str,
    resume: bool | None,
    as_json: bool,
    code: bool | None = None,
) -> None:
    from shardmill import api

    began, how = time.monotonic(), {"fresh": resume is False, "resume": resume is True, "allow_code": bool(code)}
    done = api.carry_out(work, execution, out, quiet=False, **how)
    report_run(done, began, as_json)


def report_run(run: Run, began: float, as_json: bool) -> None:
    """Print the outcome of a run and the next steps."""
    from shardmill.run.summaries import find_items

    state, items = run.status(), find_items(run)
    below = items and items.status()
    if as_json:
        of = {"of_items": {"run": below.run, "rows": below.rows, "errors": below.errors}} if below else {}
        print_json({**state.to_json(), **of})
        return
    if state.shards_done < state.shards:
        live = sum(worker["live"] for worker in state.workers)
        what = state.placement or count(live, "worker")
        say(f"Detached: {what}. Watch: shardmill status {run.ledger.url} --watch")
        return
    for note in dict.fromkeys(note for worker in state.workers for note in worker["notes"]):
        say(note)
    cut = f", {state.truncated:,} cut at the model's limit" if state.truncated else ""
    windows = f" of {count(state.windows, 'window')}" if state.windows else ""
    counts = f"{count(state.rows, 'row')}{windows} in {count(state.shards, 'shard')}, {count(state.errors, 'error')}"
    if run.plan.work.task == "apply":
        none = f", {count(state.dropped, 'item')} gave none" if state.dropped else ""
        gave = f"{count(state.rows, 'item')} in {count(state.shards, 'shard')} gave {count(state.made, 'row')}"
        counts = f"{gave}{none}, {count(state.errors, 'error')}"
    source = f", from {count(below.rows, 'item')} with {count(below.errors, 'error')}" if below else ""
    say(f"{counts}{source}{cut}, {duration(time.monotonic() - began)}.")
    look = [f"shardmill show {below.run} --errors"] if below and below.errors else []
    say(f"Next: {'   '.join([*look, *_next_steps(run)])}")


def _next_steps(run: Run) -> list[str]:
    url = run.ledger.url
    if run.plan.work.to is not None:
        from shardmill.tables.load import place_of

        table = place_of(run)
        search = [f"shardmill search '{table}' \"…\""] if run.plan.work.task == "embed" else []
        return [*search, f"shardmill verify {url}", f"shardmill verify '{table}'"]
    search = [f'shardmill search {url} "…"'] if run.plan.work.task == "embed" else []
    code = " --allow-code" if run.plan.work.calls else ""
    return [f"shardmill verify {url}{code}", *search, f"shardmill merge {url} --out FILE.parquet"]
