"""Is a forecast accurate? A small benchmark on this machine, a forecast for other texts from it, and a run of them.

Other load on the machine distorts the result, so the load is printed with each figure, and so are the CPU-seconds of
the workers, which do not depend on it. The rates go into a separate cache folder: no earlier measurement is used.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

from benchmarks.machine import describe_machine, print_table
from shardmill.api import embed
from shardmill.bench.embed import EmbedBench, bench_embed
from shardmill.bench.texts import mixed_texts, write_texts
from shardmill.models.location import MINILM
from shardmill.plan.spec import make_spec
from shardmill.run.costs.forecast import make_forecast
from shardmill.tasks import open_task


def compare(model: str, bench_texts: int, texts: int, folder: Path) -> list[list[str]]:
    """Forecast seconds before and after a benchmark, and the seconds that the run took."""
    task = open_task("embed", {"model": model})
    source = folder / "texts.jsonl"
    write_texts(source, mixed_texts(texts, lambda batch: task.prepare(batch).costs, seed=1), texts)
    spec = make_spec({"source": str(source), "text": "text", "params": {"model": model}}, {"device": "cpu"})
    before = make_forecast(spec, gpus="CPU").asked
    measured = bench_embed(EmbedBench(model=model, device="cpu", texts=bench_texts))
    bench_cpu_s = _children_s()
    load = os.getloadavg()[0]
    after = make_forecast(spec, gpus="CPU").asked
    began = time.monotonic()
    run = embed(str(source), text="text", out=folder / "run", model=model, device="cpu")
    took = time.monotonic() - began
    cost, run_cpu_s = run.cost(), _children_s() - bench_cpu_s
    print(f"CPU-seconds of the workers: {bench_cpu_s:.1f} for {measured.tokens:,} tokens of the benchmark, ", end="")
    print(f"{run_cpu_s:.1f} for {cost.tokens:,} of the run, including start-up.\n")
    loads = f"{load:.1f}, {os.getloadavg()[0]:.1f}"
    own = cost.forecast.likely_s if cost.forecast else 0.0
    return [
        [name, f"{seconds:.1f} s", f"{took:.1f} s", f"{100 * (seconds / took - 1):+.0f} %", loads]
        for name, seconds in (
            (f"plan, {before.basis}", before.seconds.likely),
            (f"plan, {after.basis}", after.seconds.likely),
            ("the run's own, from its folder", own),
        )
    ]


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
    print_table(["forecast", "seconds", "it took", "off", "load after the benchmark, after the run"], rows)


if __name__ == "__main__":
    main()
