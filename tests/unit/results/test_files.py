"""A result as a file of every format, read back by the tools that people use."""

from __future__ import annotations

import datetime
import io
import itertools
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import MissingExtra, UsageError
from shardmill.plan.execution import WRITTEN
from shardmill.results.files import parquet as parquet_files
from shardmill.results.files.chosen import Chosen, Merged, Result, choose
from shardmill.results.files.folder import write_folder
from shardmill.results.files.kinds import BY_SUFFIX, FILE_KINDS, FileKind
from shardmill.run import Run
from shardmill.sinks.parquet import restore_missing
from shardmill.store import locate, open_store
from shardmill.store.clients import options_for_others
from shardmill.store.folders import PARTIAL
from shardmill.verbs.split import split_files
from tests.support.libraries import needed
from tests.support.results import SHAPES, check_csv, check_lines, make_run, unpack

duckdb, polars = needed("duckdb"), needed("polars")
_READ = Chosen.read
TEXTS = [suffix for suffix, (kind, _) in BY_SUFFIX.items() if kind.packed]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    return {shape: make_run(shape, folder) for shape in SHAPES}


@pytest.fixture(params=SHAPES)
def run(request: pytest.FixtureRequest, runs: dict[str, Run]) -> Run:
    return runs[request.param]


def restored(table: pa.Table) -> pa.Table:
    """A table of a Parquet file, in which a missing vector is a NaN of its own kind."""
    return pa.Table.from_batches([restore_missing(b, marked=True) for b in table.to_batches()], schema=table.schema)


