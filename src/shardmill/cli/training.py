"""The verb that fine-tunes a model."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from shardmill.cli import options as o
from shardmill.cli.command import Verb, print_json, takes
from shardmill.cli.specs import key_values, read_options
from shardmill.cli.tasks import FAMILY
from shardmill.console import count, say
from shardmill.errors import SourceError, SpecError, UsageError


def add_to(app: typer.Typer) -> None:
    app.command("train", cls=Verb, rich_help_panel=FAMILY, epilog=_TRAIN)(train)


_TRAIN = """\
shardmill train pairs.jsonl --columns question,passage --model all-MiniLM-L6-v2 --out runs/tuned
shardmill train triplets.parquet --columns query,right,wrong --batch 512 --epochs 3 --model ./e5 --out runs/tuned
shardmill train scored.csv --columns first,second --label score --model all-MiniLM-L6-v2 --out runs/tuned
shardmill train --study runs/study --out runs/best
shardmill embed docs.jsonl --text body --model runs/tuned/model --out runs/docs"""


@takes(
    *("source", "query", "format", "model", "allow_code", *o.PLACING, "detach", "max_errors", "precision"),
    own=o.TRAINING,
)
def train(
    out: o.Out = "",
    study: Annotated[
        str, o.option(o.PAIRS, metavar="RUN", help="A study of train: its pairs, and the options of its best trial.")
    ] = "",
    spec: o.SpecFile = None,
    resume: o.Resume = None,
    as_json: o.AsJson = False,
    **options: Any,
) -> None:
    """Fine-tune an embedding model on pairs of texts. The same command resumes an interrupted run."""
    code = options.pop("allow_code")
    options["prompts"] = dict(key_values(options.pop("prompt"), "--prompt", "question='query: '")) or None
    work, execution = read_options(spec, options)
    if study:
        from shardmill.run.training import best_training

        best = best_training(study)
        work = {**best, **work, "params": {**best["params"], **work.get("params", {})}}
    if (task := work.setdefault("task", "train")) != "train":
        raise SpecError(f"{spec}: its task is {task!r}.", hint=f"shardmill run --spec {spec} runs any task.")
    if not work.get("params", {}).get("model"):
        raise UsageError("No model was given.", hint="Pass an embedding model: --model all-MiniLM-L6-v2")
    try:
        _carry_out(work, execution, out, resume, as_json, code)
    except SourceError as error:
        from shardmill.run.training import COLUMNS

        if "columns" not in work["params"] and any(repr(name) in error.message for name in COLUMNS):
            error.hint = f"{error.hint.partition(' Did you')[0]} Name the columns of the pairs: --columns FIRST,SECOND"
        raise


def _carry_out(
    work: dict[str, Any], execution: dict[str, Any], out: str, resume: bool | None, as_json: bool, code: bool | None
) -> None:
    from shardmill import api

    how = {"fresh": resume is False, "resume": resume is True, "allow_code": bool(code)}
    run = api.carry_out(work, execution, out, quiet=False, **how)
    state = run.status()
    if state.shards_done < state.shards:
        say(f"Detached. Watch: shardmill status {run.ledger.url} --watch")
        return
    row = run.table().to_pylist()[0]
    if as_json:
        print_json({**row, "curve": json.loads(row["curve"]), "model": f"{run.ledger.url}/model"})
        return
    left = f", {count(row['unusable'], 'row')} left out" if row["unusable"] else ""
    say(f"{count(row['trained_on'], 'item')} in {count(row['steps'], 'step')}{left}; loss {row['loss']:.4f}.")
    if row["best"] is not None:
        said = f"{row['metric']} on {count(row['held_out'], 'held-out item')}"
        say(f"{said}: {row['before']:.4f} -> {row['best']:.4f} (step {row['best_step']:,}).")
    elif run.plan.work.params.get("held_out") != 0:
        say("No item was held out, so the model was not measured: there are too few, or all are of one group.")
    say(f"Next: shardmill embed SOURCE --text FIELD --model {run.ledger.url}/model --out RUN")
