"""The commands that run a task as functions: `embed`, `load`, `generate`, `train`, `map` and the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from shardmill.api.options import (
    AnswerOptions,
    ApplyOptions,
    DedupOptions,
    EmbedOptions,
    GenerateOptions,
    LoadOptions,
    Names,
    Place,
    RunOptions,
    SummarizeOptions,
    TrainingOptions,
    TuneOptions,
)
from shardmill.console import is_quiet
from shardmill.errors import UsageError, nearest
from shardmill.run import Run, prepare, start
from shardmill.run.applying import apply_work
from shardmill.run.duplicates import Deduplicated, remove_duplicates
from shardmill.run.summaries import settle_method, start_groups
from shardmill.run.training import settle_study, settle_training
from shardmill.spec import make_spec, settle_server, sort_options
from shardmill.tables.asking import ask as ask_over
from shardmill.tables.asking import make_searchable
from shardmill.tables.load import complete_work, load_spec
from shardmill.tables.load import load as load_table
from shardmill.tables.load import prepare as prepare_table
from shardmill.tasks.answer.rows import Answer
from shardmill.tasks.tune.file import read_study_file


def embed(
    source: str | Sequence[str],
    *,
    text: str,
    out: Place | None = None,
    fresh: bool = False,
    allow_code: bool = False,
    quiet: bool | None = None,
    **options: Unpack[EmbedOptions],
) -> Run:
    """Embed every item of a source. The same call resumes, or returns at once if all is done.

    run = shardmill.embed("reviews.jsonl", text="reviewText", out="runs/reviews")
    """
    _check("embed", EmbedOptions, options)
    if out is None:
        raise UsageError("No `out` was given.", hint='Name a folder for the run: out="runs/mine"')
    work, execution = sort_options({"source": source, "text": text, **options})
    return start(make_spec(work, execution), out, fresh=fresh, allow_code=allow_code, quiet=quiet)


def summarize(
    source: str | Sequence[str],
    *,
    text: str,
    out: Place | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
    **options: Unpack[SummarizeOptions],
) -> Run:
    """Summarize every item of a source or, with `group_by`, every group of items. The same call resumes.

    run = shardmill.summarize("news.jsonl", text="article", out="runs/news")
    """
    _check("summarize", SummarizeOptions, options)
    work, execution = sort_options({"source": source, "text": text, **options})
    return summarize_work(work, execution, out, fresh=fresh, quiet=is_quiet(quiet))


def load(
    source: str | Sequence[str],
    *,
    to: str,
    text: str | None = None,
    out: Place | None = None,
    fresh: bool = False,
    allow_code: bool = False,
    quiet: bool | None = None,
    **options: Unpack[LoadOptions],
) -> Run:
    """Embed every item of a source and load it into PostgreSQL, then build the indexes. The same call resumes.

    shardmill.load("corpus.parquet", text="body", id="doc_id", to="postgresql:///docs", table="documents")

    Without `out` the run folder is runs/TABLE.
    """
    _check("load", LoadOptions, options)
    work, execution = sort_options({"source": source, "to": to, "text": text, **options})
    return carry_out(work, execution, out, fresh=fresh, allow_code=allow_code, quiet=is_quiet(quiet))


def generate(
    source: str | Sequence[str],
    *,
    model: str,
    template: str | None = None,
    messages: str | None = None,
    schema: Mapping[str, Any] | None = None,
    out: Place | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
    **options: Unpack[GenerateOptions],
) -> Run:
    """Answer a prompt for every item of a source. The same call resumes.

    shardmill.generate("news.jsonl", template="Translate into French: {body}", model="./Qwen3-0.6B", out="runs/french")

    The prompt is a `template`, or the conversation in the column `messages`. With a JSON `schema`, answers fit it.
    """
    _check("generate", GenerateOptions, options)
    if (template is None) == (messages is None):
        raise UsageError("generate() takes a template or the column with messages, one of them.")
    asked = {"text": template} if messages is None else {"text": f"{{{messages}:json}}", "messages": True}
    work, execution = sort_options({"source": source, "model": model, **asked, **options})
    if schema is not None:
        work["params"]["response_schema"] = dict(schema)
    return carry_out({**work, "task": "generate"}, execution, out, fresh=fresh, quiet=is_quiet(quiet))


def apply(
    source: str | Sequence[str],
    call: str | Callable[..., Any],
    *,
    arguments: Mapping[str, Any] | None = None,
    out: Place | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
    **options: Unpack[ApplyOptions],
) -> Run:
    """Call a function with every item of a source, in batches. The same call resumes.

    shardmill.apply("reviews.jsonl", count_words, out="runs/words")

    `call` is a function, a class that is made once per worker, or the name of one: package.module:function or
    file.py:function. `arguments` are further keyword arguments of it.
    """
    _check("apply", ApplyOptions, options)
    work, execution = sort_options({"source": source, **options})
    work, execution = apply_work({**work, "params": {**work["params"], "call": call}}, execution, arguments)
    return carry_out(work, execution, out, fresh=fresh, quiet=is_quiet(quiet))


def dedup(
    source: str | Sequence[str],
    *,
    text: str,
    out: Place,
    threshold: float = 0.8,
    exact: bool = False,
    fresh: bool = False,
    quiet: bool | None = None,
    **options: Unpack[DedupOptions],
) -> Deduplicated:
    """Keep the first of all items whose texts are alike. The same call resumes.

    shardmill.dedup("reviews.jsonl", text="reviewText", out="runs/unique").dropped
    """
    _check("dedup", DedupOptions, options)
    work, execution = sort_options({"source": source, "text": text, **options})
    how: Any = {"fresh": fresh, "quiet": is_quiet(quiet)}
    return remove_duplicates(work, execution, out, threshold=threshold, exact=exact, **how)


def train(
    source: str | Sequence[str],
    *,
    model: str,
    columns: Names = ("anchor", "positive"),
    out: Place | None = None,
    fresh: bool = False,
    allow_code: bool = False,
    quiet: bool | None = None,
    **options: Unpack[TrainingOptions],
) -> Run:
    """Fine-tune an embedding model on pairs, triplets or labelled pairs, into OUT/model. The same call resumes.

    run = shardmill.train("pairs.jsonl", columns="question,passage", model="all-MiniLM-L6-v2", out="runs/tuned")
    """
    _check("train", TrainingOptions, options)
    names = columns.split(",") if isinstance(columns, str) else list(columns)
    work, execution = sort_options({"source": source, "model": model, "columns": names, **options})
    how = {"fresh": fresh, "allow_code": allow_code, "quiet": is_quiet(quiet)}
    return carry_out({**work, "task": "train"}, execution, out, **how)


def answer(
    source: str | Sequence[str],
    *,
    over: Place,
    text: str,
    out: Place | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
    **options: Unpack[AnswerOptions],
) -> Run:
    """Answer every question of a source over an embed run or a table. The same call resumes.

    shardmill.answer("questions.jsonl", over="runs/wiki", text="question", id="id", out="runs/answers")
    """
    _check("answer", AnswerOptions, options)
    place = make_searchable(os.fspath(over), quiet=is_quiet(quiet))
    work, execution = sort_options({"source": source, "text": text, "task": "answer", "over": place, **options})
    return carry_out(work, execution, out, fresh=fresh, quiet=is_quiet(quiet))


def tune(
    study: Place | Mapping[str, Any],
    *,
    out: Place | None = None,
    call: str | Callable[..., Any] | None = None,
    trials: int | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
    **options: Unpack[TuneOptions],
) -> Run:
    """Search for the best parameters: every trial of a study, a TOML file or its tables. The same call resumes.

    `call` is the objective, by its name or itself, instead of the study's.

    run = shardmill.tune("study.toml", out="runs/study")
    run.study().best[0].parameters
    """
    _check("tune", TuneOptions, options)
    _, execution = sort_options(options)
    return tune_study(study, {"call": call, "trials": trials}, execution, out, fresh=fresh, quiet=is_quiet(quiet))


def ask(over: Place, question: str, **params: Any) -> Answer:
    """Answer one question over an embed run or a table; `params` are those of `answer`: k, by, reader, rerank.

    shardmill.ask("runs/wiki", "Who built the tower?").text
    """
    return ask_over(os.fspath(over), [question], **params)[0]


def map(
    source: str | Sequence[str],
    *,
    out: Place,
    vector: str | None = None,
    text: str | None = None,
    method: str = "umap",
    sample: int = 20_000,
    seed: int = 0,
    marks: Sequence[str] = (),
    points: str | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Map the vectors of an embed run, of files or of a query, and write a page that shows them. The same call resumes.

    shardmill.map("runs/reviews", out="maps/reviews", marks=["battery dies after an hour"])
    """
    from shardmill.run.mapping import make_map

    _check("map", RunOptions, options)
    work, execution = sort_options({"source": source, **options})
    own = {"vector": vector, "text": text, "method": method, "sample": sample, "seed": seed}
    wanted = {**work, **own, "marks": marks, "points": points}
    return make_map(wanted, execution, out, fresh=fresh, quiet=is_quiet(quiet))


