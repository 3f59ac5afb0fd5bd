"""The verbs. Data goes to stdout, talk to stderr; no logic lives here."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

import shardmill
from shardmill.console import duration, say
from shardmill.engines.ssh.commands import app as hosts_app
from shardmill.errors import EXIT_TRY_AGAIN, ShardmillError

app = typer.Typer(
    name="shardmill",
    help="Run a model over every item of a dataset: split, run, lose nothing, prove the result.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

bench = typer.Typer(
    name="bench",
    help="Measure what this machine does with a task, on a real run.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(bench)
app.add_typer(hosts_app)

RunPlace = Annotated[str, typer.Argument(metavar="RUN", help="The run's folder: a path or a URL.")]
ResultPlace = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The run's folder, or a table: postgresql://HOST/DATABASE/TABLE."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")]
Source = Annotated[
    list[str] | None,
    typer.Argument(metavar="SOURCE...", help="Files, folders, globs or URLs; with --query, a database's URL."),
]
Text = Annotated[
    str | None, typer.Option(help='What is read: a field, several ("title,body") or a template ("{title}: {body}").')
]
Query = Annotated[
    str | None, typer.Option("--query", help="What is read of a database: one SELECT. Its first --id column cuts it.")
]
Id = Annotated[str | None, typer.Option("--id", help="The field or fields that name an item.")]
Keep = Annotated[str | None, typer.Option(help="Columns to carry into the result; price:double sets a type.")]
Model = Annotated[str | None, typer.Option(help="A sentence-transformers folder or hub name.")]
Dims = Annotated[int | None, typer.Option(help="Keep the first so many dimensions (Matryoshka models).")]
Dtype = Annotated[str | None, typer.Option(help="What is stored: float32 or float16.")]
Prompt = Annotated[str | None, typer.Option(help="The name of one of the model's prompts, or a text to put first.")]
WindowTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Cut texts into windows of so many tokens, special ones and the prompt's included."),
]
Overlap = Annotated[int | None, typer.Option(min=0, help="Tokens that a window shares with the one before it.")]
WindowRows = Annotated[
    str | None, typer.Option("--windows", help="each: a row for each window; mean: one an item.  [default: each]")
]
Format = Annotated[
    str | None,
    typer.Option(
        help="jsonl, text, csv, tsv, parquet, arrow, json (an array), pickle or datasets, where the name does not tell."
    ),
]
SpecFile = Annotated[Path | None, typer.Option("--spec", help="A TOML file with [work] and [execution].")]
Workers = Annotated[int | None, typer.Option(help="How many; if not given, what the GPUs can use, or one on the CPU.")]
DeviceKind = Annotated[
    str | None,
    typer.Option("--device", help="auto, cpu, cuda, or all: the GPUs' --workers and one on the cores they leave."),
]
EngineName = Annotated[
    str | None, typer.Option("--engine", help="What places the workers: local, ssh, slurm or ray.  [default: local]")
]
Hosts = Annotated[str | None, typer.Option(metavar="FILE", help="With --engine ssh: the hosts, a cluster.toml.")]
Partition = Annotated[str | None, typer.Option(help="With --engine slurm: the partition to queue in.")]
Address = Annotated[str | None, typer.Option(help="With --engine ray: the cluster, auto for the one at hand.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Another option of the engine; repeatable.")
]
Precision = Annotated[str | None, typer.Option(help="auto, or float32 for exact arithmetic at less speed.")]
BatchTokens = Annotated[int | None, typer.Option(help="Tokens in a batch, padding included.")]
MaxErrors = Annotated[str | None, typer.Option(help="Rows that may fail: 1% or a number.  [default: 1%]")]
ShardBytes = Annotated[int | None, typer.Option(help="Bytes of source in a shard, instead of a computed size.")]


def _engine(
    engine: str | None, hosts: str | None, partition: str | None, address: str | None, more: list[str] | None
) -> dict[str, Any]:
    """What an execution says of its engine, of the options of the command line."""
    options: dict[str, str] = {}
    for each in more or ():
        key, equals, value = each.partition("=")
        if not (key and equals):
            raise shardmill.UsageError(f"--set {each!r} is not KEY=VALUE.", hint="For example: --set account=mine")
        options[key] = value
    named = {"hosts": hosts, "partition": partition, "address": address}
    options |= {k: v for k, v in named.items() if v is not None}
    return {"engine": engine, "engine_options": options or None}


# What typer answers for Ctrl-C.
_INTERRUPTED = 130


def _print_version(wanted: bool) -> None:
    if wanted:
        print(shardmill.__version__)
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    if debug:
        os.environ["SHARDMILL_DEBUG"] = "1"


def _given(path: Path | None, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `[work]` and `[execution]` of a spec file, completed by the options of a command."""
    from shardmill.spec import read_spec, sort_options

    work, execution = sort_options(values)
    tables = read_spec(path) if path else {"work": {}, "execution": {}}
    work["params"] = {**tables["work"].get("params", {}), **work["params"]}
    return {**tables["work"], **work}, {**tables["execution"], **execution}


