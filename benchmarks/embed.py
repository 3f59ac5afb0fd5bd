"""`shardmill bench embed --peers` for several models, in one Markdown table.

Random weights are fine for speed. shardmill reads JSONL and writes committed Parquet; its start-up (processes, loading,
checking) is listed separately, since the loading of sentence-transformers is not counted either. Both tokenize.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.machine import describe_machine, print_table
from shardmill.bench.bounds import STAGES
from shardmill.bench.embed import EmbedBench, EmbedResult, bench_embed
from shardmill.bench.peers import Peer
from shardmill.bench.report import ratio

HEAD = [
    *("model", "docs/s", "tokens/s", "of peak, end to end", "padding", "device idle"),
    *("best peer", "peer docs/s", "ratio", "bound by", "stages, s", "work + start, s"),
]


def row(name: str, result: EmbedResult, best: Peer | None) -> list[str]:
    """One line of the table."""
    times = None if best is None else ratio(result, best)
    return [
        f"{name}, {result.workers} worker{'s' if result.workers > 1 else ''}",
        f"{result.docs_per_s:,.0f}",
        f"{result.tokens_per_s:,.0f}",
        "?" if result.peak_share is None else f"{100 * result.peak_share:.0f} %",
        f"{100 * result.padding_waste:.1f} %",
        f"{100 * result.idle_between_s / result.work_s:.1f} %",
        "" if best is None else f"{best.name}, batch {best.batch}",
        "" if best is None else f"{best.docs_per_s:,.0f}",
        "" if times is None else f"{times:.1f}x",
        str(result.bound),
        ", ".join(f"{STAGES[stage]} {seconds:.1f}" for stage, seconds in result.stages.items()),
        f"{result.work_s:.1f} + {result.start_s:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="FOLDER=COUNT[@WORKERS]: a model folder and the number of texts.")
    parser.add_argument("--device", default="cuda", help="As for `shardmill bench embed`.")
    parser.add_argument("--no-peers", action="store_true")
    args = parser.parse_args()
    describe_machine()
    rows = []
    peers: dict[str, Peer | None] = {}
    for entry in args.models:
        folder, _, rest = entry.partition("=")
        count, _, workers = rest.partition("@")
        wanted = not args.no_peers and folder not in peers
        asked = EmbedBench(
            model=folder, device=args.device, texts=int(count), workers=int(workers or 0) or None, peers=wanted
        )
        result = bench_embed(asked)
        if not result.verified:
            raise SystemExit(f"{folder}: not verified: {result.verify_checks}")
        best = peers.setdefault(folder, result.best_peer)
        rows.append(row(Path(folder).name, result, best))
        print(f"{folder}: {result.kernel}", flush=True)
    print()
    print_table(HEAD, rows)


if __name__ == "__main__":
    main()
