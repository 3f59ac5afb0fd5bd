"""Is a forecast true? A small benchmark here, a forecast of other texts by it, and a run of them: `--texts 300`.

The rates go into a cache folder of their own, so that nothing measured before is used.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe_machine, print_table
from shardmill.bench.embed import EmbedBench, bench_embed
from shardmill.bench.texts import mixed_texts, write_texts
from shardmill.forecast import make_forecast
from shardmill.run import embed
from shardmill.spec import make_spec
from shardmill.tasks import open_task
from shardmill.tasks.embed.find import MINILM


def compare(model: str, bench_texts: int, texts: int, folder: Path) -> list[list[str]]:
    """Seconds that were forecast, before and after a benchmark, and those that it took."""
    task = open_task("embed", {"model": model})
    source = folder / "texts.jsonl"
    write_texts(source, mixed_texts(texts, lambda batch: task.prepare(batch).costs, seed=1), texts)
    spec = make_spec({"source": str(source), "text": "text", "params": {"model": model}}, {"device": "cpu"})
    before = make_forecast(spec, gpus="CPU").asked
    bench_embed(EmbedBench(model=model, device="cpu", texts=bench_texts))
    after = make_forecast(spec, gpus="CPU").asked
    began = time.monotonic()
    run = embed(str(source), text="text", out=folder / "run", model=model, device="cpu")
    took = time.monotonic() - began
    cost = run.cost()
    own = cost.forecast.likely_s if cost.forecast else 0.0
    return [
        [name, f"{seconds:.1f} s", f"{took:.1f} s", f"{100 * (seconds / took - 1):+.0f} %"]
        for name, seconds in (
            (f"plan, {before.basis}", before.seconds.likely),
            (f"plan, {after.basis}", after.seconds.likely),
            ("the run's own, kept in its folder", own),
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=MINILM)
    parser.add_argument("--bench-texts", type=int, default=300)
    parser.add_argument("--texts", type=int, default=600)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        rows = compare(args.model, args.bench_texts, args.texts, Path(folder))
    describe_machine()
    print_table(["forecast", "seconds", "it took", "off"], rows)


if __name__ == "__main__":
    main()
