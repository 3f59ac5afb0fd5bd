"""Speed of making parameters: as columns, as a stream of dicts, in batches, and by reseeding a generator."""

from __future__ import annotations

import hashlib
import html
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from shardmill.augment import AugmentationConfig, augmentation_table, get_preset, stream_augmentation_chain
from shardmill.bench.machine import describe_machine
from shardmill.bench.measure import measure_memory, measure_time
from shardmill.core.batching import BatchConfig, BatchProcessor, BatchStrategy
from shardmill.core.errors import UsageError

_COLUMNS_AT_A_TIME = 1 << 13


@dataclass(frozen=True, slots=True)
class BenchmarkConfig:
    """The number of iterations, and what to measure besides speed."""

    iterations: int = 10
    warmup_iterations: int = 1
    measure_memory: bool = True
    measure_cpu: bool = True

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.warmup_iterations < 0:
            raise UsageError(f"{self.iterations} iterations measure nothing.", hint="Give 1 or more.")


@dataclass(frozen=True, slots=True)
class BenchmarkMetrics:
    """One measurement: seconds of the median iteration, and the memory growth of the process over all iterations."""

    name: str
    samples: int
    iterations: int
    elapsed_seconds: float
    fastest_seconds: float
    cpu_seconds: float | None
    memory_delta_mb: float | None

    @property
    def throughput_samples_per_second(self) -> float:
        return self.samples / self.elapsed_seconds

    @property
    def samples_per_cpu_second(self) -> float | None:
        """Speed by CPU time: what one core does if no other process uses it."""
        return self.samples / self.cpu_seconds if self.cpu_seconds else None


