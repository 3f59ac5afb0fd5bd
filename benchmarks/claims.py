"""Published claims about T4s, compared with shardmill's estimates: the tables of docs/estimates.md."""

from __future__ import annotations

from benchmarks.machine import print_table
from shardmill.plan.sizing.catalogue import load_catalogue
from shardmill.plan.sizing.chunks import BERT_BASE, calculate_optimal_chunks
from shardmill.plan.sizing.memory import embedding_need
from shardmill.plan.sizing.options import Option, Workload, estimate_option
from shardmill.plan.sizing.shape import read_shape
from shardmill.plan.sizing.speed import Range, estimated_speed

TOKENS = 128
BIGGER_INSTANCE_USD = 0.752


def option(device: str, gpus: int, documents: int, usd: float | None = None) -> Option:
    """The option for documents of 128 tokens with BERT-base."""
    shape, chip = read_shape(BERT_BASE), load_catalogue().named(device)
    chip = chip if usd is None else chip.model_copy(update={"usd": usd})
    work = Workload(documents, documents * TOKENS, TOKENS)
    return estimate_option(work, chip, gpus, estimated_speed(chip, shape, TOKENS), embedding_need(shape))


def main() -> None:
    rows = []
    for gpus, documents in ((1, 100_000), (8, 100_000), (24, 100_000_000)):
        made, bigger = option("T4", gpus, documents), option("T4", gpus, documents, BIGGER_INSTANCE_USD)
        rows.append([f"{documents:,}", str(gpus), minutes(made.seconds), money(made.usd), money(bigger.usd)])
    print_table(["documents", "T4", "minutes", "g4dn.xlarge", "g4dn.2xlarge"], rows)
    rates = [(name, option(name, 1, 100_000).items_per_s) for name in ("T4", "CPU")]
    print(f"\nPer second: {', '.join(f'{rate:,.1f} on one {name}' for name, rate in rates)}.\n")
    rows = []
    for task in ("embedding", "summarization", "training"):
        made_of = calculate_optimal_chunks(100_000, 8, task)
        memory, speed = made_of["memory_requirements"], made_of["performance_estimates"]
        low, high = speed["items_per_minute_range"]
        rows.append(
            [
                task,
                f"{made_of['total_chunks']} of {made_of['chunk_size']:,}",
                f"{made_of['optimal_batch_size']}",
                f"{memory['gpu_memory_per_chunk_gb']:.1f} GB",
                f"{speed['items_per_minute']:,.0f} ({low:,.0f} to {high:,.0f})",
            ]
        )
    print_table(["task", "chunks", "batch", "GPU memory", "items per minute on a T4"], rows)


def minutes(seconds: Range) -> str:
    return f"{seconds.likely / 60:.1f} ({seconds.low / 60:.1f} to {seconds.high / 60:.1f})"


def money(usd: Range | None) -> str:
    return "no price" if usd is None else f"${usd.likely:,.2f} ({usd.low:,.2f} to {usd.high:,.2f})"


if __name__ == "__main__":
    main()
