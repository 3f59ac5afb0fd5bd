"""Verbs that measure the speed of this machine on a task, with a real run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shardmill.cli import options as o
from shardmill.cli.command import Verb, Verbs, print_json, takes
from shardmill.console import say

app = typer.Typer(
    name="bench",
    cls=Verbs,
    help="Measure the speed of this machine on a task, with a real run.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(
    "embed", cls=Verb, epilog="shardmill bench embed --peers\nshardmill bench embed --model M --device cuda --out b"
)
@takes("model", "text", "batch_tokens", "precision")
def embed(
    workers: Annotated[int | None, typer.Option(help="Number of workers.", min=1, show_default=False)] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, or one GPU: cuda:0.")] = "auto",
    peers: Annotated[bool, typer.Option("--peers", help="Run sentence-transformers on the same texts too.")] = False,
    texts: Annotated[
        int | None, typer.Option(help="Number of texts.  [default: 2,000 on a CPU, 200,000 on a GPU]")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Your own texts, from any source.  [default: generated]")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write bench.json, bench.png and bench.svg there.")
    ] = None,
    as_json: o.AsJson = False,
    **options: Any,
) -> None:
    """Embed file to file in a temporary folder; show the speed, where the time went and what limits it."""
    from shardmill.bench.embed import EmbedBench, bench_embed
    from shardmill.bench.report import check_plotting, print_result, save
    from shardmill.store import make_folder

    if out is not None:
        check_plotting()
        make_folder(out)
    given = {"workers": workers, "texts": texts, "source": source, **options}
    asked = EmbedBench(device=device, peers=peers, **{k: v for k, v in given.items() if v is not None})
    result = bench_embed(asked, quiet=as_json)
    if out is not None:
        written = save(result, out)
        say(f"Written: {', '.join(map(str, written))}")
    if as_json:
        print_json(result.to_json())
    else:
        print_result(result)
    if not result.verified:
        raise typer.Exit(1)


@app.command("augment", cls=Verb, epilog="shardmill bench augment --samples 1000000 --out bench.html")
def augment(
    samples: Annotated[
        int, typer.Option(min=1, help="Number of samples, as columns; slower methods get fewer.")
    ] = 1_000_000,
    preset: Annotated[str, typer.Option(help="mild, moderate or aggressive.")] = "moderate",
    iterations: Annotated[int, typer.Option(min=1, help="Measurements per method; the median counts.")] = 5,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML page there.")] = None,
    as_json: o.AsJson = False,
) -> None:
    """Show how fast augmentation parameters are generated: as columns, as dicts, in batches, and by reseeding."""
    from shardmill.bench.augment import bench_augment
    from shardmill.store import locate, make_folder

    if out is not None:
        make_folder(out.parent)
    runner = bench_augment(samples, preset, iterations)
    if out is not None:
        store, name = locate(out)
        store.put(name, runner.report("html").encode())
        say(f"Written: {out}")
    print(runner.report("json" if as_json else "table"))


@app.command("tasks", cls=Verb, epilog="shardmill bench tasks\nshardmill bench tasks --items 20000 --out b")
@takes("model")
def tasks(
    items: Annotated[int, typer.Option(help="Number of items for each task and device.")] = 1_000,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write tasks.json, tasks.png and tasks.svg there.")
    ] = None,
    as_json: o.AsJson = False,
    **options: Any,
) -> None:
    """Run embed, summarize and answer on the CPU and on a GPU; show speed and price, and from when on a GPU pays."""
    from shardmill.bench.report import check_plotting
    from shardmill.bench.tasks import bench_tasks, print_tasks, save_tasks
    from shardmill.store import make_folder

    if out is not None:
        check_plotting()
        make_folder(out)
    result = bench_tasks(items, **{k: v for k, v in options.items() if v is not None}, quiet=as_json)
    if out is not None:
        say(f"Written: {', '.join(map(str, save_tasks(result, out)))}")
    if as_json:
        print_json(result.to_json())
    else:
        print_tasks(result)
    if not result.verified:
        raise typer.Exit(1)
