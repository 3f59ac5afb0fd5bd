"""The options of the functions, by their names on the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

Place = str | os.PathLike[str]
Names = str | Sequence[str]


class WorkerOptions(TypedDict, total=False):
    """Where workers run, and what follows their last shard."""

    engine: str | None
    engine_options: dict[str, Any] | None
    workers: int | None
    max_errors: str | None
    then: Names | None


class SourceOptions(WorkerOptions, total=False):
    """What is read and kept of a source."""

    id: Names | None
    keep: Names | None
    query: str | None
    format: str | None
    shard_bytes: int | None


class RunOptions(SourceOptions, total=False):
    """Options of every function that runs a task, with the meaning of the command-line options of the same name."""

    device: str | None
    precision: str | None
    batch_tokens: int | None
    detach: bool
    priority: int | None


class EmbedOptions(RunOptions, total=False):
    """Options of `embed` and `load`."""

    model: str | None
    dims: int | None
    dtype: str | None
    prompt: str | None
    window_tokens: int | None
    overlap: int | None
    windows: str | None


class AnswerOptions(RunOptions, total=False):
    """Options of `answer`. With `to` and `table` the answers go into PostgreSQL."""

    by: str | None
    k: int | None
    rerank: str | None
    reader: str | None
    generator: str | None
    endpoint: str | None
    key_variable: str | None
    null_threshold: float | None
    model: str | None
    price_in: float | None
    price_out: float | None
    to: str | None
    table: str | None
    mode: str | None
    changed_only: bool


class GenerateOptions(RunOptions, total=False):
    """Options of `generate`. With `to` and `table` the answers go into PostgreSQL."""

    endpoint: str | None
    key_variable: str | None
    system: str | None
    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    beams: int | None
    stop: Sequence[str] | None
    price_in: float | None
    price_out: float | None
    to: str | None
    table: str | None
    mode: str | None
    changed_only: bool


class SummarizeOptions(RunOptions, total=False):
    """Options of `summarize`. With `to` and `table` the summaries go into PostgreSQL."""

    method: str | None
    model: str | None
    sentences: int | None
    reference: str | None
    group_by: str | None
    prompt: str | None
    window_tokens: int | None
    max_tokens: int | None
    endpoint: str | None
    key_variable: str | None
    temperature: float | None
    seed: int | None
    beams: int | None
    price_in: float | None
    price_out: float | None
    to: str | None
    table: str | None
    mode: str | None
    changed_only: bool


class ApplyOptions(RunOptions, total=False):
    """Options of `apply`. With `to` and `table` the rows go into PostgreSQL."""

    text: str | None
    column: Names | None
    batch: int | None
    to: str | None
    table: str | None
    mode: str | None


class DedupOptions(SourceOptions, total=False):
    """Options of `dedup`, with the meaning of the command-line options of the same name."""


class TrainingOptions(RunOptions, total=False):
    """Options of `train`."""

    label: str | None
    prompts: Mapping[str, str] | None
    hard_negatives: str | None
    loss: str | None
    temperature: float | None
    dims: Sequence[int] | None
    batch: int | None
    epochs: int | None
    learning_rate: float | None
    weight_decay: float | None
    warmup: float | None
    schedule: str | None
    clip: float | None
    seed: int | None
    max_tokens: int | None
    held_out: float | None
    split_by: str | None
    evaluate_every: int | None
    checkpoint_every: int | None


class TuneOptions(WorkerOptions, total=False):
    """Options of `tune`: how its trials run."""

    device: str | None
    detach: bool
    priority: int | None


class LoadOptions(EmbedOptions, total=False):
    """Options of `load`: those of `embed`, and those of the table."""

    table: str | None
    mode: str | None
    changed_only: bool
    vector: str | None
    index: str
    rebuild_indexes: bool
    batch_rows: int | None
    schema: str | None
    metadata: Names | None
    unknown_products: str | None
