"""Commands that measure the speed of this machine on a task, with a real run."""

from __future__ import annotations

from pathlib import Path

import click

from shardmill.core.console import print_json, say
from shardmill.models.names import MINILM
from shardmill.plan.execution import Batching, Computing, OnDevices
from shardmill.plan.options import MODEL, OTHER, PLACE, RESULT, SOURCE, CallOptions, option
from shardmill.plan.shared import Printing
from shardmill.plan.values import Place
from shardmill.run.request import Request


class BenchModel(CallOptions):
    """The model that is measured."""

    model: str = option(
        MINILM,
        "A sentence-transformers folder, its URL (s3://…), or a hub name.",
        group=MODEL,
        metavar="MODEL",
        common=True,
        min_length=1,
    )


class BenchTexts(CallOptions):
    """The texts that are embedded, and how."""

    source: str | None = option(
        None, "Your own texts, from any source.", group=SOURCE, metavar="SOURCE", common=True, shown="generated"
    )
    text: str | None = option(
        None,
        'The text: a field, several ("title,body") or a template ("{title}: {body}").',
        group=SOURCE,
        metavar="FIELD",
        common=True,
    )
    texts: int | None = option(
        None,
        "Number of texts.",
        group=SOURCE,
        metavar="N",
        common=True,
        shown="2,000 on a CPU, 200,000 on a GPU",
    )
    workers: int | None = option(None, "Number of workers.", group=PLACE, metavar="N", common=True, ge=1)
    peers: bool = option(False, "Run sentence-transformers on the same texts too.", common=True)
    out: Place = option(
        "", "Write bench.json, bench.png and bench.svg there.", group=RESULT, metavar="FOLDER", common=True
    )


class BenchEmbedOptions(BenchModel, BenchTexts, OnDevices, Computing, Batching, Printing):
    """What `bench embed` takes."""


class AugmentSamples(CallOptions):
    """How many parameters are generated."""

    samples: int = option(
        1_000_000,
        "Number of samples, as columns; slower methods get fewer.",
        group=OTHER,
        metavar="N",
        common=True,
        ge=1,
    )
    preset: str = option("moderate", "mild, moderate or aggressive.", metavar="PRESET", common=True)
    iterations: int = option(5, "Measurements per method; the median counts.", metavar="N", common=True, ge=1)
    out: Place = option("", "Write an HTML page there.", group=RESULT, metavar="FILE", common=True)


class BenchAugmentOptions(AugmentSamples, Printing):
    """What `bench augment` takes."""


class TaskItems(CallOptions):
    """How many items each task gets."""

    items: int = option(1_000, "Number of items for each task and device.", metavar="N", common=True)
    out: Place = option(
        "", "Write tasks.json, tasks.png and tasks.svg there.", group=RESULT, metavar="FOLDER", common=True
    )


class BenchTasksOptions(BenchModel, TaskItems, Printing):
    """What `bench tasks` takes."""


def embed(request: Request) -> None:
    """Embed from file to file, and show the speed, where the time went and what limits it."""
    from shardmill.bench.embed import EmbedBench, bench_embed
    from shardmill.bench.report import print_result, save

    options = request.options
    _prepare(options.out)
    names = ("model", "device", "texts", "source", "text", "workers", "batch_tokens", "precision", "peers")
    given = {name: getattr(options, name) for name in names if name in options.model_fields_set}
    result = bench_embed(EmbedBench(**given), quiet=options.as_json)
    if options.out:
        say(f"Written: {', '.join(map(str, save(result, Path(options.out))))}")
    print_json(result.to_json()) if options.as_json else print_result(result)
    _end(verified=result.verified)


def augment(request: Request) -> None:
    """Show how fast augmentation parameters are generated."""
    from shardmill.bench.augment import bench_augment
    from shardmill.store import locate, make_folder

    options = request.options
    if options.out:
        make_folder(Path(options.out).parent)
    runner = bench_augment(options.samples, options.preset, options.iterations)
    if options.out:
        store, name = locate(Path(options.out))
        store.put(name, runner.report("html").encode())
        say(f"Written: {options.out}")
    print(runner.report("json" if options.as_json else "table"))


def tasks(request: Request) -> None:
    """Run embed, summarize and answer on the CPU and on a GPU."""
    from shardmill.bench.tasks import bench_tasks, print_tasks, save_tasks

    options = request.options
    _prepare(options.out)
    result = bench_tasks(options.items, options.model, quiet=options.as_json)
    if options.out:
        say(f"Written: {', '.join(map(str, save_tasks(result, Path(options.out))))}")
    print_json(result.to_json()) if options.as_json else print_tasks(result)
    _end(verified=result.verified)


def _prepare(out: str) -> None:
    """Check that figures can be drawn and written, before anything is measured."""
    if out:
        from shardmill.bench.report import check_plotting
        from shardmill.store import make_folder

        check_plotting()
        make_folder(Path(out))


def _end(*, verified: bool) -> None:
    if not verified:
        raise click.exceptions.Exit(1)
