"""`calculate_optimal_chunks`: how to split a dataset over N GPUs, before either exists."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from shardmill.core.errors import UsageError, nearest
from shardmill.plan.sizing import SHARD_S, SHARDS_PER_WORKER
from shardmill.plan.sizing.catalogue import CPU, Chip, load_catalogue
from shardmill.plan.sizing.memory import Need, embedding_need, generation_need, training_need
from shardmill.plan.sizing.options import batch_tokens
from shardmill.plan.sizing.shape import Shape, read_shape
from shardmill.plan.sizing.speed import Range, estimated_speed, training_s, writing_s

BERT_BASE = {
    "model_type": "bert",
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
BART_LARGE = {
    "model_type": "bart",
    "vocab_size": 50265,
    "d_model": 1024,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "max_position_embeddings": 1024,
}
# Peak memory of a worker over a source of 1,000 MB, without the model (docs/benchmarks/sources.md).
_STREAMING_MB = 184.6
_MOST_TRAINED, _MOST_WRITTEN = 256, 128


@dataclass(frozen=True, slots=True)
class _Kind:
    """A task's usual model, and the tokens read and written per item."""

    model: str
    config: dict[str, Any]
    read_tokens: int
    written_tokens: int = 0


_KINDS = {
    "embedding": _Kind("BERT-base", BERT_BASE, 128),
    # About the length of a CNN/DailyMail article and its highlights.
    "summarization": _Kind("BART-large", BART_LARGE, 800, 64),
    "training": _Kind("BERT-base, AdamW, one pass", BERT_BASE, 128),
}


def calculate_optimal_chunks(
    dataset_size: int, available_gpus: int, task_type: str = "embedding", gpu_memory_gb: float = 16
) -> dict[str, Any]:
    """Chunks, batch size, memory and time for a dataset on GPUs with `gpu_memory_gb` of memory (16: a T4).

    A GPU holds the model once and one batch at a time, so its memory does not depend on the chunk size.

    >>> calculate_optimal_chunks(100_000, 8)["total_chunks"]
    64
    """
    if task_type not in _KINDS:
        raise UsageError(f"No task is called {task_type!r}.", hint=nearest(task_type, list(_KINDS)))
    if dataset_size < 0 or available_gpus < 1 or gpu_memory_gb <= 0:
        raise UsageError(
            f"{dataset_size:,} items on {available_gpus} GPUs of {gpu_memory_gb} GB cannot be planned.",
            hint="Give 0 or more items, 1 or more GPUs, and more than 0 GB.",
        )
    kind, chip = _KINDS[task_type], chip_with(gpu_memory_gb)
    shape = read_shape(kind.config)
    need, batch, item_s = _work(task_type, kind, chip, shape)
    per_minute = 60 / item_s.likely
    wanted = min(SHARD_S / item_s.likely, dataset_size / (available_gpus * SHARDS_PER_WORKER))
    chunk_size = max(1, math.ceil(wanted))
    total_chunks = math.ceil(dataset_size / chunk_size)
    rounds = math.ceil(total_chunks / available_gpus)
    held_gb = need.bytes(batch, kind.read_tokens) / 1e9
    return {
        "total_chunks": total_chunks,
        "chunk_size": chunk_size,
        "optimal_batch_size": batch,
        "task_type": task_type,
        "estimated_processing_time_minutes": chunk_size / per_minute,
        "memory_requirements": {
            "gpu_memory_per_chunk_gb": held_gb,
            "streaming_memory_mb": _STREAMING_MB,
            "model_memory_gb": need.weights_bytes / 1e9,
            "batch_memory_mb": need.batch_bytes(batch, kind.read_tokens) / 1e6,
            "gpu_utilization_percent": 100 * held_gb / chip.memory_gb,
        },
        "performance_estimates": {
            "items_per_minute": per_minute,
            "items_per_minute_range": [60 / item_s.high, 60 / item_s.low],
            "total_processing_time_minutes": dataset_size / per_minute,
            "parallel_processing_time_minutes": rounds * chunk_size / per_minute,
        },
        "assumptions": {
            "device": chip.name,
            "model": kind.model,
            "tokens_read": kind.read_tokens,
            "tokens_written": kind.written_tokens,
            "basis": "estimated from the data sheet",
        },
    }


def chip_with(memory_gb: float) -> Chip:
    """The catalogue's GPU with that much memory, else the largest with less, else the smallest."""
    known = sorted((c for c in load_catalogue().listed if c.name != CPU), key=lambda c: (c.memory_gb, c.half_tflops))
    within = [c for c in known if c.memory_gb <= memory_gb]
    best = max((c.memory_gb for c in within), default=known[0].memory_gb)
    chip = next(c for c in known if c.memory_gb == best)
    return chip.model_copy(update={"memory_gb": memory_gb})


def _work(task_type: str, kind: _Kind, chip: Chip, shape: Shape) -> tuple[Need, int, Range]:
    """The memory needed, the items per batch, and the seconds per item."""
    if task_type == "embedding":
        need = embedding_need(shape)
        rate = estimated_speed(chip, shape, kind.read_tokens).tokens_per_s
        batch = batch_tokens(chip, need, kind.read_tokens) // kind.read_tokens
        item_s = Range(*(kind.read_tokens / each for each in (rate.high, rate.likely, rate.low)))
    elif task_type == "summarization":
        need = generation_need(shape, kind.written_tokens)
        batch = need.rows(chip.memory_gb * 1e9, kind.read_tokens, _MOST_WRITTEN)
        how = {"read_tokens": kind.read_tokens, "written_tokens": kind.written_tokens}
        item_s = writing_s(chip, shape, rows=max(1, batch), **how)
    else:
        need = training_need(shape)
        batch = need.rows(chip.memory_gb * 1e9, kind.read_tokens, _MOST_TRAINED)
        item_s = training_s(chip, shape, tokens=kind.read_tokens)
    if batch < 1 or need.bytes(1, kind.read_tokens) > chip.memory_gb * 1e9:
        raise UsageError(
            f"{kind.model} does not fit into {chip.memory_gb} GB: one item takes "
            f"{need.bytes(1, kind.read_tokens) / 1e9:.1f} GB.",
            hint="Use a larger GPU.",
        )
    return need, batch, item_s