@pytest.mark.parametrize("suffix", TEXTS)
def test_texts_have_every_row(run: Run, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"all{suffix}"
    merged = run.merge(out)
    table = run.table()
    assert (merged.files, merged.rows, merged.bytes) == ((str(out),), table.num_rows, out.stat().st_size)
    data = unpack(out.read_bytes(), suffix)
    if suffix.startswith(".jsonl"):
        check_lines(data, table)
    else:
        check_csv(data, table, "\t" if suffix.startswith(".tsv") else ",")


@pytest.mark.parametrize("suffix", [".arrow", ".feather"])
def test_arrow_has_every_row(run: Run, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"all{suffix}"
    assert run.merge(out).rows == run.table().num_rows
    with pa.ipc.open_file(out) as file:
        assert _equal(file.read_all(), run.table())
    assert polars.read_ipc(out).height == run.table().num_rows


def _equal(one: pa.Table, other: pa.Table) -> bool:
    return str(one.to_pylist()) == str(other.to_pylist()) and one.schema.equals(other.schema)


def test_parquet_has_every_row(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "all.parquet"
    assert run.merge(out).rows == run.table().num_rows
    table = pq.read_table(out)
    assert _equal(restored(table), run.table())
    assert polars.read_parquet(out).height == run.table().num_rows
    assert duckdb.sql(f"SELECT row FROM '{out}'").fetchall() == [(n,) for n in run.table()["row"].to_pylist()]


def test_lance_has_every_row(run: Run, tmp_path: Path) -> None:
    lance = needed("lance")
    out = tmp_path / "all.lance"
    merged = run.merge(out)
    assert _equal(lance.dataset(str(out)).to_table(), run.table())
    assert merged.files == (str(out),)
    assert merged.bytes == sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    with pytest.raises(UsageError, match="has files"):
        run.merge(out)


def test_lance_that_is_missing_is_told(runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(MissingExtra, match="pylance is not installed") as told:
        runs["vectors"].merge(tmp_path / "all.lance")
    assert "shardmill[lance]" in told.value.hint
    assert not (tmp_path / "all.lance").exists()


@pytest.mark.parametrize("shape", ["vectors", "windows", "failed", "part"])
def test_npy_has_every_vector(runs: dict[str, Run], tmp_path: Path, shape: str) -> None:
    run, out = runs[shape], tmp_path / "all.npy"
    run.merge(out)
    due = [[np.nan] * 8 if v is None else v for v in run.table()["embedding"].to_pylist()]
    assert np.array_equal(np.load(out), np.array(due, np.float32), equal_nan=True)
    assert pq.read_table(out.with_suffix(".ids.parquet")).equals(run.table().drop_columns("embedding"))


def test_npy_of_chosen_rows(runs: dict[str, Run], tmp_path: Path) -> None:
    run, out = runs["vectors"], tmp_path / "some.npy"
    merged = run.merge(out, where="n >= 16 AND n < 20", columns=["embedding", "id"], rename={"id": "key"})
    assert (merged.rows, len(np.load(out))) == (4, 4)
    assert np.isnan(np.load(out)[1]).all()
    ids = pq.read_table(out.with_suffix(".ids.parquet"))
    assert ids.to_pydict() == {"row": [16, 17, 18, 19], "key": ["k16", "k17", "k18", "k19"]}
    with pytest.raises(UsageError, match="needs the vectors, 'embedding'"):
        run.merge(out, columns=["id"])
    with pytest.raises(UsageError, match="no vector column"):
        runs["nested"].merge(out)


def test_lines_have_what_those_of_split_have(runs: dict[str, Run], tmp_path: Path) -> None:
    """Without `row`, and where `split` writes a row at all: not one without a vector."""
    run = runs["windows"]
    split_files([f"run:{run.ledger.url}"], str(tmp_path / "data"), name="rows", format="jsonl", quiet=True)
    chunks = sorted((tmp_path / "data/datasets/rows/chunks").glob("*.jsonl"))
    run.merge(tmp_path / "all.jsonl")
    theirs = [json.loads(line) for chunk in chunks for line in chunk.read_bytes().splitlines()]
    ours = [json.loads(line) for line in (tmp_path / "all.jsonl").read_bytes().splitlines()]
    for row, (mine, split) in enumerate(zip(ours, theirs, strict=True)):
        assert list(mine) == ["row", *split], row
        del mine["row"]
        vectors = [np.array(line.pop("embedding"), np.float32) for line in (mine, split)]
        assert np.array_equal(*vectors), row
        assert mine == split, row


def test_texts_are_read_back(runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs["vectors"]
    for suffix in (".jsonl", ".jsonl.gz", ".jsonl.zst", ".csv", ".csv.gz", ".csv.zst"):
        out = tmp_path / f"all{suffix}"
        run.merge(out)
        rows = f"read_csv('{out}', allow_quoted_nulls = false)" if "csv" in suffix else f"'{out}'"
        found = duckdb.sql(f"SELECT row, id, lang, embedding IS NULL FROM {rows}").fetchall()
        due = [(r["row"], r["id"], r["lang"], r["embedding"] is None) for r in run.table().to_pylist()]
        assert found == due, suffix
    assert polars.read_ndjson(tmp_path / "all.jsonl")["embedding"].null_count() == 1
    assert polars.read_csv(tmp_path / "all.csv")["lang"].to_list() == run.table()["lang"].to_pylist()


def test_query_engines_skip_row_groups(runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "_ROW_GROUP_ROWS", 10)
    run, out = runs["vectors"], tmp_path / "all.parquet"
    run.merge(out)
    footer = pq.read_metadata(out)
    assert footer.num_row_groups > 3
    assert pq.read_schema(out).field("embedding").type == pa.list_(pa.float32(), 8)
    for group in (footer.row_group(i) for i in range(footer.num_row_groups)):
        for column in (group.column(i) for i in range(group.num_columns)):
            if not column.path_in_schema.startswith("embedding"):
                assert column.statistics.has_min_max or column.statistics.null_count == group.num_rows
    # What is cut out of a group that no answer is in is not missed.
    n = next(i for i in range(footer.row_group(0).num_columns) if footer.row_group(0).column(i).path_in_schema == "n")
    last = footer.row_group(footer.num_row_groups - 1).column(n).statistics
    assert footer.row_group(0).column(n).statistics.max < last.min
    data = bytearray(out.read_bytes())
    first = footer.row_group(0)
    begins = min(first.column(i).dictionary_page_offset or first.column(i).data_page_offset for i in range(4))
    data[begins : begins + first.total_byte_size // 2] = bytes(first.total_byte_size // 2)
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(data)
    due = [(r["id"], r["n"]) for r in run.table().to_pylist() if r["n"] >= last.min]
    assert duckdb.sql(f"SELECT id, n FROM '{damaged}' WHERE n >= {last.min}").fetchall() == due
    found = polars.scan_parquet(damaged).filter(polars.col("n") >= last.min).select("id", "n").collect()
    assert found.rows() == due


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv", ".arrow", ".lance"])
def test_chosen_rows_and_columns(runs: dict[str, Run], tmp_path: Path, suffix: str) -> None:
    run, out = runs["vectors"], tmp_path / f"some{suffix}"
    choice: dict[str, Any] = {"where": "n <= 2 OR embedding IS NULL", "columns": ["lang", "id"]}
    merged = run.merge(out, **choice, rename={"id": "der Schlüssel", "row": "zeile"})
    assert merged.rows == 4
    rows = [{"zeile": n, "lang": lang, "der Schlüssel": f"k{n}"} for n, lang in enumerate(["en", "de", None])]
    rows.append({"zeile": 17, "lang": None, "der Schlüssel": "k17"})
    assert _read(out) == rows


def _read(out: Path) -> list[dict[str, Any]]:
    if out.suffix == ".lance":
        return list(needed("lance").dataset(str(out)).to_table().to_pylist())
    read = {".parquet": "read_parquet", ".jsonl": "read_ndjson", ".csv": "read_csv", ".arrow": "read_ipc"}[out.suffix]
    return list(getattr(polars, read)(out).to_dicts())


@pytest.mark.parametrize("suffix", [s for s in BY_SUFFIX if s != ".npy"])
def test_a_condition_that_matches_nothing(runs: dict[str, Run], tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"none{suffix}"
    assert runs["vectors"].merge(out, where="n > 1000").rows == 0
    if suffix.startswith((".csv", ".tsv")):
        assert unpack(out.read_bytes(), suffix).count(b"\n") == 1
    elif suffix.startswith(".jsonl"):
        assert unpack(out.read_bytes(), suffix) == b""


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "there is no such column": ({"where": "overal <= 2"}, "where: the result has no column 'overal'"),
    "what cannot be compared": ({"where": "lang <= 2"}, "'lang' holds text; 2 is a number"),
    "a vector in a condition": ({"where": "embedding <= 2"}, "cannot be compared"),
    "no condition": ({"where": "n <="}, "where.*at the end"),
    "no such column to write": ({"columns": ["ide"]}, "has no column 'ide'"),
    "no such column to rename": ({"rename": {"ide": "x"}}, "rename: no column 'ide' is written"),
    "a column that is left out": ({"columns": ["n"], "rename": {"id": "x"}}, "rename: no column 'id' is written"),
    "a name that exists": ({"rename": {"id": "n"}}, "two columns named 'n'"),
    "a name that row has": ({"rename": {"id": "row"}}, "two columns named 'row'"),
    "one name for two": ({"rename": {"id": "x", "n": "x"}}, "two columns named 'x'"),
    "no name": ({"rename": {"id": ""}}, "gives 'id' no name"),
    "vectors as folders": ({"partition_by": "embedding"}, "'embedding' holds fixed_size_list"),
    "folders of what is left out": ({"partition_by": "lang", "columns": ["id"]}, "no column 'lang' is written"),
    "no such folders": ({"partition_by": "nn"}, "partition-by: no column 'nn' is written"),
    "a name with a slash": ({"partition_by": "n", "rename": {"n": "a/b"}}, "'a/b' has a character"),
    "no rows in a file": ({"rows_per_file": 0}, "at least 1"),
    "an unknown format": ({"format": "xlsx"}, "'xlsx' is not a format"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(runs: dict[str, Run], tmp_path: Path, case: str) -> None:
    asked, said = REFUSED[case]
    with pytest.raises(UsageError, match=said) as told:
        runs["vectors"].merge(tmp_path / "all.parquet", **asked)
    assert "\n" not in told.value.message
    assert [*tmp_path.iterdir()] == []


def test_numbers_that_are_no_folders(runs: dict[str, Run], tmp_path: Path) -> None:
    for column in ("share", "tags", "about", "raw"):
        with pytest.raises(UsageError, match=f"'{column}' holds .* no names of folders"):
            runs["nested"].merge(tmp_path / "all.parquet", partition_by=column)


def test_names_may_change_places(runs: dict[str, Run], tmp_path: Path) -> None:
    runs["vectors"].merge(tmp_path / "all.parquet", columns=["id", "lang"], rename={"id": "lang", "lang": "id"})
    table = pq.read_table(tmp_path / "all.parquet")
    assert table["lang"].to_pylist() == runs["vectors"].table()["id"].to_pylist()


def write_count(chosen: Chosen, out: str, *, quiet: bool) -> Merged:
    Path(out).write_text(f"{chosen.count()} {quiet}")
    return Merged((out,), 0, 0)


def test_a_format_is_one_entry(runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = FileKind(name="count", suffixes=(".count",), chosen=f"{__name__}:write_count")
    monkeypatch.setitem(BY_SUFFIX, ".count", (kind, "none"))
    run, out = runs["vectors"], tmp_path / "all.count"
    assert run.merge(out).files == (str(out),)
    assert out.read_text() == f"{len(run)} True"
    with pytest.raises(UsageError, match=r"write no \.count files"):
        run.merge(out, rows_per_file=2)


def test_a_name_that_says_no_format(runs: dict[str, Run], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in no suffix of a known format") as told:
        runs["vectors"].merge(tmp_path / "all.parket")
    assert "Did you mean '.parquet'?" in told.value.hint
    for kind in FILE_KINDS:
        assert all(suffix in told.value.hint for suffix in kind.suffixes)
    out = tmp_path / "all.txt"
    runs["vectors"].merge(out, format="csv.gz")
    check_csv(unpack(out.read_bytes(), ".gz"), runs["vectors"].table())


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl.gz", ".csv", ".arrow"])
def test_numbered_files(runs: dict[str, Run], tmp_path: Path, suffix: str) -> None:
    run, out = runs["windows"], tmp_path / f"all{suffix}"
    merged = run.merge(f"{out}/", rows_per_file=7)
    total = run.table().num_rows
    names = [f"part-{i:06d}{suffix}" for i in range(-(-total // 7))]
    assert merged.files == tuple(f"{out}/{name}" for name in names)
    assert sorted(path.name for path in out.iterdir()) == names
    assert merged.rows == total
    assert merged.bytes == sum(path.stat().st_size for path in out.iterdir())
    if suffix != ".arrow":
        counts = [duckdb.sql(f"SELECT count(*) FROM '{out}/{name}'").fetchall()[0][0] for name in names]
        assert counts == [min(7, total - 7 * i) for i in range(len(names))]
    if suffix == ".parquet":
        assert polars.read_parquet(f"{out}/")["row"].to_list() == run.table()["row"].to_pylist()
        assert _equal(restored(pq.read_table(out)), run.table())


def test_numbered_files_without_rows(runs: dict[str, Run], tmp_path: Path) -> None:
    merged = runs["vectors"].merge(tmp_path / "none.parquet", where="n > 1000", rows_per_file=7)
    assert (len(merged.files), merged.rows) == (1, 0)
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0
    nothing = runs["vectors"].merge(tmp_path / "nothing.parquet", where="n > 1000", partition_by="lang")
    assert (nothing.files, nothing.rows, nothing.bytes) == ((), 0, 0)


@pytest.mark.parametrize("column", ["lang", "n", "id"])
def test_folders_of_values(runs: dict[str, Run], tmp_path: Path, column: str) -> None:
    run, out = runs["vectors"], tmp_path / "all.parquet"
    merged = run.merge(out, partition_by=column)
    rows = run.table().to_pylist()
    assert len(merged.files) == len({row[column] for row in rows})
    assert all(name.endswith("/part-0.parquet") for name in merged.files)
    due = sorted(((r["row"], r["id"], r["n"], r["lang"]) for r in rows), key=str)
    asked = f"SELECT row, id, n, lang FROM read_parquet('{out}/**/*.parquet', hive_partitioning = true)"
    assert sorted(duckdb.sql(asked).fetchall(), key=str) == due
    found = polars.read_parquet(f"{out}/", hive_partitioning=True).select("row", "id", "n", "lang")
    assert sorted(found.rows(), key=str) == due
    theirs = pa.dataset.dataset(out, partitioning="hive").to_table(columns=["row", "id", "n", "lang"])
    assert sorted((tuple(row.values()) for row in theirs.to_pylist()), key=str) == due


def test_folders_are_named_as_arrow_names_them(runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs["vectors"]
    run.merge(tmp_path / "ours.parquet", partition_by="lang")
    table = run.table()
    keeping = table.filter(pa.compute.not_equal(table["lang"], "").fill_null(True))
    pa.dataset.write_dataset(
        keeping, tmp_path / "theirs", format="parquet", partitioning=["lang"], partitioning_flavor="hive"
    )
    names = {path.name for path in (tmp_path / "theirs").iterdir()}
    assert {path.name for path in (tmp_path / "ours.parquet").iterdir()} == {*names, "lang="}


@pytest.mark.parametrize(
    ("column", "names"),
    [
        ("good", ["good=__HIVE_DEFAULT_PARTITION__", "good=false", "good=true"]),
        ("day", ["day=2026-01-02", "day=2026-11-18", "day=__HIVE_DEFAULT_PARTITION__"]),
        ("order", ["order=-1", "order=7", "order=__HIVE_DEFAULT_PARTITION__"]),
    ],
)
def test_folders_of_other_types(tmp_path: Path, column: str, names: list[str]) -> None:
    """One of the columns has the name of that which the sort adds."""
    days = pa.array([datetime.date(2026, 11, 18), datetime.date(2026, 1, 2), None], pa.date32())
    table = pa.table({"row": [0, 1, 2], "good": [True, None, False], "day": days, "order": [None, 7, -1]})

    def read(columns: list[str]) -> Iterator[pa.RecordBatch]:
        return iter(table.select(["row", *columns]).to_batches())

    chosen = choose(Result(table.schema.remove(0), 3, (), read))
    out = str(tmp_path / "all.parquet")
    merged = write_folder(chosen, out, parquet_files.open_parquet, ".parquet", None, column, quiet=True)
    assert (merged.rows, sorted(path.name for path in Path(out).iterdir())) == (3, names)
    kinds = pa.dataset.partitioning(pa.schema([table.schema.field(column)]), flavor="hive")
    found = pa.dataset.dataset(out, partitioning=kinds).to_table(columns=table.schema.names).sort_by("row")
    assert found.to_pylist() == table.to_pylist()


def test_folders_of_numbered_files(runs: dict[str, Run], tmp_path: Path) -> None:
    out = tmp_path / "all.csv"
    runs["vectors"].merge(out, partition_by="lang", rows_per_file=5, rename={"lang": "sprache"}, where="lang = 'de'")
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*.csv")) == [
        f"sprache=de/part-{i:06d}.csv" for i in range(3)
    ]
    rows = [row for i in range(3) for row in polars.read_csv(out / f"sprache=de/part-{i:06d}.csv")["row"]]
    assert rows == list(range(1, 60, 5))


@pytest.mark.parametrize("asked", [{"rows_per_file": 7}, {"partition_by": "lang"}])
@pytest.mark.parametrize("suffix", [".npy", ".lance"])
def test_no_folders_of_these(runs: dict[str, Run], tmp_path: Path, suffix: str, asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"write no {suffix} files"):
        runs["vectors"].merge(tmp_path / f"all{suffix}", **asked)
    assert [*tmp_path.iterdir()] == []


def test_places_that_are_taken(runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs["vectors"]
    file, folder, empty = tmp_path / "file.parquet", tmp_path / "folder.parquet", tmp_path / "empty.parquet"
    file.write_text("before")
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    empty.mkdir()
    for name in ("folder.parquet", "folder.parquet/"):
        with pytest.raises(UsageError, match="is a folder"):
            run.merge(f"{tmp_path}/{name}")
    with pytest.raises(UsageError, match=r"folder\.parquet has files") as told:
        run.merge(folder, rows_per_file=7)
    assert "another place" in told.value.hint
    with pytest.raises(UsageError, match=r"file\.parquet is a file"):
        run.merge(file, rows_per_file=7)
    assert file.read_text() == "before"
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    assert len(run.merge(empty, rows_per_file=30).files) == 2
    run.merge(file)
    assert pq.read_table(file).num_rows == 60
    with pytest.raises(UsageError, match="among the run's own files"):
        run.merge(f"{run.ledger.url}/parts/mine.parquet", rows_per_file=7)


@pytest.mark.parametrize("suffix", [s for s, (kind, _) in BY_SUFFIX.items() if kind.rows])
def test_files_in_other_stores(runs: dict[str, Run], tmp_path: Path, suffix: str) -> None:
    run, place = runs["vectors"], f"memory://{uuid.uuid4().hex}"
    merged = run.merge(f"{place}/all{suffix}", where="n < 20")
    run.merge(tmp_path / f"all{suffix}", where="n < 20")
    store, key = locate(f"{place}/all{suffix}")
    assert store.get(key) == (tmp_path / f"all{suffix}").read_bytes()
    assert (merged.files, merged.bytes) == ((f"{place}/all{suffix}",), len(store.get(key)))


def test_folders_in_other_stores(runs: dict[str, Run]) -> None:
    run, place = runs["vectors"], f"memory://{uuid.uuid4().hex}"
    merged = run.merge(f"{place}/all.parquet", partition_by="lang", rows_per_file=9)
    there = open_store(f"{place}/all.parquet")
    assert {f"{place}/all.parquet/{entry.key}" for entry in there.list()} == {*merged.files}
    assert sum(pq.read_table(io.BytesIO(there.get(entry.key))).num_rows for entry in there.list()) == 60
    with pytest.raises(UsageError, match="has files") as told:
        run.merge(f"{place}/all.parquet", rows_per_file=9)
    assert PARTIAL not in told.value.message
    with pytest.raises(UsageError, match="written to a disk or s3"):
        run.merge(f"{place}/all.lance")


def interrupted(self: Chosen, label: str, *, quiet: bool) -> Iterator[pa.RecordBatch]:
    yield from itertools.islice(_READ(self, label, quiet=quiet), 1)
    raise KeyboardInterrupt


def test_a_dataset_that_is_not_completed(runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed("lance")
    monkeypatch.setattr(Chosen, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runs["vectors"].merge(tmp_path / "all.lance")
    assert [*tmp_path.iterdir()] == []


def test_a_write_that_fails_in_a_store_is_marked(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    run, place = runs["vectors"], f"memory://{uuid.uuid4().hex}/all.parquet"
    with monkeypatch.context() as patch:
        patch.setattr(Chosen, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.merge(place, rows_per_file=2)
    assert open_store(place).head(PARTIAL) is not None
    with pytest.raises(UsageError, match="not completed: it has _PARTIAL"):
        run.merge(place, rows_per_file=2)


def test_a_remote_run(tmp_path: Path) -> None:
    from shardmill import start
    from shardmill.testing import InProcessEngine

    place = f"memory://{uuid.uuid4().hex}"
    run = start(SHAPES["vectors"](tmp_path / "items.jsonl"), f"{place}/run", engine=InProcessEngine())
    run.merge(f"{place}/all.jsonl", where="n = 3", columns=["id"])
    assert json.loads(open_store(place).get("all.jsonl")) == {"row": 3, "id": "k3"}


@pytest.mark.services
def test_in_s3(runs: dict[str, Run], s3_server: str) -> None:
    lance = needed("lance")
    run, place = runs["vectors"], f"{s3_server}/{uuid.uuid4().hex}"
    merged = run.merge(f"{place}/all.lance", where="n < 20")
    found = lance.dataset(f"{place}/all.lance", storage_options=options_for_others(place)).to_table()
    assert found["id"].to_pylist() == [f"k{i}" for i in range(20)]
    assert merged.bytes == sum(entry.size for entry in open_store(f"{place}/all.lance").list()) > 0
    with pytest.raises(UsageError, match="has files"):
        run.merge(f"{place}/all.lance")
    folders = run.merge(f"{place}/all.parquet", partition_by="lang")
    assert {f"{place}/all.parquet/{entry.key}" for entry in open_store(f"{place}/all.parquet").list()} == {
        *folders.files
    }
    run.merge(f"{place}/all.csv.gz")
    check_csv(unpack(open_store(place).get("all.csv.gz"), ".gz"), run.table())


def test_a_step_after_the_last_shard_writes_every_kind() -> None:
    assert set(WRITTEN) == set(BY_SUFFIX) - {".lance"}