ToUrl = Annotated[
    str | None, typer.Option("--to", metavar="URL", help="Load into a database: postgresql://… or embedded:PATH.")
]
TableName = Annotated[str | None, typer.Option("--table", help="The table that rows go into: name or schema.name.")]
Mode = Annotated[str | None, typer.Option(help="Where a key is there: update, skip or fail.  [default: update]")]
ChangedOnly = Annotated[
    bool | None, typer.Option("--changed-only", help="Embed only texts that the table does not have; update the rest.")
]
VectorType = Annotated[str | None, typer.Option("--vector", help="vector or halfvec.  [default: vector]")]
IndexKind = Annotated[str, typer.Option("--index", help="Built after the load: hnsw, ivfflat or none.")]
RebuildIndexes = Annotated[
    bool, typer.Option("--rebuild-indexes", help="Drop indexes that are there, and build them again after the load.")
]
BatchRows = Annotated[int | None, typer.Option(min=1, help="Items in one transaction.  [default: 512]")]
Resume = Annotated[
    bool | None, typer.Option("--resume/--fresh", help="Only go on with a run / delete it and start over.")
]


@app.command()
def embed(
    source: Source = None,
    text: Text = None,
    out: Annotated[str, typer.Option(metavar="RUN", help="The run's folder: a path or a URL.")] = "",
    query: Query = None,
    id: Id = None,
    keep: Keep = None,
    model: Model = None,
    dims: Dims = None,
    dtype: Dtype = None,
    prompt: Prompt = None,
    window_tokens: WindowTokens = None,
    overlap: Overlap = None,
    windows: WindowRows = None,
    format: Format = None,
    spec: SpecFile = None,
    workers: Workers = None,
    device: DeviceKind = None,
    engine: EngineName = None,
    hosts: Hosts = None,
    partition: Partition = None,
    address: Address = None,
    set_: Set = None,
    precision: Precision = None,
    batch_tokens: BatchTokens = None,
    max_errors: MaxErrors = None,
    shard_bytes: ShardBytes = None,
    to: ToUrl = None,
    table: TableName = None,
    resume: Resume = None,
    as_json: AsJson = False,
) -> None:
    """Embed every item of a source. The same command resumes what was interrupted."""
    values = locals() | _engine(engine, hosts, partition, address, set_)
    if to or table:
        _load(values, as_json=as_json)
        return
    if not out:
        raise shardmill.UsageError("No --out was given.", hint="Name a folder for the run: --out runs/mine")
    from shardmill.run import start
    from shardmill.spec import make_spec

    began = time.monotonic()
    run = start(make_spec(*_given(spec, values)), out, fresh=resume is False, resume=resume is True, quiet=False)
    if _tell(run.status(), began, as_json):
        say(f'Next: shardmill verify {out}   shardmill search {out} "…"   shardmill merge {out} --out FILE.parquet')


