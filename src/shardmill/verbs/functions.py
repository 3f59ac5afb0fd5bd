"""The verbs as functions. Generated from their options: python -m tools.functions"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from shardmill.run.request import call_verb, checked

if TYPE_CHECKING:
    from shardmill.run.migrated import Migrated
    from shardmill.run.refreshed import Refreshed
    from shardmill.run.result import Run
    from shardmill.verbs.answer.rows import Answer
    from shardmill.verbs.audit.report import Audit
    from shardmill.verbs.dedup.removal import Deduplicated
    from shardmill.verbs.peek.look import Peek
    from shardmill.verbs.receipt.receipt import Receipt

__all__ = [
    "answer",
    "apply",
    "ask",
    "audit",
    "classify",
    "dedup",
    "embed",
    "embed_sparse",
    "embed_tokens",
    "generate",
    "load",
    "map",
    "migrate",
    "peek",
    "receipt",
    "refresh",
    "score",
    "summarize",
    "train",
    "tune",
]

Place = str | os.PathLike[str]
# Places, or data in memory: a frame, an Arrow table, a dataset, a list or an iterator.
Source = Any


@checked
def answer(
    source: Source,
    *,
    over: Place,
    out: Place | None = None,
    text: str | None = None,
    query: str | None = None,
    format: str | None = None,
    config: str | None = None,
    split: str | None = None,
    where: str | None = None,
    take: float | str | None = None,
    limit: int | None = None,
    by: Literal["both", "meaning", "words"] | None = None,
    k: int | None = None,
    rerank: str | None = None,
    reader: str | None = None,
    generator: str | None = None,
    null_threshold: float | None = None,
    model: str | None = None,
    endpoint: str | None = None,
    key_variable: str | None = None,
    to: str | None = None,
    table: str | None = None,
    mode: Literal["update", "skip", "fail"] | None = None,
    changed_only: bool = False,
    id: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    device: str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    detach: bool = False,
    then: str | Sequence[str] | None = None,
    into: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    deadline: str | None = None,
    budget: float | str | None = None,
    price: float | None = None,
    precision: Literal["auto", "float32"] | None = None,
    batch_tokens: int | None = None,
    shard_bytes: int | str | None = None,
    changed_since: str | None = None,
    follow: bool = False,
    refresh: bool = False,
    price_in: float | None = None,
    price_out: float | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
) -> Run:
    """Answer every question of a source over an embed run or a table. The same call resumes an interrupted run.

    run = shardmill.answer("questions.jsonl", over="runs/wiki", text="question", out="runs/answers")

    source: Files, folders, globs, URLs, - (a pipe), or run:RUN; with query=, a database. Or data in memory: a
        frame, an Arrow table, a dataset, a list or an iterator of texts or dicts.
    over: The embed run with the passages, or a table: postgresql://HOST/DB/TABLE.
    out: The run folder, created if missing: a path or a URL.
    text: The text: a field, several ("title,body") or a template ("{title}: {body}").
    query: The SELECT to read from the database, cut by its first id= column.
    format: jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets. Default:
        by file name.
    config: Of a dataset with several configs (subsets), the one to read; all reads every file.
    split: Of a folder or a dataset with several splits, the one to read; all reads every file.
    where: Take the items for which this holds, in a small subset of SQL: "overall <= 2 AND title IS NOT NULL".
    take: Take this share of the items, 1% or 0.01, by a hash of the id: the same ones on every machine.
    limit: Take the first N items of those that where= and take= leave.
    by: Find passages by meaning, words, or both, fused by rank. Default: both.
    k: Number of passages found for each question. Default: 10.
    rerank: A cross-encoder or causal re-ranker that ranks four times as many passages again.
    reader: An extractive question-answering model, which finds the span of the answer.
    generator: A generative model, which writes the answer and cites its passages; with endpoint=, its name on the
        server.
    null_threshold: With reader=: how much the score of "no answer" must exceed that of the best span. Default: 0.
    model: The folder of the model that the passages were embedded with, if it has moved.
    endpoint: An OpenAI-compatible server that has the model: http://host:8000/v1.
    key_variable: The environment variable with the server's key. Default: OPENAI_API_KEY.
    to: postgresql://USER@HOST/DATABASE or embedded:PATH.
    table: The table: name or schema.name. Created if missing.
    mode: If the key already exists: update, skip or fail. Default: update.
    changed_only: Make only rows that are new, or made from something new.
    id: The field or fields that identify an item; auto: its file and line; hash: its text.
    keep: Columns to carry into the result, also file, url and line; price:double sets a type.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    device: auto, cpu, cuda, cuda:0, cuda:0,2, or all (all GPUs plus one CPU worker on the spare cores). Default:
        auto.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    detach: Return once the workers are placed; they finish the run on their own.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    into: Deliver the finished rows to a store, too: lance:PLACE, duckdb:FILE, qdrant://…; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    deadline: When it is to be done: 6h from its first worker's start, or 2026-12-31T18:00. The number of workers
        follows.
    budget: What it may cost: 40USD. Before that it stops in good order, and can be resumed.
    price: Dollars per device and hour, for budget=. Default: the catalogue's.
    precision: auto, or float32 for exact arithmetic at less speed. Default: auto.
    batch_tokens: Tokens per batch, including padding. Default: by memory.
    shard_bytes: Bytes of source per shard: 64MB. Default: about 90 s of work.
    changed_since: Of a query: a column that gets another value with each change of a row (updated_at); a refresh
        then reads the rest of changed rows alone.
    follow: Of local files of lines that only grow: read whole lines, and at a refresh those that were added.
    refresh: Refresh an existing run: compute only what is new or changed.
    price_in: Price of a million tokens read, for `cost`.
    price_out: Price of a million tokens made, for `cost`.
    fresh: Delete an existing run and start over.
    quiet: Whether to show no progress. Default: True, except in a notebook.
    """
    given = dict(locals())
    result: Run = call_verb("answer", given)
    return result


@checked
def apply(
    source: Source,
    call: str | Callable[..., Any],
    *,
    out: Place | None = None,
    text: str | None = None,
    query: str | None = None,
    format: str | None = None,
    config: str | None = None,
    split: str | None = None,
    where: str | None = None,
    take: float | str | None = None,
    limit: int | None = None,
    column: str | Sequence[str] | None = None,
    batch: int | None = None,
    arguments: Mapping[str, Any] | None = None,
    precision: Literal["auto", "float32"] | None = None,
    batch_tokens: int | None = None,
    to: str | None = None,
    table: str | None = None,
    mode: Literal["update", "skip", "fail"] | None = None,
    changed_only: bool = False,
    id: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    device: str | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    detach: bool = False,
    then: str | Sequence[str] | None = None,
    into: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    deadline: str | None = None,
    budget: float | str | None = None,
    price: float | None = None,
    shard_bytes: int | str | None = None,
    changed_since: str | None = None,
    follow: bool = False,
    refresh: bool = False,
    batch_rows: int | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
) -> Run:
    """Call a function with every item of a source, in batches. The same call resumes an interrupted run.

    run = shardmill.apply("reviews.jsonl", count_words, out="runs/words")

    source: Files, folders, globs, URLs, - (a pipe), or run:RUN; with query=, a database. Or data in memory: a
        frame, an Arrow table, a dataset, a list or an iterator of texts or dicts.
    call: The function or class: package.module:function, or file.py:function.
    out: The run folder, created if missing: a path or a URL.
    text: Also give it a column `text`, made from a template: "{title}: {body}".
    query: The SELECT to read from the database, cut by its first id= column.
    format: jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets. Default:
        by file name.
    config: Of a dataset with several configs (subsets), the one to read; all reads every file.
    split: Of a folder or a dataset with several splits, the one to read; all reads every file.
    where: Take the items for which this holds, in a small subset of SQL: "overall <= 2 AND title IS NOT NULL".
    take: Take this share of the items, 1% or 0.01, by a hash of the id: the same ones on every machine.
    limit: Take the first N items of those that where= and take= leave.
    column: A column to give it; repeatable. Default: all.
    batch: Items per call at most. Default: 1024.
    arguments: Keyword arguments of the function.
    precision: auto, or float32 for exact arithmetic at less speed. Default: auto.
    batch_tokens: Items per call at most; `batch` is the usual name.
    to: postgresql://USER@HOST/DATABASE or embedded:PATH.
    table: The table: name or schema.name. Created if missing.
    mode: If the key already exists: update, skip or fail. Default: update.
    changed_only: Make only rows that are new, or made from something new.
    id: The field or fields that identify an item; auto: its file and line; hash: its text.
    keep: Columns to carry into the result, also file, url and line; price:double sets a type.
    device: cpu, cuda, cuda:0, cuda:0,2, auto, or all (all GPUs plus one CPU worker on the spare cores). Default:
        cpu.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    detach: Return once the workers are placed; they finish the run on their own.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    into: Deliver the finished rows to a store, too: lance:PLACE, duckdb:FILE, qdrant://…; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    deadline: When it is to be done: 6h from its first worker's start, or 2026-12-31T18:00. The number of workers
        follows.
    budget: What it may cost: 40USD. Before that it stops in good order, and can be resumed.
    price: Dollars per device and hour, for budget=. Default: the catalogue's.
    shard_bytes: Bytes of source per shard: 64MB. Default: about 90 s of work.
    changed_since: Of a query: a column that gets another value with each change of a row (updated_at); a refresh
        then reads the rest of changed rows alone.
    follow: Of local files of lines that only grow: read whole lines, and at a refresh those that were added.
    refresh: Refresh an existing run: compute only what is new or changed.
    batch_rows: Items per transaction. Default: 512.
    fresh: Delete an existing run and start over.
    quiet: Whether to show no progress. Default: True, except in a notebook.
    """
    given = dict(locals())
    result: Run = call_verb("apply", given)
    return result


@checked
def ask(
    over: Place,
    question: str,
    *,
    by: Literal["both", "meaning", "words"] | None = None,
    k: int | None = None,
    rerank: str | None = None,
    reader: str | None = None,
    generator: str | None = None,
    null_threshold: float | None = None,
    model: str | None = None,
    endpoint: str | None = None,
    key_variable: str | None = None,
) -> Answer:
    """Answer questions over an embed run or a table, in this process.

    answer = shardmill.ask("runs/wiki", "Who built the tower?")

    over: The embed run with the passages, or a table: postgresql://HOST/DATABASE/TABLE.
    question: The question.
    by: Find passages by meaning, words, or both, fused by rank. Default: both.
    k: Number of passages found for each question. Default: 10.
    rerank: A cross-encoder or causal re-ranker that ranks four times as many passages again.
    reader: An extractive question-answering model, which finds the span of the answer.
    generator: A generative model, which writes the answer and cites its passages; with endpoint=, its name on the
        server.
    null_threshold: With reader=: how much the score of "no answer" must exceed that of the best span. Default: 0.
    model: The folder of the model that the passages were embedded with, if it has moved.
    endpoint: An OpenAI-compatible server that has the model: http://host:8000/v1.
    key_variable: The environment variable with the server's key. Default: OPENAI_API_KEY.
    """
    given = dict(locals())
    result: Answer = call_verb("ask", given)
    return result


@checked
def audit(
    source: Source,
    *,
    query: str | None = None,
    format: str | None = None,
    config: str | None = None,
    split: str | None = None,
    text: str | None = None,
    column: str | None = None,
    vectors: Place | None = None,
    id: str | Sequence[str] | None = None,
    model: str | None = None,
    prompt: str | None = None,
    max_tokens: int | None = None,
    dims: int | None = None,
    allow_code: bool = False,
    sample: int | None = None,
    quiet: bool | None = None,
) -> Audit:
    """Find what is wrong with vectors, whoever made them.

    shardmill.audit("vectors.parquet", text="body", column="embedding", model="all-MiniLM-L6-v2")

    source: Files, folders, globs, URLs, - (a pipe), or run:RUN; with query=, a database. Or data in memory: a
        frame, an Arrow table, a dataset, a list or an iterator of texts or dicts.
    query: The SELECT to read from the database, cut by its first id= column.
    format: jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets. Default:
        by file name.
    config: Of a dataset with several configs (subsets), the one to read; all reads every file.
    split: Of a folder or a dataset with several splits, the one to read; all reads every file.
    text: The text that was embedded: a field, several ("title,body") or a template ("{title}: {body}").
    column: The column with the vectors. Default: the only one.
    vectors: A .npy file with one vector per row of the source.
    id: The columns by which a table is read in order.
    model: The model that should have made them: a folder, its URL (s3://…), or a hub name.
    prompt: The name of one of the model's prompts, or a text to put first.
    max_tokens: Tokens of a text at most. Default: the model's limit.
    dims: Dimensions that each vector should have. Default: the model's.
    allow_code: Run the code that comes with the model, if it has some.
    sample: Rows to recompute; 0 for none. Default: 256.
    quiet: Whether to show no progress. Default: True, except in a notebook.
    """
    given = dict(locals())
    result: Audit = call_verb("audit", given)
    return result


@checked
def classify(
    source: Source,
    *,
    model: str,
    out: Place | None = None,
    text: str | None = None,
    query: str | None = None,
    format: str | None = None,
    config: str | None = None,
    split: str | None = None,
    where: str | None = None,
    take: float | str | None = None,
    limit: int | None = None,
    labels: str | Sequence[str] | None = None,
    hypothesis: str | None = None,
    multi_label: bool = False,
    max_tokens: int | None = None,
    threshold: float | None = None,
    top_k: int | None = None,
    all_labels: bool = False,
    adapter: str | None = None,
    to: str | None = None,
    table: str | None = None,
    mode: Literal["update", "skip", "fail"] | None = None,
    changed_only: bool = False,
    id: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    device: str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    detach: bool = False,
    then: str | Sequence[str] | None = None,
    into: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    deadline: str | None = None,
    budget: float | str | None = None,
    price: float | None = None,
    precision: Literal["auto", "float32"] | None = None,
    batch_tokens: int | None = None,
    shard_bytes: int | str | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
    changed_since: str | None = None,
    follow: bool = False,
    refresh: bool = False,
) -> Run:
    """Label every item of a source with a classifier. The same call resumes an interrupted run.

    run = shardmill.classify("pages.parquet", text="text", model="./language-id", out="runs/languages")

    source: Files, folders, globs, URLs, - (a pipe), or run:RUN; with query=, a database. Or data in memory: a
        frame, an Arrow table, a dataset, a list or an iterator of texts or dicts.
    model: A classifier of texts or tokens, or with labels= one trained for entailment (NLI): a folder, its URL
        (s3://…), or a hub name.
    out: The run folder, created if missing: a path or a URL.
    text: The text: a field, several ("title,body") or a template ("{title}: {body}").
    query: The SELECT to read from the database, cut by its first id= column.
    format: jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets. Default:
        by file name.
    config: Of a dataset with several configs (subsets), the one to read; all reads every file.
    split: Of a folder or a dataset with several splits, the one to read; all reads every file.
    where: Take the items for which this holds, in a small subset of SQL: "overall <= 2 AND title IS NOT NULL".
    take: Take this share of the items, 1% or 0.01, by a hash of the id: the same ones on every machine.
    limit: Take the first N items of those that where= and take= leave.
    labels: Zero-shot: the labels to choose from, separated by commas.
    hypothesis: With labels=: the sentence that says of a text that it has the label {}. Default: "This example is
        {}.".
    multi_label: With labels=: a text may have several, or none.
    max_tokens: Tokens of a text at most. Default: the model's limit.
    threshold: Where a text may have several labels: the lowest probability of one that it has. Default: 0.5.
    top_k: Add the column `labels` with the N likeliest labels and their scores.
    all_labels: Add the column `labels` with all labels and their scores.
    adapter: A LoRA adapter of the model, as PEFT saves it: a folder, its URL (s3://…), or a hub name. With a field,
        as in adapters/{tenant}, that of each item.
    to: postgresql://USER@HOST/DATABASE or embedded:PATH.
    table: The table: name or schema.name. Created if missing.
    mode: If the key already exists: update, skip or fail. Default: update.
    changed_only: Make only rows that are new, or made from something new.
    id: The field or fields that identify an item; auto: its file and line; hash: its text.
    keep: Columns to carry into the result, also file, url and line; price:double sets a type.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    device: auto, cpu, cuda, cuda:0, cuda:0,2, or all (all GPUs plus one CPU worker on the spare cores). Default:
        auto.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    detach: Return once the workers are placed; they finish the run on their own.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    into: Deliver the finished rows to a store, too: lance:PLACE, duckdb:FILE, qdrant://…; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    deadline: When it is to be done: 6h from its first worker's start, or 2026-12-31T18:00. The number of workers
        follows.
    budget: What it may cost: 40USD. Before that it stops in good order, and can be resumed.
    price: Dollars per device and hour, for budget=. Default: the catalogue's.
    precision: auto, or float32 for exact arithmetic at less speed. Default: auto.
    batch_tokens: Tokens per batch, including padding. Default: by memory.
    shard_bytes: Bytes of source per shard: 64MB. Default: about 90 s of work.
    fresh: Delete an existing run and start over.
    quiet: Whether to show no progress. Default: True, except in a notebook.
    changed_since: Of a query: a column that gets another value with each change of a row (updated_at); a refresh
        then reads the rest of changed rows alone.
    follow: Of local files of lines that only grow: read whole lines, and at a refresh those that were added.
    refresh: Refresh an existing run: compute only what is new or changed.
    """
    given = dict(locals())
    result: Run = call_verb("classify", given)
    return result


@checked
def dedup(
    source: Source,
    *,
    out: Place | None = None,
    text: str | None = None,
    query: str | None = None,
    format: str | None = None,
    config: str | None = None,
    split: str | None = None,
    where: str | None = None,
    take: float | str | None = None,
    limit: int | None = None,
    threshold: float | None = None,
    exact: bool = False,
    strip_markup: bool = False,
    id: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    device: str | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    then: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    shard_bytes: int | str | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
) -> Deduplicated:
    """Remove duplicates: keep the first of all items whose texts are alike. The same call resumes an interrupted run.

    done = shardmill.dedup("reviews.jsonl", text="reviewText", out="runs/unique")

    source: Files, folders, globs, URLs, - (a pipe), or run:RUN; with query=, a database. Or data in memory: a
        frame, an Arrow table, a dataset, a list or an iterator of texts or dicts.
    out: The run folder, created if missing: a path or a URL.
    text: The text: a field, several ("title,body") or a template ("{title}: {body}").
    query: The SELECT to read from the database, cut by its first id= column.
    format: jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets. Default:
        by file name.
    config: Of a dataset with several configs (subsets), the one to read; all reads every file.
    split: Of a folder or a dataset with several splits, the one to read; all reads every file.
    where: Take the items for which this holds, in a small subset of SQL: "overall <= 2 AND title IS NOT NULL".
    take: Take this share of the items, 1% or 0.01, by a hash of the id: the same ones on every machine.
    limit: Take the first N items of those that where= and take= leave.
    threshold: Least Jaccard similarity of two duplicates: the estimated share of three-word shingles they have in
        common. Default: 0.8.
    exact: Only remove texts that are equal, apart from case and punctuation.
    strip_markup: Compare the texts without tags, comments, scripts and styles of HTML or XML; they are kept as they
        are.
    id: The field or fields that identify an item; auto: its file and line; hash: its text.
    keep: Columns to carry into the result, also file, url and line; price:double sets a type.
    device: cpu, cuda, cuda:0, cuda:0,2, auto, or all (all GPUs plus one CPU worker on the spare cores). Default:
        cpu.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    shard_bytes: Bytes of source per shard: 64MB. Default: about 90 s of work.
    fresh: Delete an existing run and start over.
    quiet: Whether to show no progress. Default: True, except in a notebook.
    """
    given = dict(locals())
    result: Deduplicated = call_verb("dedup", given)
    return result


@checked
def embed(
    source: Source,
    *,
    out: Place | None = None,
    precision: Literal["auto", "float32", "int8", "fp8"] | None = None,
    text: str | None = None,
    query: str | None = None,
    format: str | None = None,
    config: str | None = None,
    split: str | None = None,
    picture: str | None = None,
    root: str | None = None,
    where: str | None = None,
    take: float | str | None = None,
    limit: int | None = None,
    model: str | None = None,
    prompt: str | None = None,
    max_tokens: int | None = None,
    window_tokens: int | None = None,
    overlap: int | None = None,
    windows: Literal["each", "mean"] | None = None,
    dims: int | None = None,
    dtype: Literal["float32", "float16", "int8", "uint8", "binary"] | None = None,
    adapter: str | None = None,
    allow_code: bool = False,
    id: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    device: str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    detach: bool = False,
    then: str | Sequence[str] | None = None,
    into: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    deadline: str | None = None,
    budget: float | str | None = None,
    price: float | None = None,
    batch_tokens: int | None = None,
    shard_bytes: int | str | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
    changed_since: str | None = None,
    follow: bool = False,
    refresh: bool = False,
) -> Run:
    """Embed every item of a source. The same call resumes an interrupted run.

    run = shardmill.embed("reviews.jsonl", text="reviewText", out="runs/reviews")

    source: Files, folders, globs, URLs, - (a pipe), or run:RUN; with query=, a database. Or data in memory: a
        frame, an Arrow table, a dataset, a list or an iterator of texts or dicts.
    out: The run folder, created if missing: a path or a URL.
    precision: auto, float32 (exact, slower), int8 (CPUs with VNNI, AMX or i8mm) or fp8 (GPUs from Hopper on). The
        last two give other vectors, so another run. Default: auto.
    text: The text: a field, several ("title,body") or a template ("{title}: {body}").
    query: The SELECT to read from the database, cut by its first id= column.
    format: jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets. Default:
        by file name.
    config: Of a dataset with several configs (subsets), the one to read; all reads every file.
    split: Of a folder or a dataset with several splits, the one to read; all reads every file.
    picture: In place of text=: the column of pictures, as bytes, base64, {bytes, path}, or paths below root=.
    root: The folder that the paths of picture= are below; no file outside it is read.
    where: Take the items for which this holds, in a small subset of SQL: "overall <= 2 AND title IS NOT NULL".
    take: Take this share of the items, 1% or 0.01, by a hash of the id: the same ones on every machine.
    limit: Take the first N items of those that where= and take= leave.
    model: A folder of sentence-transformers or model2vec, its URL (s3://…), or a hub name. Default: all-
        MiniLM-L6-v2.
    prompt: The name of one of the model's prompts, or a text to put first.
    max_tokens: Tokens of a text at most. Default: the model's limit.
    window_tokens: Cut texts into windows of N tokens, including prompt and special tokens.
    overlap: Tokens that a window shares with the one before it.
    windows: each (one row per window) or mean (one per item). Default: each.
    dims: Keep the first N dimensions (Matryoshka models).
    dtype: Type of the stored numbers: float32, float16, int8 or uint8 (a byte each), or binary (a bit each).
        Default: float32.
    adapter: A LoRA adapter of the model, as PEFT saves it: a folder, its URL (s3://…), or a hub name. With a field,
        as in adapters/{tenant}, that of each item.
    allow_code: Run the code that comes with the model, if it has some.
    id: The field or fields that identify an item; auto: its file and line; hash: its text.
    keep: Columns to carry into the result, also file, url and line; price:double sets a type.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    device: auto, cpu, cuda, cuda:0, cuda:0,2, or all (all GPUs plus one CPU worker on the spare cores). Default:
        auto.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    detach: Return once the workers are placed; they finish the run on their own.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    into: Deliver the finished rows to a store, too: lance:PLACE, duckdb:FILE, qdrant://…; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    deadline: When it is to be done: 6h from its first worker's start, or 2026-12-31T18:00. The number of workers
        follows.
    budget: What it may cost: 40USD. Before that it stops in good order, and can be resumed.
    price: Dollars per device and hour, for budget=. Default: the catalogue's.
    batch_tokens: Tokens per batch, including padding. Default: by memory.
    shard_bytes: Bytes of source per shard: 64MB. Default: about 90 s of work.
    fresh: Delete an existing run and start over.
    quiet: Whether to show no progress. Default: True, except in a notebook.
    changed_since: Of a query: a column that gets another value with each change of a row (updated_at); a refresh
        then reads the rest of changed rows alone.
    follow: Of local files of lines that only grow: read whole lines, and at a refresh those that were added.
    refresh: Refresh an existing run: compute only what is new or changed.
    """
    given = dict(locals())
    result: Run = call_verb("embed", given)
    return result


@checked
def embed_sparse(
    source: Source,
    *,
    model: str,
    out: Place | None = None,
    text: str | None = None,
    query: str | None = None,
    format: str | None = None,
    config: str | None = None,
    split: str | None = None,
    where: str | None = None,
    take: float | str | None = None,
    limit: int | None = None,
    prompt: str | None = None,
    max_tokens: int | None = None,
    max_active_dims: int | None = None,
    id: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    device: str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    detach: bool = False,
    then: str | Sequence[str] | None = None,
    into: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    deadline: str | None = None,
    budget: float | str | None = None,
    price: float | None = None,
    precision: Literal["auto", "float32"] | None = None,
    batch_tokens: int | None = None,
    shard_bytes: int | str | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
    changed_since: str | None = None,
    follow: bool = False,
    refresh: bool = False,
) -> Run:
    """Embed every item of a source as a sparse vector. The same call resumes an interrupted run.

    run = shardmill.embed_sparse("pages.parquet", text="text", model="./splade", out="runs/sparse")

    source: Files, folders, globs, URLs, - (a pipe), or run:RUN; with query=, a database. Or data in memory: a
        frame, an Arrow table, a dataset, a list or an iterator of texts or dicts.
    model: A SparseEncoder of sentence-transformers (SPLADE), or a masked language model: a folder, its URL
        (s3://…), or a hub name.
    out: The run folder, created if missing: a path or a URL.
    text: The text: a field, several ("title,body") or a template ("{title}: {body}").
    query: The SELECT to read from the database, cut by its first id= column.
    format: jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets. Default:
        by file name.
    config: Of a dataset with several configs (subsets), the one to read; all reads every file.
    split: Of a folder or a dataset with several splits, the one to read; all reads every file.
    where: Take the items for which this holds, in a small subset of SQL: "overall <= 2 AND title IS NOT NULL".
    take: Take this share of the items, 1% or 0.01, by a hash of the id: the same ones on every machine.
    limit: Take the first N items of those that where= and take= leave.
    prompt: The name of one of the model's prompts, or a text to put first.
    max_tokens: Tokens of a text at most. Default: the model's limit.
    max_active_dims: Keep the N words with the largest weights of a text. Default: the model's limit, or all.
    id: The field or fields that identify an item; auto: its file and line; hash: its text.
    keep: Columns to carry into the result, also file, url and line; price:double sets a type.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    device: auto, cpu, cuda, cuda:0, cuda:0,2, or all (all GPUs plus one CPU worker on the spare cores). Default:
        auto.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    detach: Return once the workers are placed; they finish the run on their own.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    into: Deliver the finished rows to a store, too: lance:PLACE, duckdb:FILE, qdrant://…; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    deadline: When it is to be done: 6h from its first worker's start, or 2026-12-31T18:00. The number of workers
        follows.
    budget: What it may cost: 40USD. Before that it stops in good order, and can be resumed.
    price: Dollars per device and hour, for budget=. Default: the catalogue's.
    precision: auto, or float32 for exact arithmetic at less speed. Default: auto.
    batch_tokens: Tokens per batch, including padding. Default: by memory.
    shard_bytes: Bytes of source per shard: 64MB. Default: about 90 s of work.
    fresh: Delete an existing run and start over.
    quiet: Whether to show no progress. Default: True, except in a notebook.
    changed_since: Of a query: a column that gets another value with each change of a row (updated_at); a refresh
        then reads the rest of changed rows alone.
    follow: Of local files of lines that only grow: read whole lines, and at a refresh those that were added.
    refresh: Refresh an existing run: compute only what is new or changed.
    """
    given = dict(locals())
    result: Run = call_verb("embed-sparse", given)
    return result


@checked
def embed_tokens(
    source: Source,
    *,
    model: str,
    out: Place | None = None,
    text: str | None = None,
    query: str | None = None,
    format: str | None = None,
    config: str | None = None,
    split: str | None = None,
    where: str | None = None,
    take: float | str | None = None,
    limit: int | None = None,
    prompt: str | None = None,
    max_tokens: int | None = None,
    dtype: Literal["float16", "float32"] | None = None,
    id: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    device: str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    detach: bool = False,
    then: str | Sequence[str] | None = None,
    into: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    deadline: str | None = None,
    budget: float | str | None = None,
    price: float | None = None,
    precision: Literal["auto", "float32"] | None = None,
    batch_tokens: int | None = None,
    shard_bytes: int | str | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
    changed_since: str | None = None,
    follow: bool = False,
    refresh: bool = False,
) -> Run:
    """Embed every item of a source as a vector per token. The same call resumes an interrupted run.

    run = shardmill.embed_tokens("pages.parquet", text="text", model="./colbert", out="runs/tokens")

    source: Files, folders, globs, URLs, - (a pipe), or run:RUN; with query=, a database. Or data in memory: a
        frame, an Arrow table, a dataset, a list or an iterator of texts or dicts.
    model: A ColBERT model of sentence-transformers, PyLate or colbert-ai: a folder, its URL (s3://…), or a hub
        name.
    out: The run folder, created if missing: a path or a URL.
    text: The text: a field, several ("title,body") or a template ("{title}: {body}").
    query: The SELECT to read from the database, cut by its first id= column.
    format: jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets. Default:
        by file name.
    config: Of a dataset with several configs (subsets), the one to read; all reads every file.
    split: Of a folder or a dataset with several splits, the one to read; all reads every file.
    where: Take the items for which this holds, in a small subset of SQL: "overall <= 2 AND title IS NOT NULL".
    take: Take this share of the items, 1% or 0.01, by a hash of the id: the same ones on every machine.
    limit: Take the first N items of those that where= and take= leave.
    prompt: The name of one of the model's prompts, or a text to put first.
    max_tokens: Tokens of a text at most. Default: the model's limit.
    dtype: The type of the vectors. Default: float16.
    id: The field or fields that identify an item; auto: its file and line; hash: its text.
    keep: Columns to carry into the result, also file, url and line; price:double sets a type.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    device: auto, cpu, cuda, cuda:0, cuda:0,2, or all (all GPUs plus one CPU worker on the spare cores). Default:
        auto.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    detach: Return once the workers are placed; they finish the run on their own.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    into: Deliver the finished rows to a store, too: lance:PLACE, duckdb:FILE, qdrant://…; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    deadline: When it is to be done: 6h from its first worker's start, or 2026-12-31T18:00. The number of workers
        follows.
    budget: What it may cost: 40USD. Before that it stops in good order, and can be resumed.
    price: Dollars per device and hour, for budget=. Default: the catalogue's.
    precision: auto, or float32 for exact arithmetic at less speed. Default: auto.
    batch_tokens: Tokens per batch, including padding. Default: by memory.
    shard_bytes: Bytes of source per shard: 64MB. Default: about 90 s of work.
    fresh: Delete an existing run and start over.
    quiet: Whether to show no progress. Default: True, except in a notebook.
    changed_since: Of a query: a column that gets another value with each change of a row (updated_at); a refresh
        then reads the rest of changed rows alone.
    follow: Of local files of lines that only grow: read whole lines, and at a refresh those that were added.
    refresh: Refresh an existing run: compute only what is new or changed.
    """
    given = dict(locals())
    result: Run = call_verb("embed-tokens", given)
    return result


@checked
def generate(
    source: Source,
    *,
    model: str,
    out: Place | None = None,
    query: str | None = None,
    format: str | None = None,
    config: str | None = None,
    split: str | None = None,
    where: str | None = None,
    take: float | str | None = None,
    limit: int | None = None,
    template: str | None = None,
    messages: str | None = None,
    schema: Mapping[str, Any] | Place | None = None,
    template_arguments: Mapping[str, Any] | str | None = None,
    system: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    seed: int | None = None,
    beams: int | None = None,
    answers: int | None = None,
    log_probabilities: bool = False,
    stop: Sequence[str] | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    adapter: str | None = None,
    endpoint: str | None = None,
    key_variable: str | None = None,
    to: str | None = None,
    table: str | None = None,
    mode: Literal["update", "skip", "fail"] | None = None,
    changed_only: bool = False,
    id: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    device: str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    detach: bool = False,
    then: str | Sequence[str] | None = None,
    into: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    deadline: str | None = None,
    budget: float | str | None = None,
    price: float | None = None,
    precision: Literal["auto", "float32"] | None = None,
    batch_tokens: int | None = None,
    shard_bytes: int | str | None = None,
    changed_since: str | None = None,
    follow: bool = False,
    refresh: bool = False,
    price_in: float | None = None,
    price_out: float | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
) -> Run:
    """Answer a prompt for every item of a source. The same call resumes an interrupted run.

    run = shardmill.generate("news.jsonl", template="Sum up: {body}", model="./Qwen3-0.6B", out="runs/short")

    source: Files, folders, globs, URLs, - (a pipe), or run:RUN; with query=, a database. Or data in memory: a
        frame, an Arrow table, a dataset, a list or an iterator of texts or dicts.
    model: A model that generates: a folder, its URL (s3://…), a hub name, or its name on the endpoint=.
    out: The run folder, created if missing: a path or a URL.
    query: The SELECT to read from the database, cut by its first id= column.
    format: jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets. Default:
        by file name.
    config: Of a dataset with several configs (subsets), the one to read; all reads every file.
    split: Of a folder or a dataset with several splits, the one to read; all reads every file.
    where: Take the items for which this holds, in a small subset of SQL: "overall <= 2 AND title IS NOT NULL".
    take: Take this share of the items, 1% or 0.01, by a hash of the id: the same ones on every machine.
    limit: Take the first N items of those that where= and take= leave.
    template: The prompt of an item: "Translate into French: {body}".
    messages: The column with a conversation, in place of a template.
    schema: A JSON schema that the answers must fit.
    template_arguments: Arguments of the model's chat template, as JSON: '{"enable_thinking": false}'.
    system: What the model is told before each prompt.
    max_tokens: Tokens of an answer at most. Default: 256, or what an encoder-decoder model says itself.
    temperature: Sampling temperature; 1 leaves the probabilities unchanged. Default: none: the likeliest token is
        taken.
    top_k: Sample among the K likeliest tokens.
    top_p: Nucleus sampling: the smallest set of tokens with probability P. Default: 1.0.
    min_p: Sample among tokens with at least P times the probability of the likeliest.
    repetition_penalty: Penalty on tokens that the prompt or the answer already has; 1 for none. Default: the
        model's own.
    seed: Random seed; an item's answer depends on it and the prompt.
    beams: Beam search with N beams. Default: the model's own, else 1.
    answers: Answers to each prompt, drawn with a temperature=; columns become lists. Default: 1.
    log_probabilities: Add a column with the log-probability of each token of an answer.
    stop: Where an answer ends; repeatable.
    source_language: Of a model that translates (NLLB, M2M100, mBART-50): the code of the language of the texts.
        Default: the tokenizer's own.
    target_language: Of a model that translates: the code of the language of the answers, such as fra_Latn, fr or
        fr_XX. Default: the model's own, if it has one.
    adapter: A LoRA adapter of the model, as PEFT saves it: a folder, its URL (s3://…), or a hub name. With a field,
        as in adapters/{tenant}, that of each item.
    endpoint: An OpenAI-compatible server that has the model: http://host:8000/v1.
    key_variable: The environment variable with the server's key. Default: OPENAI_API_KEY.
    to: postgresql://USER@HOST/DATABASE or embedded:PATH.
    table: The table: name or schema.name. Created if missing.
    mode: If the key already exists: update, skip or fail. Default: update.
    changed_only: Make only rows that are new, or made from something new.
    id: The field or fields that identify an item; auto: its file and line; hash: its text.
    keep: Columns to carry into the result, also file, url and line; price:double sets a type.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    device: auto, cpu, cuda, cuda:0, cuda:0,2, or all (all GPUs plus one CPU worker on the spare cores). Default:
        auto.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    detach: Return once the workers are placed; they finish the run on their own.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    into: Deliver the finished rows to a store, too: lance:PLACE, duckdb:FILE, qdrant://…; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    deadline: When it is to be done: 6h from its first worker's start, or 2026-12-31T18:00. The number of workers
        follows.
    budget: What it may cost: 40USD. Before that it stops in good order, and can be resumed.
    price: Dollars per device and hour, for budget=. Default: the catalogue's.
    precision: auto, or float32 for exact arithmetic at less speed. Default: auto.
    batch_tokens: Tokens per batch, including padding. Default: by memory.
    shard_bytes: Bytes of source per shard: 64MB. Default: about 90 s of work.
    changed_since: Of a query: a column that gets another value with each change of a row (updated_at); a refresh
        then reads the rest of changed rows alone.
    follow: Of local files of lines that only grow: read whole lines, and at a refresh those that were added.
    refresh: Refresh an existing run: compute only what is new or changed.
    price_in: Price of a million tokens read, for `cost`.
    price_out: Price of a million tokens made, for `cost`.
    fresh: Delete an existing run and start over.
    quiet: Whether to show no progress. Default: True, except in a notebook.
    """
    given = dict(locals())
    result: Run = call_verb("generate", given)
    return result


@checked
def load(
    source: Source,
    *,
    to: str,
    out: Place | None = None,
    precision: Literal["auto", "float32", "int8", "fp8"] | None = None,
    text: str | None = None,
    query: str | None = None,
    format: str | None = None,
    config: str | None = None,
    split: str | None = None,
    from_run: str | None = None,
    repair: bool = False,
    shown_as: str | None = None,
    where: str | None = None,
    take: float | str | None = None,
    limit: int | None = None,
    table: str | None = None,
    mode: Literal["update", "skip", "fail"] | None = None,
    changed_only: bool = False,
    schema: str | None = None,
    vector: Literal["vector", "halfvec"] | None = None,
    metadata: str | Sequence[str] | None = None,
    unknown_products: Literal["quarantine", "null"] | None = None,
    index: Literal["hnsw", "ivfflat", "none"] | None = None,
    rebuild_indexes: bool = False,
    model: str | None = None,
    prompt: str | None = None,
    max_tokens: int | None = None,
    window_tokens: int | None = None,
    overlap: int | None = None,
    windows: Literal["each", "mean"] | None = None,
    dims: int | None = None,
    dtype: Literal["float32", "float16", "int8", "uint8", "binary"] | None = None,
    adapter: str | None = None,
    allow_code: bool = False,
    id: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    device: str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    detach: bool = False,
    then: str | Sequence[str] | None = None,
    into: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    deadline: str | None = None,
    budget: float | str | None = None,
    price: float | None = None,
    batch_tokens: int | None = None,
    shard_bytes: int | str | None = None,
    batch_rows: int | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
) -> Run:
    """Embed every item of a source and load it into PostgreSQL. The same call resumes an interrupted run.

    run = shardmill.load("docs.parquet", text="body", id="doc_id", to="postgresql:///docs", table="documents")

    source: Files, folders, globs, URLs, - (a pipe), or run:RUN; with query=, a database. Or data in memory: a
        frame, an Arrow table, a dataset, a list or an iterator of texts or dicts.
    to: postgresql://USER@HOST/DATABASE or embedded:PATH; with from=, any store: lance:PLACE, duckdb:FILE, ….
    out: The run folder: a path or a URL. Default: runs/TABLE.
    precision: auto, float32 (exact, slower), int8 (CPUs with VNNI, AMX or i8mm) or fp8 (GPUs from Hopper on). The
        last two give other vectors, so another run. Default: auto.
    text: The text to embed: a field, several ("title,body") or a template ("{title}: {body}"). Default: what the
        schema= embeds.
    query: The SELECT to read from the database, cut by its first id= column.
    format: jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets. Default:
        by file name.
    config: Of a dataset with several configs (subsets), the one to read; all reads every file.
    split: Of a folder or a dataset with several splits, the one to read; all reads every file.
    from_run: Deliver the rows of this finished run as they are; as a source, run:RUN is embedded again.
    repair: With from=: also replace the rows that the store has lost, or that were changed or doubled there.
    shown_as: With from=: the name that readers use, a view or an alias (Qdrant, Milvus), which changes in one step.
    where: Take the items for which this holds, in a small subset of SQL: "overall <= 2 AND title IS NOT NULL".
    take: Take this share of the items, 1% or 0.01, by a hash of the id: the same ones on every machine.
    limit: Take the first N items of those that where= and take= leave.
    table: The table: name or schema.name. Created if missing.
    mode: If the key already exists: update, skip or fail. Default: update.
    changed_only: Make only rows that are new, or made from something new.
    schema: A known schema: amazon-reviews-2023 or amazon-reviews-2014.
    vector: Type of the vectors: vector or halfvec. Default: vector.
    metadata: With schema=: files of products, which are loaded first; repeatable.
    unknown_products: What happens to reviews of products that metadata="lacks": quarantine, or null. Default:
        quarantine.
    index: Built after the load: hnsw, ivfflat or none. Default: hnsw.
    rebuild_indexes: Drop existing indexes and build them after the load.
    model: A folder of sentence-transformers or model2vec, its URL (s3://…), or a hub name. Default: all-
        MiniLM-L6-v2.
    prompt: The name of one of the model's prompts, or a text to put first.
    max_tokens: Tokens of a text at most. Default: the model's limit.
    window_tokens: Cut texts into windows of N tokens, including prompt and special tokens.
    overlap: Tokens that a window shares with the one before it.
    windows: each (one row per window) or mean (one per item). Default: each.
    dims: Keep the first N dimensions (Matryoshka models).
    dtype: Type of the stored numbers: float32, float16, int8 or uint8 (a byte each), or binary (a bit each).
        Default: float32.
    adapter: A LoRA adapter of the model, as PEFT saves it: a folder, its URL (s3://…), or a hub name. With a field,
        as in adapters/{tenant}, that of each item.
    allow_code: Run the code that comes with the model, if it has some.
    id: The field or fields that identify an item; auto: its file and line; hash: its text.
    keep: Columns to carry into the result, also file, url and line; price:double sets a type.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    device: auto, cpu, cuda, cuda:0, cuda:0,2, or all (all GPUs plus one CPU worker on the spare cores). Default:
        auto.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    detach: Return once the workers are placed; they finish the run on their own.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    into: Deliver the finished rows to a store, too: lance:PLACE, duckdb:FILE, qdrant://…; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    deadline: When it is to be done: 6h from its first worker's start, or 2026-12-31T18:00. The number of workers
        follows.
    budget: What it may cost: 40USD. Before that it stops in good order, and can be resumed.
    price: Dollars per device and hour, for budget=. Default: the catalogue's.
    batch_tokens: Tokens per batch, including padding. Default: by memory.
    shard_bytes: Bytes of source per shard: 64MB. Default: about 90 s of work.
    batch_rows: Items per transaction. Default: 512.
    fresh: Delete an existing run and start over.
    quiet: Whether to show no progress. Default: True, except in a notebook.
    """
    given = dict(locals())
    result: Run = call_verb("load", given)
    return result


@checked
def map(
    source: Source,
    *,
    out: Place,
    query: str | None = None,
    format: str | None = None,
    config: str | None = None,
    split: str | None = None,
    vector: str | None = None,
    text: str | None = None,
    marks: Sequence[str] | None = None,
    points: str | None = None,
    method: Literal["umap", "pacmap"] | None = None,
    sample: int | None = None,
    seed: int | None = None,
    id: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    device: str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    detach: bool = False,
    then: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    precision: Literal["auto", "float32"] | None = None,
    batch_tokens: int | None = None,
    shard_bytes: int | str | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
) -> Run:
    """Map the vectors of a result, and write a page that shows them. The same call resumes an interrupted run.

    shardmill.map("runs/reviews", out="maps/reviews", marks=["battery dies after an hour"])

    source: Files, folders, globs, URLs, - (a pipe), or run:RUN; with query=, a database. Or data in memory: a
        frame, an Arrow table, a dataset, a list or an iterator of texts or dicts.
    out: The folder of the map, created if missing.
    query: The SELECT to read from the database, cut by its first id= column.
    format: jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets. Default:
        by file name.
    config: Of a dataset with several configs (subsets), the one to read; all reads every file.
    split: Of a folder or a dataset with several splits, the one to read; all reads every file.
    vector: The column with the vectors, if there are several.
    text: The column with the texts. Default: as the run was embedded.
    marks: Texts to show as marks, such as questions.
    points: Other items to place on the same map: a file to embed, or run:RUN.
    method: umap or pacmap. Default: umap.
    sample: Rows that the map is fitted on. Default: 20000.
    seed: Random seed. Default: 0.
    id: The field or fields that identify an item; auto: its file and line; hash: its text.
    keep: Columns to carry into the result, also file, url and line; price:double sets a type.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    device: auto, cpu, cuda, cuda:0, cuda:0,2, or all (all GPUs plus one CPU worker on the spare cores). Default:
        auto.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    detach: Return once the workers are placed; they finish the run on their own.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    precision: auto, or float32 for exact arithmetic at less speed. Default: auto.
    batch_tokens: Tokens per batch, including padding. Default: by memory.
    shard_bytes: Bytes of source per shard: 64MB. Default: about 90 s of work.
    fresh: Delete an existing run and start over.
    quiet: Whether to show no progress. Default: True, except in a notebook.
    """
    given = dict(locals())
    result: Run = call_verb("map", given)
    return result


@checked
def migrate(
    run: str | None = None,
    *,
    model: str | None = None,
    prompt: str | None = None,
    max_tokens: int | None = None,
    window_tokens: int | None = None,
    overlap: int | None = None,
    windows: Literal["each", "mean"] | None = None,
    dims: int | None = None,
    dtype: Literal["float32", "float16", "int8", "uint8", "binary"] | None = None,
    adapter: str | None = None,
    queries: str | None = None,
    query_text: str | None = None,
    gold: str | None = None,
    sample: int | None = None,
    compare_only: bool = False,
    dry_run: bool = False,
    allow_code: bool = False,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    device: str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    then: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    precision: Literal["auto", "float32"] | None = None,
    shard_bytes: int | str | None = None,
) -> Migrated:
    """Move a run to another model: compute, compare with the old one, switch. The same call resumes an interrupted run.

    shardmill.migrate("runs/docs", model="./bge-small", queries="queries.jsonl")

    run: The run folder: a path or a URL.
    model: The new model: a sentence-transformers folder, its URL (s3://…), or a hub name. Default: the run's.
    prompt: The name of one of the model's prompts, or a text to put first.
    max_tokens: Tokens of a text at most. Default: the model's limit.
    window_tokens: Cut texts into windows of N tokens. Default: the run's.
    overlap: Tokens that a window shares with the one before it. Default: the run's.
    windows: each (one row per window) or mean (one per item). Default: the run's.
    dims: Keep the first N dimensions (Matryoshka models).
    dtype: Type of the stored numbers: float32, float16, int8 or uint8 (a byte each), or binary (a bit each).
        Default: the run's.
    adapter: A LoRA adapter of the model, as PEFT saves it: a folder, its URL (s3://…), or a hub name. With a field,
        as in adapters/{tenant}, that of each item.
    queries: A file of your own queries, in any format of a source; without it, texts of the run are queries.
    query_text: The column of the queries. Default: query.
    gold: The column with the id, or a list of ids, of the right items. Default: gold, if the file has it.
    sample: Without queries=: how many texts of the run are queries; 0 for none. Default: 200.
    compare_only: Leave the old edition the one that is read; the same command without it switches.
    dry_run: Tell what would be computed, with its time and price; write nothing.
    allow_code: Import code that the run or table names, and run its commands.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    device: auto, cpu, cuda, cuda:0, cuda:0,2, or all (all GPUs plus one CPU worker on the spare cores). Default:
        auto.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    precision: auto, or float32 for exact arithmetic at less speed. Default: auto.
    shard_bytes: Bytes of source per shard: 64MB. Default: about 90 s of work.
    """
    given = dict(locals())
    result: Migrated = call_verb("migrate", given)
    return result


@checked
def peek(
    source: Source,
    *,
    query: str | None = None,
    format: str | None = None,
    config: str | None = None,
    split: str | None = None,
    where: str | None = None,
    take: float | str | None = None,
    limit: int | None = None,
    text: str | None = None,
    id: str | Sequence[str] | None = None,
    model: str | None = None,
    prompt: str | None = None,
    max_tokens: int | None = None,
    items: int | None = None,
) -> Peek:
    """Look at a source before a run over it.

    shardmill.peek("reviews.jsonl", text="reviewText")

    source: Files, folders, globs, URLs, - (a pipe), or run:RUN; with query=, a database. Or data in memory: a
        frame, an Arrow table, a dataset, a list or an iterator of texts or dicts.
    query: The SELECT to read from the database, cut by its first id= column.
    format: jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets. Default:
        by file name.
    config: Of a dataset with several configs (subsets), the one to read; all reads every file.
    split: Of a folder or a dataset with several splits, the one to read; all reads every file.
    where: Take the items for which this holds, in a small subset of SQL: "overall <= 2 AND title IS NOT NULL".
    take: Take this share of the items, 1% or 0.01, by a hash of the id: the same ones on every machine.
    limit: Take the first N items of those that where= and take= leave.
    text: The text: a field, several ("title,body") or a template ("Translate: {body}"). Default: all columns.
    id: The field or fields that identify an item.
    model: Count the tokens of this model: a folder, its URL, or a hub name. Default: the default one, if it is
        installed.
    prompt: The name of one of the model's prompts, or a text to put first.
    max_tokens: Tokens of a text at most. Default: the model's limit.
    items: Items to show. Default: 10.
    """
    given = dict(locals())
    result: Peek = call_verb("peek", given)
    return result


@checked
def receipt(
    run: Place | None = None,
    *,
    out: str | None = None,
    key: str | None = None,
    check: str | None = None,
    public_key: str | None = None,
) -> Receipt:
    """Write a receipt of a run, signed with your key, or check one.

    shardmill.receipt("runs/reviews", key="key.pem")

    run: The run folder: a path or a URL.
    out: The file. Default: receipt.json in the run folder.
    key: Your private key, to sign with: a PEM file with an Ed25519 or ECDSA key.
    check: Check this receipt; with RUN, also compare the run with it.
    public_key: The public key that must have signed the receipt: a PEM file.
    """
    given = dict(locals())
    result: Receipt = call_verb("receipt", given)
    return result


@checked
def refresh(
    run: str | None = None,
    *,
    dry_run: bool = False,
    every: str | None = None,
    keep_editions: int | None = None,
    allow_shrink: bool = False,
    changed_since: str | None = None,
    follow: bool = False,
    allow_code: bool = False,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    device: str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    endpoint: str | None = None,
    key_variable: str | None = None,
    then: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    precision: Literal["auto", "float32"] | None = None,
    shard_bytes: int | str | None = None,
) -> Refreshed:
    """Bring a run up to its source: compute what is new or changed. The same call resumes an interrupted run.

    shardmill.refresh("runs/reviews")

    run: The run folder: a path or a URL.
    dry_run: Count what would be computed, with its price; write nothing.
    every: Refresh again and again, this long from the beginning of one to that of the next: 15m, 1h, 1d.
    keep_editions: Delete older editions afterwards, as `prune` does: N stay, the current one included.
    allow_shrink: Accept a source of which less than half is left.
    changed_since: Of a query: a column that gets another value with each change of a row (updated_at); a refresh
        then reads the rest of changed rows alone.
    follow: Of local files of lines that only grow: read whole lines, and at a refresh those that were added.
    allow_code: Import code that the run or table names, and run its commands.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    device: auto, cpu, cuda, cuda:0, cuda:0,2, or all (all GPUs plus one CPU worker on the spare cores). Default:
        auto.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    endpoint: An OpenAI-compatible server that has the model: http://host:8000/v1.
    key_variable: The environment variable with the server's key. Default: OPENAI_API_KEY.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    precision: auto, or float32 for exact arithmetic at less speed. Default: auto.
    shard_bytes: Bytes of source per shard: 64MB. Default: about 90 s of work.
    """
    given = dict(locals())
    result: Refreshed = call_verb("refresh", given)
    return result


@checked
def score(
    source: Source,
    *,
    model: str,
    out: Place | None = None,
    text: str | None = None,
    query: str | None = None,
    format: str | None = None,
    config: str | None = None,
    split: str | None = None,
    where: str | None = None,
    take: float | str | None = None,
    limit: int | None = None,
    query_text: str | None = None,
    prompt: str | None = None,
    max_tokens: int | None = None,
    candidates: str | None = None,
    adapter: str | None = None,
    id: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    device: str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    detach: bool = False,
    then: str | Sequence[str] | None = None,
    into: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    deadline: str | None = None,
    budget: float | str | None = None,
    price: float | None = None,
    precision: Literal["auto", "float32"] | None = None,
    batch_tokens: int | None = None,
    shard_bytes: int | str | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
    changed_since: str | None = None,
    follow: bool = False,
    refresh: bool = False,
) -> Run:
    """Score pairs of texts, or candidates of queries, with a re-ranker. The same call resumes an interrupted run.

    run = shardmill.score("pairs.jsonl", query_text="query", text="passage", model="./reranker", out="runs/s")

    source: Files, folders, globs, URLs, - (a pipe), or run:RUN; with query=, a database. Or data in memory: a
        frame, an Arrow table, a dataset, a list or an iterator of texts or dicts.
    model: A re-ranker: a folder of a cross-encoder or a causal re-ranker, its URL (s3://…), or a hub name.
    out: The run folder, created if missing: a path or a URL.
    text: The text: a field, several ("title,body") or a template ("{title}: {body}").
    query: The SELECT to read from the database, cut by its first id= column.
    format: jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets. Default:
        by file name.
    config: Of a dataset with several configs (subsets), the one to read; all reads every file.
    split: Of a folder or a dataset with several splits, the one to read; all reads every file.
    where: Take the items for which this holds, in a small subset of SQL: "overall <= 2 AND title IS NOT NULL".
    take: Take this share of the items, 1% or 0.01, by a hash of the id: the same ones on every machine.
    limit: Take the first N items of those that where= and take= leave.
    query_text: The query, or the first text of each pair: a field, or a template ("{title}: {question}").
    prompt: The name of one of the model's prompts, or a text: the instruction of a causal re-ranker.
    max_tokens: Tokens of a pair at most; the longer text is cut. Default: the model's.
    candidates: The column with a list of texts, in place of text=: each gets a score, in their order.
    adapter: A LoRA adapter of the model, as PEFT saves it: a folder, its URL (s3://…), or a hub name. With a field,
        as in adapters/{tenant}, that of each item.
    id: The field or fields that identify an item; auto: its file and line; hash: its text.
    keep: Columns to carry into the result, also file, url and line; price:double sets a type.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    device: auto, cpu, cuda, cuda:0, cuda:0,2, or all (all GPUs plus one CPU worker on the spare cores). Default:
        auto.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    detach: Return once the workers are placed; they finish the run on their own.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    into: Deliver the finished rows to a store, too: lance:PLACE, duckdb:FILE, qdrant://…; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    deadline: When it is to be done: 6h from its first worker's start, or 2026-12-31T18:00. The number of workers
        follows.
    budget: What it may cost: 40USD. Before that it stops in good order, and can be resumed.
    price: Dollars per device and hour, for budget=. Default: the catalogue's.
    precision: auto, or float32 for exact arithmetic at less speed. Default: auto.
    batch_tokens: Tokens per batch, including padding. Default: by memory.
    shard_bytes: Bytes of source per shard: 64MB. Default: about 90 s of work.
    fresh: Delete an existing run and start over.
    quiet: Whether to show no progress. Default: True, except in a notebook.
    changed_since: Of a query: a column that gets another value with each change of a row (updated_at); a refresh
        then reads the rest of changed rows alone.
    follow: Of local files of lines that only grow: read whole lines, and at a refresh those that were added.
    refresh: Refresh an existing run: compute only what is new or changed.
    """
    given = dict(locals())
    result: Run = call_verb("score", given)
    return result


@checked
def summarize(
    source: Source,
    *,
    out: Place | None = None,
    text: str | None = None,
    query: str | None = None,
    format: str | None = None,
    config: str | None = None,
    split: str | None = None,
    where: str | None = None,
    take: float | str | None = None,
    limit: int | None = None,
    method: Literal["extractive", "generative"] | None = None,
    model: str | None = None,
    sentences: int | None = None,
    reference: str | None = None,
    prompt: str | None = None,
    window_tokens: int | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    beams: int | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    group_by: str | None = None,
    endpoint: str | None = None,
    key_variable: str | None = None,
    to: str | None = None,
    table: str | None = None,
    mode: Literal["update", "skip", "fail"] | None = None,
    changed_only: bool = False,
    id: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    device: str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    detach: bool = False,
    then: str | Sequence[str] | None = None,
    into: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    deadline: str | None = None,
    budget: float | str | None = None,
    price: float | None = None,
    precision: Literal["auto", "float32"] | None = None,
    batch_tokens: int | None = None,
    shard_bytes: int | str | None = None,
    changed_since: str | None = None,
    follow: bool = False,
    refresh: bool = False,
    price_in: float | None = None,
    price_out: float | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
) -> Run:
    """Summarize every item of a source, or every group of items. The same call resumes an interrupted run.

    run = shardmill.summarize("news.jsonl", text="article", out="runs/news")

    source: Files, folders, globs, URLs, - (a pipe), or run:RUN; with query=, a database. Or data in memory: a
        frame, an Arrow table, a dataset, a list or an iterator of texts or dicts.
    out: The run folder, created if missing: a path or a URL.
    text: The text: a field, several ("title,body") or a template ("{title}: {body}").
    query: The SELECT to read from the database, cut by its first id= column.
    format: jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets. Default:
        by file name.
    config: Of a dataset with several configs (subsets), the one to read; all reads every file.
    split: Of a folder or a dataset with several splits, the one to read; all reads every file.
    where: Take the items for which this holds, in a small subset of SQL: "overall <= 2 AND title IS NOT NULL".
    take: Take this share of the items, 1% or 0.01, by a hash of the id: the same ones on every machine.
    limit: Take the first N items of those that where= and take= leave.
    method: extractive (sentences of the text) or generative (a model writes). Default: what the model can do.
    model: A model that embeds or one that generates: a folder, its URL (s3://…), or a hub name; with endpoint=, its
        name on the server.
    sentences: Sentences in a summary. Default: 3.
    reference: A column with reference summaries: adds ROUGE-1, 2, L and Lsum to rows and report.
    prompt: With a generative model: the text to put first.
    window_tokens: With a generative model: cut texts into windows of N tokens. Default: the model's limit.
    max_tokens: With a generative model: tokens of a summary at most. Default: 128, or what an encoder-decoder model
        says itself.
    temperature: Sampling temperature; 1 leaves the probabilities unchanged. Default: none: the likeliest token is
        taken.
    seed: Random seed; a summary depends on it and the prompt.
    beams: Beam search with N beams. Default: the model's own, else 1.
    source_language: Of a model that translates (NLLB, M2M100, mBART-50): the code of the language of the texts.
        Default: the tokenizer's own.
    target_language: Of a model that translates: the code of the language of the answers, such as fra_Latn, fr or
        fr_XX. Default: the model's own, if it has one.
    group_by: Also summarize the summaries of all items that share this column.
    endpoint: An OpenAI-compatible server that has the model: http://host:8000/v1.
    key_variable: The environment variable with the server's key. Default: OPENAI_API_KEY.
    to: postgresql://USER@HOST/DATABASE or embedded:PATH.
    table: The table: name or schema.name. Created if missing.
    mode: If the key already exists: update, skip or fail. Default: update.
    changed_only: Make only rows that are new, or made from something new.
    id: The field or fields that identify an item; auto: its file and line; hash: its text.
    keep: Columns to carry into the result, also file, url and line; price:double sets a type.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    device: auto, cpu, cuda, cuda:0, cuda:0,2, or all (all GPUs plus one CPU worker on the spare cores). Default:
        auto.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    detach: Return once the workers are placed; they finish the run on their own.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    into: Deliver the finished rows to a store, too: lance:PLACE, duckdb:FILE, qdrant://…; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    deadline: When it is to be done: 6h from its first worker's start, or 2026-12-31T18:00. The number of workers
        follows.
    budget: What it may cost: 40USD. Before that it stops in good order, and can be resumed.
    price: Dollars per device and hour, for budget=. Default: the catalogue's.
    precision: auto, or float32 for exact arithmetic at less speed. Default: auto.
    batch_tokens: Tokens per batch, including padding. Default: by memory.
    shard_bytes: Bytes of source per shard: 64MB. Default: about 90 s of work.
    changed_since: Of a query: a column that gets another value with each change of a row (updated_at); a refresh
        then reads the rest of changed rows alone.
    follow: Of local files of lines that only grow: read whole lines, and at a refresh those that were added.
    refresh: Refresh an existing run: compute only what is new or changed.
    price_in: Price of a million tokens read, for `cost`.
    price_out: Price of a million tokens made, for `cost`.
    fresh: Delete an existing run and start over.
    quiet: Whether to show no progress. Default: True, except in a notebook.
    """
    given = dict(locals())
    result: Run = call_verb("summarize", given)
    return result


@checked
def train(
    source: Source,
    *,
    model: str,
    out: Place | None = None,
    query: str | None = None,
    format: str | None = None,
    config: str | None = None,
    split: str | None = None,
    columns: str | Sequence[str] | None = None,
    label: str | None = None,
    prompts: Mapping[str, str] | None = None,
    hard_negatives: str | None = None,
    loss: Literal["in-batch", "cosent", "cosine", "triplet"] | None = None,
    lora: int | None = None,
    lora_alpha: float | None = None,
    temperature: float | None = None,
    dims: str | Sequence[int] | None = None,
    batch: int | None = None,
    epochs: int | None = None,
    learning_rate: float | None = None,
    weight_decay: float | None = None,
    warmup: float | None = None,
    schedule: Literal["linear", "cosine", "constant"] | None = None,
    clip: float | None = None,
    seed: int | None = None,
    max_tokens: int | None = None,
    held_out: float | None = None,
    split_by: str | None = None,
    evaluate_every: int | None = None,
    checkpoint_every: int | None = None,
    allow_code: bool = False,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    device: str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    detach: bool = False,
    then: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    precision: Literal["auto", "float32"] | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
) -> Run:
    """Fine-tune an embedding model on pairs of texts. The same call resumes an interrupted run.

    run = shardmill.train("pairs.jsonl", columns="question,passage", model="all-MiniLM-L6-v2", out="runs/tuned")

    source: Files, folders, globs, URLs, - (a pipe), or run:RUN; with query=, a database. Or data in memory: a
        frame, an Arrow table, a dataset, a list or an iterator of texts or dicts.
    model: A sentence-transformers folder, its URL (s3://…), or a hub name.
    out: The run folder, created if missing: a path or a URL.
    query: The SELECT to read from the database, cut by its first id= column.
    format: jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle, files (documents) or datasets. Default:
        by file name.
    config: Of a dataset with several configs (subsets), the one to read; all reads every file.
    split: Of a folder or a dataset with several splits, the one to read; all reads every file.
    columns: Texts that belong together, and a third that does not. Default: anchor,positive.
    label: The column with a number for each pair: the higher, the closer.
    prompts: Prompts before the texts, by column.
    hard_negatives: An embed run of passages, by the same model: the nearest wrong passage is a third text.
    loss: in-batch, cosent, cosine or triplet. Default: in-batch; cosent with label=.
    lora: Train a LoRA adapter of this rank; the model's own weights stay. Default: all weights learn.
    lora_alpha: Alpha of the adapter, whose scale is alpha / rank. Default: 2 ranks.
    temperature: Softmax temperature of the loss. Default: 0.05.
    dims: Train vectors that can be truncated to these lengths (Matryoshka).
    batch: Items per step, on all processes together. Default: 64.
    epochs: Number of epochs. Default: 1.
    learning_rate: Peak learning rate. Default: 5e-5.
    weight_decay: Weight decay of AdamW. Default: 0.01.
    warmup: Share of the steps that warm up. Default: 0.1.
    schedule: Decay of the learning rate: linear, cosine or constant. Default: linear.
    clip: Maximum gradient norm. Default: 1.
    seed: Random seed of the order and of the held-out part. Default: 0.
    max_tokens: Tokens of a text at most. Default: the model's limit.
    held_out: Share of the items to evaluate on; 0 for none. Default: 0.1.
    split_by: Items that agree in this column are on the same side. Default: the second column.
    evaluate_every: Steps between evaluations. Default: once per epoch.
    checkpoint_every: Steps between checkpoints. Default: every 60 s.
    allow_code: Run the code that comes with the model, if it has some.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    device: auto, cpu, cuda, cuda:0, cuda:0,2, or all (all GPUs plus one CPU worker on the spare cores). Default:
        auto.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    detach: Return once the workers are placed; they finish the run on their own.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    precision: auto, or float32 for exact arithmetic at less speed. Default: auto.
    fresh: Delete an existing run and start over.
    quiet: Whether to show no progress. Default: True, except in a notebook.
    """
    given = dict(locals())
    result: Run = call_verb("train", given)
    return result


@checked
def tune(
    study: Place | Mapping[str, Any],
    *,
    out: Place | None = None,
    call: str | Callable[..., Any] | None = None,
    trials: int | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, Any] | None = None,
    workers: int | str | None = None,
    device: str | None = None,
    priority: int | None = None,
    hosts: str | None = None,
    partition: str | None = None,
    address: str | None = None,
    image: str | None = None,
    detach: bool = False,
    then: str | Sequence[str] | None = None,
    max_errors: str | None = None,
    fresh: bool = False,
    quiet: bool | None = None,
) -> Run:
    """Search for the best parameters: run every trial of a study. The same call resumes an interrupted run.

    run = shardmill.tune("study.toml", out="runs/study")

    study: A TOML file with [work] and [space]: a path or a URL.
    out: The run folder, created if missing: a path or a URL.
    call: The objective, instead of the file's: package.module:function or file.py:function.
    trials: Number of trials, instead of the file's.
    engine: local, ssh, slurm, ray, kubernetes, argo or pool. Default: local.
    engine_options: Options of the engine, by name.
    workers: Number of workers; MIN:MAX if they train together, or with deadline=. Default: as many as the GPUs can
        use; one on a CPU.
    device: auto, cpu, cuda, cuda:0, cuda:0,2, or all (all GPUs plus one CPU worker on the spare cores). Default:
        auto.
    priority: With engine="pool": higher runs first.
    hosts: With engine="ssh": The hosts file, cluster.toml.
    partition: With engine="slurm": The partition to queue in.
    address: With engine="ray": The cluster; auto finds the current one.
    image: With engine="kubernetes": The image of the pods, with shardmill in it.
    detach: Return once the workers are placed; they finish the run on their own.
    then: After the last shard: verify, or merge:FILE.parquet; repeatable.
    max_errors: Rows that may fail: 1% or a number. Default: 1%.
    fresh: Delete an existing run and start over.
    quiet: Whether to show no progress. Default: True, except in a notebook.
    """
    given = dict(locals())
    result: Run = call_verb("tune", given)
    return result