def carry_out(work: dict[str, Any], execution: dict[str, Any], out: Place | None = None, **how: Any) -> Run:
    """Run the `[work]` and `[execution]` of a spec, whatever its task, into a folder or a table."""
    work, execution = _settle(work, execution)
    if work.get("to"):
        return load_table(work, execution, out or "", **how)
    if not out:
        raise UsageError("No --out was given.", hint="Name a folder for the run: --out runs/mine")
    return start(make_spec(work, execution), out, **how)


def summarize_work(work: dict[str, Any], execution: dict[str, Any], out: Place | None = None, **how: Any) -> Run:
    """Run the `[work]` and `[execution]` of a spec whose task is `summarize`; `group_by` is of the summaries."""
    work, execution = settle_server(work, execution)
    work = settle_method(work)
    if not work.get("group_by"):
        return carry_out(work, execution, out, **how)
    if not out:
        raise UsageError("No --out was given.", hint="Name a folder for the run: --out runs/mine")
    if work.get("to"):
        return start_groups({**work, "to": complete_work(work)["to"]}, execution, out, last=load_spec, **how)
    return start_groups(work, execution, out, **how)


def tune_study(
    study: Place | Mapping[str, Any],
    changes: Mapping[str, Any],
    execution: dict[str, Any],
    out: Place | None = None,
    **how: Any,
) -> Run:
    """Run the trials of a study; `changes` replace keys of its `[work]`, `execution` those of its `[execution]`."""
    work, own = read_study_file(study, changes)
    return carry_out(settle_study(work), {**own, **execution}, out, **how)


def lay_out(work: dict[str, Any], execution: dict[str, Any], out: Place, **how: Any) -> Run:
    """Write the run folder that `carry_out` would write, and place nobody."""
    work, execution = _settle(work, execution)
    if work.get("to"):
        return prepare_table(work, execution, out, **how)
    return prepare(make_spec(work, execution), out, **how)


def _settle(work: dict[str, Any], execution: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    if work.get("task") != "train":
        return work, execution
    params = work.get("params", {})
    if place := params.get("hard_negatives"):
        work = {**work, "params": {**params, "hard_negatives": make_searchable(os.fspath(place))}}
    return settle_training(work, execution)


def _check(function: str, known: type[Any], options: Mapping[str, Any]) -> None:
    for name in options:
        if function == "embed" and name in ("to", "table"):
            raise UsageError(
                "embed() writes a run folder.", hint="Use shardmill.load(source, to=…, table=…) for a table."
            )
        if name not in known.__annotations__:
            hint = nearest(name, sorted(known.__annotations__))
            raise TypeError(f"{function}() has no option {name!r}. {hint}")