def _tell(state: Any, began: float, as_json: bool) -> bool:
    """What a run came to; whether it was said in words."""
    if as_json:
        _print_json(state.to_json())
        return False
    for note in dict.fromkeys(note for worker in state.workers for note in worker["notes"]):
        say(note)
    cut = f", {state.truncated:,} cut at the model's limit" if state.truncated else ""
    windows = f" of {state.windows:,} windows" if state.windows else ""
    say(
        f"{state.rows:,} rows{windows} in {state.shards} shards, {state.errors:,} errors{cut}, "
        f"{duration(time.monotonic() - began)}."
    )
    return True


def _load(
    values: dict[str, Any],
    *,
    as_json: bool,
    index: str = "hnsw",
    rebuild_indexes: bool = False,
    metadata: list[str] | None = None,
) -> None:
    from shardmill.spec import make_spec
    from shardmill.tables.load import default_out, load, load_with_products, place_of, to_table

    work, execution = _given(values["spec"], values)
    whole = to_table(work, values, products=bool(metadata))
    out = values["out"] or default_out(whole)
    began = time.monotonic()
    how: dict[str, Any] = {"fresh": values["resume"] is False, "resume": values["resume"] is True, "quiet": False}
    how |= {"index": index, "rebuild_indexes": rebuild_indexes}
    if metadata:
        run = load_with_products(lambda w: make_spec(w, execution), whole, metadata, out, **how)
    else:
        run = load(make_spec(whole, execution), out, **how)
    if _tell(run.status(), began, as_json):
        place = place_of(run)
        say(f"Next: shardmill search '{place}' \"…\"   shardmill verify {out}   shardmill verify '{place}'")


@app.command()
def load(
    source: Source = None,
    text: Text = None,
    id: Id = None,
    to: ToUrl = None,
    table: TableName = None,
    keep: Annotated[
        str | None, typer.Option("--keep", "--columns", help="Columns of the table besides id and text; price:double.")
    ] = None,
    mode: Mode = None,
    changed_only: ChangedOnly = None,
    vector: VectorType = None,
    index: IndexKind = "hnsw",
    rebuild_indexes: RebuildIndexes = False,
    batch_rows: BatchRows = None,
    schema: Annotated[
        str | None, typer.Option("--schema", help="A known schema: amazon-reviews-2023 or amazon-reviews-2014.")
    ] = None,
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", help="With --schema: the products, loaded first.")
    ] = None,
    unknown_products: Annotated[
        str | None,
        typer.Option(
            help="Reviews of products that are not in --metadata: quarantine, or null to load them without.  "
            "[default: quarantine]"
        ),
    ] = None,
    out: Annotated[str, typer.Option(metavar="RUN", help="The run's folder.  [default: runs/TABLE]")] = "",
    query: Query = None,
    model: Model = None,
    dims: Dims = None,
    prompt: Prompt = None,
    window_tokens: WindowTokens = None,
    overlap: Overlap = None,
    windows: WindowRows = None,
    format: Format = None,
    spec: SpecFile = None,
    workers: Workers = None,
    device: DeviceKind = None,
    engine: EngineName = None,
    hosts: Hosts = None,
    partition: Partition = None,
    address: Address = None,
    set_: Set = None,
    precision: Precision = None,
    batch_tokens: BatchTokens = None,
    max_errors: MaxErrors = None,
    shard_bytes: ShardBytes = None,
    resume: Resume = None,
    as_json: AsJson = False,
) -> None:
    """Embed every item of a source and load it into PostgreSQL. The same command resumes what was interrupted."""
    values = locals() | _engine(engine, hosts, partition, address, set_)
    _load(values, as_json=as_json, index=index, rebuild_indexes=rebuild_indexes, metadata=metadata)