class BenchmarkRunner:
    """Runs benchmarks one after another and reports all of them.

    runner = BenchmarkRunner(BenchmarkConfig(iterations=5))
    runner.benchmark_generation(100_000, get_preset("moderate")).throughput_samples_per_second
    """

    def __init__(self, config: BenchmarkConfig | None = None) -> None:
        self.config = config or BenchmarkConfig()
        self.results: list[BenchmarkMetrics] = []

    def benchmark_generation(
        self, num_samples: int, config: AugmentationConfig, name: str = "columns"
    ) -> BenchmarkMetrics:
        """Measure columns of parameters."""

        def make() -> None:
            for start in range(0, num_samples, _COLUMNS_AT_A_TIME):
                stop = min(num_samples, start + _COLUMNS_AT_A_TIME)
                augmentation_table(np.arange(start, stop, dtype=np.uint64), config)

        return self._measure(name, num_samples, make)

    def benchmark_streaming(
        self, num_samples: int, config: AugmentationConfig, chunk_size: int = 10_000, name: str = "stream of dicts"
    ) -> BenchmarkMetrics:
        """Measure one dict per sample."""

        def make() -> None:
            for _ in stream_augmentation_chain(num_samples, config, chunk_size=chunk_size):
                pass

        return self._measure(name, num_samples, make)

    def benchmark_batch_processing(
        self,
        num_samples: int,
        config: AugmentationConfig,
        strategy: BatchStrategy = BatchStrategy.SEQUENTIAL,
        batch_config: BatchConfig | None = None,
    ) -> BenchmarkMetrics:
        """Measure a stream grouped into batches."""

        def make() -> None:
            stream = stream_augmentation_chain(num_samples, config)
            for _ in BatchProcessor(strategy, batch_config).process_stream(stream):
                pass

        return self._measure(f"batches, {strategy.value}", num_samples, make)

    def benchmark_reseeding(self, num_samples: int, config: AugmentationConfig) -> BenchmarkMetrics:
        """Measure the baseline: NumPy's global generator, reseeded from a hash for every sample."""
        ranges = [(p.a, p.b) for p in config.parameters.values()]

        def make() -> None:
            kept = np.random.get_state()
            for sample_id in range(num_samples):
                digest = hashlib.sha256(f"{config.seed}_{sample_id}".encode()).hexdigest()
                np.random.seed(int(digest[:8], 16))
                dict(zip(config.names, [np.random.uniform(a, b) for a, b in ranges], strict=True))
            np.random.set_state(kept)

        return self._measure("reseeding a generator", num_samples, make)

    def compare_configurations(
        self, configs: Mapping[str, AugmentationConfig], num_samples: int = 100_000
    ) -> dict[str, BenchmarkMetrics]:
        """Measure columns of each config."""
        return {name: self.benchmark_generation(num_samples, config, name) for name, config in configs.items()}

    def report(self, format: str = "table") -> str:
        """All results as a "table", as "json", or as an "html" page with bars."""
        make = {"table": self._table, "json": self._json, "html": self._html}
        if format not in make:
            raise UsageError(f"No report format is called {format!r}.", hint="Choose table, json or html.")
        return make[format]()

    def _measure(self, name: str, samples: int, make: Callable[[], None]) -> BenchmarkMetrics:
        if samples < 1:
            raise UsageError(f"{samples} samples measure nothing.", hint="Give 1 or more.")
        for _ in range(self.config.warmup_iterations):
            make()
        times: list[dict[str, float]] = []
        with measure_memory() as memory:
            for _ in range(self.config.iterations):
                with measure_time() as timer:
                    make()
                times.append(timer)
        elapsed = [t["elapsed_seconds"] for t in times]
        found = BenchmarkMetrics(
            name,
            samples,
            self.config.iterations,
            statistics.median(elapsed),
            min(elapsed),
            statistics.median(t["cpu_seconds"] for t in times) if self.config.measure_cpu else None,
            memory["delta_mb"] if self.config.measure_memory else None,
        )
        self.results.append(found)
        return found

    def _rows(self) -> list[tuple[str, str, str, str]]:
        rows = [("what", "samples/s", "samples/CPU s", "memory")]
        for m in self.results:
            cpu, grown = m.samples_per_cpu_second, m.memory_delta_mb
            rows.append(
                (
                    m.name,
                    f"{m.throughput_samples_per_second:,.0f}",
                    "" if cpu is None else f"{cpu:,.0f}",
                    "" if grown is None else f"{grown:+.1f} MiB",
                )
            )
        return rows

    def _table(self) -> str:
        rows = self._rows()
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
        return "\n".join([str(describe_machine()), "", *(line.rstrip() for line in lines)])

    def _json(self) -> str:
        found = [{**asdict(m), "throughput_samples_per_second": m.throughput_samples_per_second} for m in self.results]
        return json.dumps({"machine": asdict(describe_machine()), "results": found}, indent=2, ensure_ascii=False)

    def _html(self) -> str:
        most = max((m.throughput_samples_per_second for m in self.results), default=1.0)
        bars = []
        for i, m in enumerate(self.results):
            wide = max(1.0, 360 * m.throughput_samples_per_second / most)
            said = f"{m.throughput_samples_per_second:,.0f}"
            bars.append(
                f'<text x="0" y="{24 * i + 16}">{html.escape(m.name)}</text>'
                f'<rect x="200" y="{24 * i + 4}" width="{wide:.1f}" height="16" fill="#1b6ca8"/>'
                f'<text x="{206 + wide:.1f}" y="{24 * i + 16}">{said}</text>'
            )
        head, *rows = self._rows()
        cells = ["".join(f"<td>{html.escape(c)}</td>" for c in row) for row in rows]
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>shardmill bench augment</title>'
            "<style>body{font:14px system-ui;margin:2em}td,th{padding:2px 12px;text-align:right}"
            "td:first-child,th:first-child{text-align:left}svg text{font:12px system-ui}</style>"
            f"<h1>Samples per second</h1><p>{html.escape(str(describe_machine()))}</p>"
            f'<svg width="720" height="{24 * len(self.results) + 8}">{"".join(bars)}</svg>'
            f"<table><tr>{''.join(f'<th>{c}</th>' for c in head)}</tr>"
            f"{''.join(f'<tr>{row}</tr>' for row in cells)}</table></html>\n"
        )


def bench_augment(num_samples: int, preset: str, iterations: int) -> BenchmarkRunner:
    """Run all benchmarks of `shardmill bench augment` in one process; slow ones use fewer samples."""
    config = get_preset(preset)
    runner = BenchmarkRunner(BenchmarkConfig(iterations=iterations))
    runner.benchmark_generation(num_samples, config)
    runner.benchmark_streaming(max(1, num_samples // 8), config)
    for strategy in (BatchStrategy.SEQUENTIAL, BatchStrategy.MEMORY_OPTIMIZED):
        runner.benchmark_batch_processing(max(1, num_samples // 8), config, strategy)
    runner.benchmark_reseeding(max(1, num_samples // 256), config)
    return runner
