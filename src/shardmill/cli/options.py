"""Options that several verbs share, each declared once: its flag, its help and its group."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.models import OptionInfo

ARGUMENTS, OTHER = "Arguments", "Options"
SOURCE, MODEL, RESULT, TABLE = "Source", "Model", "What is kept", "Table"
PROMPT, PASSAGES, ANSWER, FUNCTION = "Prompt", "Passages", "Answer", "Function"
PAIRS, LEARNING, HELD_OUT = "Pairs", "Learning", "Evaluation"
PLACE, LIMITS = "Where it runs", "Limits"
STUDY = "Study"
GROUPS = (
    *(ARGUMENTS, SOURCE, FUNCTION, STUDY, PAIRS, PROMPT, PASSAGES, MODEL, LEARNING, HELD_OUT, ANSWER, RESULT, TABLE),
    *(PLACE, LIMITS),
)


def option(group: str, *flags: str, help: str, **more: Any) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel=group, show_default=False, **more)


def argument(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False, rich_help_panel=ARGUMENTS)


Run = Annotated[str, argument("RUN", "The run folder: a path or a URL.")]
Result = Annotated[str, argument("RUN", "The run folder, or a table: postgresql://HOST/DATABASE/TABLE.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Import code that the run or table names, and run its commands.")
]
Out = Annotated[str, option(RESULT, metavar="RUN", help="The run folder, created if missing: a path or a URL.")]
TableOut = Annotated[str, option(RESULT, "--out", metavar="RUN", help="The run folder.  [default: runs/TABLE]")]
SpecFile = Annotated[
    Path | None, typer.Option("--spec", metavar="FILE", help="A TOML file with [work] and [execution].")
]
Resume = Annotated[
    bool | None,
    typer.Option(
        "--resume/--fresh", help="Only resume an existing run / delete it and start over.", show_default=False
    ),
]


def _declare(kind: Any, group: str, metavar: str, help: str, *flags: str, **more: Any) -> Any:
    return Annotated[kind | None, option(group, *flags, metavar=metavar, help=help, **more)]


def _flag(group: str, name: str, help: str) -> Any:
    return Annotated[bool | None, option(group, name, help=help)]


# Keyed by the name in specs and functions. No defaults here: options that are not given are left out.
OPTIONS: dict[str, Any] = {
    "source": Annotated[
        list[str] | None, argument("SOURCE", "Files, folders, globs, URLs, or run:RUN; with --query, a database.")
    ],
    "text": _declare(
        str, SOURCE, "FIELD", 'The text: a field, several ("title,body") or a template ("{title}: {body}").'
    ),
    "query": _declare(str, SOURCE, "SELECT", "The SELECT to read from the database, cut by its first --id column."),
    "format": _declare(
        str,
        SOURCE,
        "FORMAT",
        "jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle or datasets.  [default: by file name]",
    ),
    "task": _declare(str, OTHER, "TASK", "A task's name, or package.module:Class for your own."),
    "param": _declare(list[str], OTHER, "KEY=VALUE", "A parameter of the task, as TOML; repeatable."),
    "id": _declare(str, RESULT, "FIELDS", "The field or fields that identify an item.", "--id"),
    "keep": _declare(str, RESULT, "COLUMNS", "Columns to carry into the result; price:double sets a type."),
    "group_by": _declare(str, RESULT, "COLUMN", "Then summarize the summaries of all items that share this column."),
    "sentences": _declare(int, RESULT, "N", "Sentences in a summary.  [default: 3]", min=1),
    "reference": _declare(str, RESULT, "COLUMN", "Reference summaries: adds ROUGE-1, 2 and L to rows and report."),
    "dims": _declare(int, RESULT, "N", "Keep the first N dimensions (Matryoshka models)."),
    "dtype": _declare(str, RESULT, "TYPE", "Type of the stored numbers: float32 or float16.  [default: float32]"),
    "model": _declare(str, MODEL, "MODEL", "A sentence-transformers folder, its URL (s3://…), or a hub name."),
    "method": _declare(
        str, MODEL, "METHOD", "extractive (sentences of the text) or generative.  [default: by what the model can]"
    ),
    "prompt": _declare(str, MODEL, "PROMPT", "The name of one of the model's prompts, or a text to put first."),
    "window_tokens": _declare(
        int, MODEL, "N", "Cut texts into windows of N tokens, including prompt and special tokens.", min=1
    ),
    "overlap": _declare(int, MODEL, "N", "Tokens that a window shares with the one before it.", min=0),
    "windows": _declare(str, MODEL, "HOW", "each (one row per window) or mean (one per item).  [default: each]"),
    "over": _declare(str, PASSAGES, "RUN", "The embed run with the passages, or a table: postgresql://HOST/DB/TABLE."),
    "by": _declare(str, PASSAGES, "HOW", "Find passages by meaning, words, or both, fused by rank.  [default: both]"),
    "k": _declare(int, PASSAGES, "N", "Number of passages found for each question.  [default: 10]", "-k"),
    "rerank": _declare(str, PASSAGES, "MODEL", "A cross-encoder that ranks four times as many passages again."),
    "reader": _declare(str, MODEL, "MODEL", "An extractive question-answering model, which finds the answer's span."),
    "generator": _declare(str, MODEL, "MODEL", "A generative model, which writes the answer and cites its passages."),
    "null_threshold": _declare(
        float, MODEL, "X", 'With --reader: "no answer" must beat the best span by more than this.  [default: 0]'
    ),
    "endpoint": _declare(str, MODEL, "URL", "An OpenAI-compatible server that has the model: http://host:8000/v1."),
    "key_variable": _declare(
        str, MODEL, "NAME", "The environment variable with the server's key.  [default: OPENAI_API_KEY]"
    ),
    "system": _declare(str, ANSWER, "TEXT", "What the model is told before each prompt."),
    "max_tokens": _declare(int, ANSWER, "N", "Tokens of an answer at most.  [default: 256]", min=1),
    "temperature": _declare(float, ANSWER, "T", "Draw words instead of taking the likeliest; 1 as the model learnt."),
    "top_k": _declare(int, ANSWER, "K", "Draw among the K likeliest.", min=1),
    "top_p": _declare(float, ANSWER, "P", "Draw among the likeliest that share P.", min=0, max=1),
    "seed": _declare(int, ANSWER, "SEED", "Seed of the draws; an item's answer depends on it and the prompt.", min=0),
    "beams": _declare(int, ANSWER, "N", "Beam search with N beams.", min=1),
    "stop": _declare(list[str], ANSWER, "TEXT", "Where an answer ends; repeatable."),
    "price_in": _declare(float, LIMITS, "USD", "Price of a million tokens read, for `cost`.", min=0),
    "price_out": _declare(float, LIMITS, "USD", "Price of a million tokens made, for `cost`.", min=0),
    "allow_code": _flag(MODEL, "--allow-code", "Run the code that comes with the model, if it has some."),
    "engine": _declare(str, PLACE, "ENGINE", "local, ssh, slurm, ray, kubernetes, argo or pool.  [default: local]"),
    "workers": _declare(
        str,
        PLACE,
        "N",
        "Number of workers; MIN:MAX if they train together.  [default: as many as the GPUs can use; one on a CPU]",
    ),
    "device": _declare(
        str, PLACE, "DEVICE", "auto, cpu, cuda, or all (all GPUs plus one CPU worker on the spare cores)."
    ),
    "hosts": _declare(str, PLACE, "FILE", "With --engine ssh: the hosts file, cluster.toml."),
    "partition": _declare(str, PLACE, "NAME", "With --engine slurm: the partition to queue in."),
    "address": _declare(str, PLACE, "ADDRESS", "With --engine ray: the cluster; auto finds the current one."),
    "image": _declare(str, PLACE, "IMAGE", "With --engine kubernetes: the image of the pods, with shardmill in it."),
    "set_": _declare(list[str], PLACE, "KEY=VALUE", "Another option of the engine; repeatable.", "--set"),
    "then": _declare(
        list[str], RESULT, "STEP", "After the last shard: verify, or merge:FILE.parquet; repeatable.", "--then"
    ),
    "priority": _declare(int, PLACE, "N", "With --engine pool: higher runs first.  [default: 0]"),
    "detach": _flag(PLACE, "--detach", "Return once the workers are placed; they finish the run on their own."),
    "max_errors": _declare(str, LIMITS, "LIMIT", "Rows that may fail: 1% or a number.  [default: 1%]"),
    "precision": _declare(str, LIMITS, "PRECISION", "auto, or float32 for exact arithmetic at less speed."),
    "batch_tokens": _declare(int, LIMITS, "N", "Tokens per batch, including padding.  [default: by memory]"),
    "batch_rows": _declare(int, LIMITS, "N", "Items per transaction.  [default: 512]", min=1),
    "shard_bytes": _declare(int, LIMITS, "N", "Bytes of source per shard.  [default: about 90 s of work]"),
    "to": _declare(str, TABLE, "URL", "postgresql://USER@HOST/DATABASE or embedded:PATH."),
    "table": _declare(str, TABLE, "TABLE", "The table: name or schema.name. Created if missing."),
    "mode": _declare(str, TABLE, "MODE", "If the key already exists: update, skip or fail.  [default: update]"),
    "changed_only": _flag(TABLE, "--changed-only", "Make only rows that are new, or made from something new."),
    "index": _declare(str, TABLE, "INDEX", "Built after the load: hnsw, ivfflat or none.  [default: hnsw]"),
    "rebuild_indexes": _flag(TABLE, "--rebuild-indexes", "Drop existing indexes and build them after the load."),
    "vector": _declare(str, TABLE, "TYPE", "Type of the vectors: vector or halfvec.  [default: vector]"),
    "schema": _declare(str, TABLE, "SCHEMA", "A known schema: amazon-reviews-2023 or amazon-reviews-2014."),
    "metadata": _declare(list[str], TABLE, "FILE", "With --schema: the products, loaded first; repeatable."),
    "unknown_products": _declare(
        str, TABLE, "HOW", "Reviews of products that --metadata lacks: quarantine, or null.  [default: quarantine]"
    ),
}

# Those of `train` that mean something else elsewhere, or nothing.
TRAINING: dict[str, Any] = {
    "columns": _declare(
        str,
        PAIRS,
        "COLUMNS",
        "Texts that belong together, and a third that does not.  [default: anchor,positive]",
    ),
    "label": _declare(str, PAIRS, "COLUMN", "A number for each pair: the higher, the closer."),
    "prompt": _declare(list[str], PAIRS, "COLUMN=TEXT", "A prompt before the texts of a column; repeatable."),
    "hard_negatives": _declare(
        str, PAIRS, "RUN", "An embed run, by the same model, of passages: the nearest wrong one is a third text."
    ),
    "loss": _declare(
        str, LEARNING, "LOSS", "in-batch, cosent, cosine or triplet.  [default: in-batch; cosent with --label]"
    ),
    "temperature": _declare(float, LEARNING, "T", "Cosines are divided by it.  [default: 0.05]"),
    "dims": _declare(str, LEARNING, "N,N,…", "Learn vectors that may be cut at these lengths (Matryoshka)."),
    "batch": _declare(int, LEARNING, "N", "Items per step, on all processes together.  [default: 64]", min=1),
    "epochs": _declare(int, LEARNING, "N", "How often each item is seen.  [default: 1]", min=1),
    "learning_rate": _declare(float, LEARNING, "X", "The highest learning rate.  [default: 5e-5]"),
    "weight_decay": _declare(float, LEARNING, "X", "Weight decay of AdamW.  [default: 0.01]"),
    "warmup": _declare(float, LEARNING, "SHARE", "Share of the steps in which the rate rises.  [default: 0.1]"),
    "schedule": _declare(str, LEARNING, "HOW", "How the rate falls: linear, cosine or constant.  [default: linear]"),
    "clip": _declare(float, LEARNING, "X", "The longest gradient.  [default: 1]"),
    "seed": _declare(int, LEARNING, "SEED", "Seed of the order and of the held-out part.  [default: 0]", min=0),
    "max_tokens": _declare(int, LEARNING, "N", "Tokens of a text at most.  [default: the model's limit]", min=1),
    "held_out": _declare(float, HELD_OUT, "SHARE", "Share of the items to evaluate on; 0 for none.  [default: 0.1]"),
    "split_by": _declare(
        str, HELD_OUT, "COLUMN", "Items that agree in it are on the same side.  [default: the second column]"
    ),
    "evaluate_every": _declare(int, HELD_OUT, "N", "Steps between evaluations.  [default: once per epoch]", min=1),
    "checkpoint_every": _declare(int, LIMITS, "N", "Steps between checkpoints.  [default: every 60 s]", min=1),
}

for _name, _declared in (*OPTIONS.items(), *TRAINING.items()):
    # Named here: some versions of typer make another flag of a name and its metavar.
    _info = _declared.__metadata__[0]
    if isinstance(_info, OptionInfo) and not _info.param_decls and _info.default is ...:
        _info.param_decls = (f"--{_name.replace('_', '-')}",)

READING = ("source", "text", "query", "format")
KEEPING = ("id", "keep")
CHOOSING = ("task", "param")
EMBEDDING = ("model", "prompt", "window_tokens", "overlap", "windows", "dims")
SUMMARIZING = ("model", "method", "prompt", "window_tokens", "sentences", "reference", "group_by")
SERVED = ("endpoint", "key_variable")
FINDING = ("over", "by", "k", "rerank", "reader", "generator", *SERVED, "null_threshold", "model")
WRITING = (*SERVED, "max_tokens", "temperature", "seed", "beams")
REPLYING = ("system", "max_tokens", "temperature", "top_k", "top_p", "seed", "beams", "stop")
GENERATING = ("model", *SERVED, *REPLYING)
PRICING = ("price_in", "price_out")
STORING = ("to", "table", "mode", "changed_only")
PLACING = ("engine", "workers", "device", "hosts", "partition", "address", "image", "priority", "set_")
LIMITING = ("max_errors", "precision", "batch_tokens", "shard_bytes")
LOADING = (
    *("to", "table", "mode", "changed_only", "index", "rebuild_indexes", "vector"),
    *("schema", "metadata", "unknown_products"),
)