@app.command()
def augment(
    num_samples: Annotated[str, typer.Option(metavar="N", help="How many items: 250000, 250k, 100M.")],
    out: Annotated[str, typer.Option(metavar="RUN", help="The run's folder: a path or a URL.")],
    preset: Annotated[str, typer.Option(help="mild, moderate or aggressive.")] = "moderate",
    seed: Annotated[int, typer.Option(help="Other parameters for all items.")] = 0,
    epoch: Annotated[int, typer.Option(help="Which time the items are gone through.")] = 0,
    start_id: Annotated[int, typer.Option(min=0, help="The first item's id.")] = 0,
    workers: Annotated[int | None, typer.Option(help="How many; if not given, one.")] = None,
    engine: EngineName = None,
    hosts: Hosts = None,
    partition: Partition = None,
    address: Address = None,
    set_: Set = None,
    resume: Annotated[
        bool | None, typer.Option("--resume/--fresh", help="Only go on with a run / delete it and start over.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the augmentation parameters of items, by seed, id and epoch alone. The same command resumes."""
    from shardmill.augment.streams import parse_count
    from shardmill.run import start
    from shardmill.spec import make_spec

    whole = make_spec(
        {
            "source": f"range:{start_id}:{start_id + parse_count(num_samples)}",
            "text": "sample_id",
            "id": "sample_id",
            "task": "augment",
            "params": {"preset": preset, "seed": seed, "epoch": epoch},
        },
        {"workers": workers, "device": "cpu", **_engine(engine, hosts, partition, address, set_)},
    )
    began = time.monotonic()
    run = start(whole, out, fresh=resume is False, resume=resume is True, quiet=as_json)
    state = run.status()
    if as_json:
        _print_json(state.to_json())
        return
    say(f"{state.rows:,} rows in {state.shards} shards, {duration(time.monotonic() - began)}.")
    say(f"Next: shardmill verify {out}   shardmill merge {out} --out FILE.parquet")


@app.command()
def plan(
    source: Source = None,
    text: Text = None,
    query: Query = None,
    id: Id = None,
    keep: Keep = None,
    model: Model = None,
    dims: Dims = None,
    dtype: Dtype = None,
    prompt: Prompt = None,
    window_tokens: WindowTokens = None,
    overlap: Overlap = None,
    windows: WindowRows = None,
    format: Format = None,
    spec: SpecFile = None,
    workers: Workers = None,
    device: DeviceKind = None,
    precision: Precision = None,
    shard_bytes: ShardBytes = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="NxDEVICE", help="Reckon time, money and memory on these: 8xT4, or CPU.")
    ] = None,
    deadline: Annotated[str | None, typer.Option(help="When it has to be done: 2h, 90min, 1d.")] = None,
    budget: Annotated[str | None, typer.Option(help="What it may cost: 5USD.")] = None,
    catalogue: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file with devices and prices of your own.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what would be done: the source, its shards, the plan's id. Nothing is run.

    With --gpus, --deadline or --budget: how long it would take and what it would cost, there and elsewhere.
    """
    values = locals()
    from shardmill.planner import devices_for, make_plan
    from shardmill.spec import make_spec

    whole = make_spec(*_given(spec, values))
    if gpus or deadline or budget:
        from shardmill.costs.forecast import make_forecast
        from shardmill.costs.screen import show as show_forecast

        forecast = make_forecast(whole, gpus=gpus, deadline=deadline, budget=budget, catalogue=catalogue)
        _print_json(forecast.to_json()) if as_json else show_forecast(forecast)
        return
    devices = devices_for(whole)
    made = make_plan(whole, devices, quiet=False)
    if as_json:
        _print_json(made.to_json())
        return
    table = Table(show_header=False, box=None)
    table.add_row("plan", made.id)
    if made.work.query:
        place, rows = made.stat.files[0].place, made.shards[-1].stop
        table.add_row("source", f"{place}, {rows:,} rows, about {made.stat.size_bytes:,} bytes")
    else:
        table.add_row("source", f"{len(made.stat.files)} {made.stat.format} files, {made.stat.size_bytes:,} bytes")
    table.add_row("columns", ", ".join(f"{n} {t}" for n, t in made.stat.columns.items()) or "none kept")
    table.add_row("model", ", ".join(f"{n} {t}" for n, t in made.fingerprint.items()))
    named = Counter(device.name for device in devices)
    table.add_row("workers", ", ".join(f"{count} x {name}" for name, count in named.items()))
    largest = max((s.weight_bytes for s in made.shards), default=0)
    table.add_row("shards", f"{len(made.shards)}, the largest of {largest:,} bytes")
    Console(soft_wrap=True).print(table)


@app.command()
def split(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...", help="Files, folders, globs or URLs, or a database: whatever `shardmill embed` reads."
        ),
    ],
    out: Annotated[str, typer.Option(metavar="PLACE", help="Where datasets/NAME is made: a path or a URL.")],
    query: Annotated[
        str | None, typer.Option(help="What is read of a database: one SELECT, all of it in one snapshot.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The dataset's name; if not given, the source's.")] = None,
    items: Annotated[int | None, typer.Option(help="Items in a chunk.  [default: 10000]")] = None,
    bytes: Annotated[str | None, typer.Option(help="Bytes of JSON lines in a chunk, at most: 64MB.")] = None,
    workers: Annotated[int | None, typer.Option(help="So many chunks, equal in items; counts them first.")] = None,
    format: Annotated[
        str, typer.Option(help="What is written: parquet, json (an array a chunk) or jsonl.")
    ] = "parquet",
    compress: Annotated[
        str, typer.Option(help="none, gzip or zstd; if not given, zstd inside Parquet and none of the others.")
    ] = "",
    shuffle: Annotated[int | None, typer.Option(metavar="SEED", help="Write the items in a random order.")] = None,
    splits: Annotated[str | None, typer.Option(help="Parts and shares: train=0.8,validation=0.1,test=0.1.")] = None,
    by: Annotated[
        str, typer.Option(help="What decides the part: random:SEED or hash:FIELD.  [default: random:0]")
    ] = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete what has that name and start over.")] = False,
    as_json: AsJson = False,
) -> None:
    """Cut a source into chunks. The dataset is there when all of them are; the same command resumes."""
    from shardmill.split import parse_bytes, parse_splits, split_files

    began = time.monotonic()
    done = split_files(
        source,
        out,
        name=name,
        items=items,
        bytes=parse_bytes(bytes) if bytes else None,
        workers=workers,
        query=query,
        format=format,
        compress=compress,
        shuffle=shuffle,
        splits=parse_splits(splits) if splits else (),
        by=by,
        fresh=fresh,
        quiet=as_json,
    )
    made = done.metadata
    if as_json:
        _print_json(made)
        return
    if done.was_there:
        say(f"All there already: {made['total_items']:,} items in {made['total_chunks']:,} chunks, {done.place}")
        return
    kept = f" ({done.kept:,} kept)" if done.kept else ""
    say(
        f"{made['total_items']:,} items in {made['total_chunks']:,} chunks{kept}, {made['total_bytes']:,} bytes, "
        f"{duration(time.monotonic() - began)}: {done.place}"
    )


@app.command()
def status(
    run: RunPlace,
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and follow the run until it is complete.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say how a run goes, from its folder alone."""
    from shardmill.status.screen import follow, show

    opened = shardmill.Run(run)
    if watch:
        follow(opened.status, as_json=as_json)
    elif as_json:
        _print_json(opened.status().to_json())
    else:
        show(opened.status())


@app.command()
def cost(
    run: RunPlace,
    price: Annotated[
        float | None,
        typer.Option(metavar="USD", min=0, help="USD for one GPU an hour, instead of the catalogue's price."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a run cost: device-seconds by worker, idle and retried time apart, forecast against actual."""
    from shardmill.costs.cost import show as show_cost

    found = shardmill.Run(run).cost(price)
    _print_json(found.to_json()) if as_json else show_cost(found)


@app.command()
def verify(
    run: ResultPlace,
    sample: Annotated[int, typer.Option(min=0, help="Rows to compute again in float32; 0 for none.")] = 64,
    rows: Annotated[int | None, typer.Option(min=0, help="The rows that the result must have.")] = None,
    dims: Annotated[int | None, typer.Option(min=1, help="The numbers that each vector must have.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prove a result: commits, digests, counts, ids, vectors, and a sample computed again.

    Of a table: its columns, key, rows and vectors, what its index finds, and a sample computed again.
    """
    from shardmill.tables.table import open_result

    report = open_result(run).verify(sample=sample, rows=rows, dims=dims, quiet=as_json)
    if as_json:
        _print_json(report.to_json())
    else:
        console = Console(highlight=False, soft_wrap=True)
        for check in report.checks:
            console.print(f"  [{'green' if check.ok else 'red'}]{'ok  ' if check.ok else 'FAIL'}[/] ", end="")
            console.print(f"{check.name:<10} {check.seen}", markup=False)
        verdict = "Verified" if report.verified else "NOT verified"
        console.print(f"{verdict}: {report.rows:,} rows, {report.errors:,} errors, {report.seconds} s.", markup=False)
    if not report.verified:
        raise typer.Exit(1)


@app.command()
def merge(
    run: RunPlace,
    out: Annotated[str, typer.Option(metavar="FILE", help="A name that ends in .parquet or .npy.")],
    as_json: AsJson = False,
) -> None:
    """Write the result as one file, in source order."""
    merged = shardmill.Run(run).merge(out, quiet=as_json)
    if as_json:
        _print_json({"files": merged.files, "rows": merged.rows, "bytes": merged.bytes})
    else:
        say(f"{merged.rows:,} rows, {merged.bytes:,} bytes: {', '.join(merged.files)}")


@app.command()
def search(
    run: ResultPlace,
    text: Annotated[list[str], typer.Argument(metavar="TEXT...", help="What to look for; each text is one search.")],
    k: Annotated[int, typer.Option("-k", help="How many answers.")] = 5,
    hybrid: Annotated[
        bool, typer.Option("--hybrid", help="Of a table: by meaning and by words, fused by rank.")
    ] = False,
    words: Annotated[
        bool, typer.Option("--words", help="Of a table: by words alone, as a web search has them.")
    ] = False,
    where: Annotated[
        str, typer.Option(metavar="SQL", help="Of a table: only such rows; an SQL condition, e.g. 'rating <= 2'.")
    ] = "",
    sql: Annotated[
        bool, typer.Option("--sql", help="Of a table: print the statement for psql and run nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find the rows nearest in meaning."""
    from shardmill.tables.table import Table, check_options, choose_mode, open_result

    mode = choose_mode(hybrid, words)
    check_options(run, mode, where, sql)
    result = open_result(run)
    found: list[list[Any]]
    if not isinstance(result, Table):
        found = [*result.search_many(text, k, quiet=as_json)]
    elif sql:
        print("\n\n".join(result.show_sql(text, k, mode=mode, where=where)))
        return
    else:
        found = [*result.search_many(text, k, mode=mode, where=where)]
    if as_json:
        answers = [{"text": t, "hits": [h.to_json() for h in hits]} for t, hits in zip(text, found, strict=True)]
        _print_json(answers if len(answers) > 1 else answers[0])
        return
    for query, hits in zip(text, found, strict=True):
        print(query)
        for hit in hits:
            values = "  ".join(" ".join(str(v).split())[:100] for v in hit.values.values() if v not in (None, [], {}))
            print(f"  {hit.score:.{4 if hybrid else 3}f}  {values or f'row {hit.row}'}  {hit.span}".rstrip())


@app.command()
def show(
    run: RunPlace,
    shard: Annotated[int | None, typer.Option(help="Show one shard: its range, its commit, its first rows.")] = None,
    errors: Annotated[bool, typer.Option("--errors", help="List the rows that could not be done.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="How many errors at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Look into a run: one shard, or the rows that failed."""
    from itertools import islice

    from shardmill.status.screen import describe_shard

    opened = shardmill.Run(run)
    if errors or shard is None:
        found = islice(opened.errors(), limit)
        if as_json:
            _print_json(list(found))
            return
        for record in found:
            line = record["line"] or f"{record['line_in_shard']} of shard {record['shard']}"
            print(f"{record['file']}:{line}: {record['reason']}")
        return
    _print_json(describe_shard(opened.ledger, opened.plan, shard))


@bench.command("embed")
def bench_embed(
    model: Model = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, or one GPU: cuda:0.")] = "auto",
    peers: Annotated[bool, typer.Option("--peers", help="Run sentence-transformers on the same texts too.")] = False,
    texts: Annotated[
        int | None, typer.Option(help="How many texts; if not given, 2,000 on a CPU and 200,000 on a GPU.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Texts of your own, of any source that is read, instead of made ones.")
    ] = None,
    text: Text = None,
    workers: Workers = None,
    batch_tokens: BatchTokens = None,
    precision: Precision = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write bench.json, bench.png and bench.svg there; without it nothing is kept."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Embed file to file in a temporary folder and say how fast it was, where the time went and what bounds it."""
    from shardmill.bench.embed import EmbedBench
    from shardmill.bench.embed import bench_embed as measure
    from shardmill.bench.report import check_plotting, print_result, save

    if out is not None:
        check_plotting()
    given: dict[str, Any] = {
        "model": model,
        "texts": texts,
        "source": source,
        "text": text,
        "workers": workers,
        "batch_tokens": batch_tokens,
        "precision": precision,
    }
    asked = EmbedBench(device=device, peers=peers, **{k: v for k, v in given.items() if v is not None})
    result = measure(asked, quiet=as_json)
    if out is not None:
        written = save(result, out)
        say(f"Written: {', '.join(map(str, written))}")
    if as_json:
        _print_json(result.to_json())
    else:
        print_result(result)
    if not result.verified:
        raise typer.Exit(1)


@bench.command("augment")
def bench_augment(
    samples: Annotated[int, typer.Option(min=1, help="How many, as columns; slower ways get fewer.")] = 1_000_000,
    preset: Annotated[str, typer.Option(help="mild, moderate or aggressive.")] = "moderate",
    iterations: Annotated[int, typer.Option(min=1, help="How often each is measured; the median counts.")] = 5,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page of HTML there.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say how fast augmentation parameters are made: as columns, as dicts, in batches, and by reseeding a generator."""
    from shardmill.bench.augment import bench_augment as measure

    runner = measure(samples, preset, iterations)
    if out is not None:
        out.write_text(runner.report("html"))
        say(f"Written: {out}")
    print(runner.report("json" if as_json else "table"))


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def _terminate(*_: object) -> NoReturn:
    raise SystemExit(EXIT_TRY_AGAIN)


def main() -> None:
    signal.signal(signal.SIGTERM, _terminate)
    try:
        status = app(standalone_mode=False)
    except ShardmillError as error:
        _fail(error, error.exit_status)
    except (KeyboardInterrupt, typer.Abort):
        status = _INTERRUPTED
    except Exception as error:
        _usage(error)
    if status == _INTERRUPTED:
        say(
            "Stopped. The same command goes on where this ended."
            if sys.argv[1:2] in (["embed"], ["augment"], ["split"])
            else "Stopped."
        )
    sys.exit(status)


def _usage(error: Exception) -> NoReturn:
    show_usage = getattr(error, "show", None)
    if show_usage is not None:
        show_usage()
        sys.exit(getattr(error, "exit_code", 2))
    if os.environ.get("SHARDMILL_DEBUG"):
        raise error
    say(f"error: {type(error).__name__}: {error}\nThis is a fault of shardmill's own; --debug shows where.")
    sys.exit(1)


def _fail(error: ShardmillError, status: int) -> NoReturn:
    if os.environ.get("SHARDMILL_DEBUG"):
        raise error
    say(f"error: {error}")
    sys.exit(status)


if __name__ == "__main__":
    main()
