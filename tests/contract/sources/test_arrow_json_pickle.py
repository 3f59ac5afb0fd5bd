"""The contract of sources over Arrow, JSON arrays, pickles and saved datasets; and what each of them refuses."""

from __future__ import annotations

import datetime
import itertools
import json
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.core.errors import SourceError, StaleResume
from shardmill.plan.spec import make_spec
from shardmill.run import start
from shardmill.sources import Fields, SourceStat, count_lines, discover, open_source
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_spec
from tests.support.more_sources import WRITERS, as_arrow, as_arrow_stream, as_json, as_pickle
from tests.support.sources import NEAR_ROOTS, Row, put, read_all, rows_strategy

FIELDS = Fields(text="body", id=("key",), keep=("n:int64",))
BODY = Fields(text="body")


@pytest.fixture(params=NEAR_ROOTS, ids=lambda root: root.__name__)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param(tmp_path))


@pytest.fixture(params=WRITERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def refusal(place: object, fields: Fields = BODY, format: str | None = None) -> str:
    with pytest.raises(SourceError) as caught:
        open_source(discover([str(place)], fields, format), fields).shards(100)
    return str(caught.value)


def reasons(stat: SourceStat, fields: Fields, **options: int) -> list[str | None]:
    source = open_source(stat, fields, **options)
    batches = [batch for shard in source.shards(10**6) for batch in source.read(shard)]
    return [batch.bad.get(i) for batch in batches for i in range(len(batch))]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.lists(rows_strategy, min_size=1, max_size=2), target_bytes=st.integers(1, 400))
def test_every_row_is_read_once_in_order(root: str, kind: str, files: list[list[Row]], target_bytes: int) -> None:
    extension, write = WRITERS[kind]
    run = uuid.uuid4().hex
    for i, rows in enumerate(files):
        put(root, f"{run}-{i}.{extension}", write(rows))
    stat = discover([f"{root}/{run}-{i}.{extension}" for i in range(len(files))], FIELDS)
    found = read_all(stat, target_bytes)
    assert found == [
        {**row, "body": row["body"] if str(row["body"]).strip() else None} for rows in files for row in rows
    ]
    counted = [count_lines(stat, file) for file in stat.files]
    assert counted in ([len(rows) for rows in files], [None] * len(files))


def test_any_number_of_shards_gives_the_same_rows(root: str, kind: str) -> None:
    rows: list[Row] = [{"key": str(i), "body": f"text {i}" + "x" * (i % 50), "n": i} for i in range(3000)]
    extension, write = WRITERS[kind]
    put(root, f"many.{extension}", write(rows))
    stat = discover([f"{root}/many.{extension}"], FIELDS)
    for target_bytes in (3_000, 20_000, 10**9):
        assert read_all(stat, target_bytes) == rows
    assert len(open_source(stat, FIELDS).shards(3_000)) > 8


def test_a_folder_is_read_in_the_order_of_its_names(root: str, kind: str) -> None:
    extension, write = WRITERS[kind]
    for name in ("b", "a", "c"):
        put(root, f"{name}.{extension}", write([{"key": name, "body": name, "n": 1}]))
    put(root, f"empty.{extension}", b"")
    put(root, "notes.md", b"# not data")
    assert [row["key"] for row in read_all(discover([root], FIELDS), 10)] == ["a", "b", "c"]


def test_a_file_that_changes_is_noticed(tmp_path: Path, kind: str) -> None:
    extension, write = WRITERS[kind]
    place = tmp_path / f"a.{extension}"
    place.write_bytes(write([{"key": "a", "body": "b", "n": 1}]))
    source = open_source(discover([str(place)], FIELDS), FIELDS)
    shards = source.shards(100)
    place.write_bytes(write([{"key": "a", "body": "other", "n": 1}] * 9))
    with pytest.raises(StaleResume):
        list(source.read(shards[0]))


def test_a_file_cut_anywhere_is_refused(tmp_path: Path, kind: str) -> None:
    extension, write = WRITERS[kind]
    data = write([{"key": str(i), "body": "text " * 5, "n": i} for i in range(20)]).rstrip()
    for stop in {*range(8, len(data) - 1, 97), len(data) - 1, len(data) - 8, len(data) // 2}:
        place = tmp_path / f"{stop}.{extension}"
        place.write_bytes(data[:stop])
        assert "truncated" in (text := refusal(place)) or "cannot be read" in text


def test_formats_named_by_hand(tmp_path: Path) -> None:
    rows: list[Row] = [{"key": "a", "body": "b", "n": 1}]
    for format, write in (("arrow", as_arrow_stream), ("json", as_json), ("pickle", as_pickle)):
        (tmp_path / "data.bin").write_bytes(write(rows))
        assert discover([str(tmp_path / "data.bin")], FIELDS, format).format == format
    assert "not a JSON array" in refusal(tmp_path / "data.bin", format="json")
    assert "neither an Arrow file nor an Arrow stream" in refusal(tmp_path / "data.bin", format="arrow")


def test_arrow_types_carry_over(tmp_path: Path) -> None:
    when = pa.array([datetime.datetime(2024, 1, 2), None], pa.timestamp("us", "UTC"))
    table = pa.table({"body": ["a", "b"], "when": when, "tags": [["x"], []], "n": pa.array([1, 2], pa.int16())})
    (tmp_path / "a.arrow").write_bytes(as_arrow(table, 1, stream=True))
    fields = Fields(text="body", keep=("when", "tags", "n"))
    source = open_source(discover([str(tmp_path / "a.arrow")], fields), fields)
    kept = [batch.kept for shard in source.shards(1) for batch in source.read(shard)]
    assert pa.Table.from_batches(kept).equals(table.select(["when", "tags", "n"]))


def test_mixed_columns_in_arrow_files(tmp_path: Path) -> None:
    for name, table in (("a", pa.table({"body": ["x"], "n": [1]})), ("b", pa.table({"text": ["x"], "n": [1]}))):
        (tmp_path / f"{name}.arrow").write_bytes(as_arrow(table, 1, stream=False))
    assert "no field 'body' in b.arrow" in refusal(tmp_path)
    assert "has type int64, not text" in refusal(tmp_path / "a.arrow", Fields(text="n"))
    (tmp_path / "b.arrow").write_bytes(as_arrow(pa.table({"body": ["y"], "n": ["two"]}), 1, stream=True))
    fields = Fields(text="body", keep=("n",))
    first, second = reasons(discover([str(tmp_path)], fields), fields)
    assert first is None
    assert second
    assert "'n' is \"two\", which int64 cannot hold" in second


def test_damage_inside_an_arrow_file_is_refused_and_bad_utf8_is_a_bad_row(tmp_path: Path) -> None:
    place = tmp_path / "a.arrow"
    data = as_arrow(pa.table({"body": ["abcdef", "ghijkl", "mnopqr"]}), 9, stream=True)
    offsets = np.array([0, 6, 12, 18], np.int32).tobytes()
    place.write_bytes(data.replace(offsets, np.array([0, 6, 2**30, 18], np.int32).tobytes()))
    source = open_source(discover([str(place)], BODY), BODY)
    with pytest.raises(SourceError, match="not readable Arrow"):
        list(source.read(source.shards(10**6)[0]))
    place.write_bytes(data.replace(b"ghijkl", b"ghi\xff\xfel"))
    assert reasons(discover([str(place)], BODY), BODY) == [None, "'body' is not valid UTF-8", None]
    place.write_bytes(data.replace(b"body", b"b\xffdy"))
    assert "not readable Arrow" in refusal(place)
    place.write_bytes(data + b"more")
    assert "4 bytes follow" in refusal(place)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10**6), value=st.integers(0, 255), stream=st.booleans())
def test_a_changed_byte_in_an_arrow_file_never_ends_the_process(
    tmp_path: Path, at: int, value: int, stream: bool
) -> None:
    data = bytearray(as_arrow(pa.table({"body": ["abc", "de", "f"] * 4}), 5, stream))
    data[at % len(data)] = value
    place = tmp_path / f"{uuid.uuid4().hex}.arrow"
    place.write_bytes(data)
    try:
        source = open_source(discover([str(place)], BODY), BODY)
        for shard in source.shards(100):
            list(source.read(shard))
    except SourceError:
        pass


def test_replaced_dictionaries_in_a_stream(tmp_path: Path) -> None:
    pieces = [pa.array([f"{i}-{j % 2}" for j in range(4)]).dictionary_encode() for i in range(5)]
    schema = pa.schema({"body": pieces[0].type})
    with pa.ipc.new_stream(tmp_path / "a.arrows", schema) as writer:
        for piece in pieces:
            writer.write_batch(pa.record_batch([piece], schema=schema))
    source = open_source(discover([str(tmp_path / "a.arrows")], BODY), BODY)
    shards = source.shards(1)
    assert len(shards) == 20
    texts = [text for shard in shards for batch in source.read(shard) for text in batch.texts.to_pylist()]
    assert texts == [f"{i}-{j % 2}" for i in range(5) for j in range(4)]


def save(folder: Path, parts: list[pa.Table], **state: object) -> Path:
    """A folder as `datasets` 2 to 5 writes it."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{len(parts):05d}.arrow" for i in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        (folder / name).write_bytes(as_arrow(part, 2, stream=True))
    (folder / "dataset_info.json").write_text('{"features": {}}')
    files = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "1", "_split": None}
    (folder / "state.json").write_text(json.dumps({**files, **state}))
    return folder


def parts_of(count: int) -> list[pa.Table]:
    return [pa.table({"body": [f"{i}-{j}" for j in range(5)], "n": range(5)}) for i in range(count)]


@pytest.mark.parametrize("format", [None, "datasets"])
def test_a_saved_dataset_is_read_in_its_own_order(tmp_path: Path, format: str | None) -> None:
    folder = save(tmp_path / "saved", parts_of(3))
    state = json.loads((folder / "state.json").read_text())
    state["_data_files"].reverse()
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "cache-1.arrow").write_bytes(b"not part of it")
    source = open_source(discover([str(folder)], BODY, format), BODY)
    texts = [t for shard in source.shards(1) for batch in source.read(shard) for t in batch.texts.to_pylist()]
    assert texts == [f"{i}-{j}" for i in (2, 1, 0) for j in range(5)]


def test_a_saved_dataset_behind_a_url(tmp_path: Path) -> None:
    root = f"memory://saved-{uuid.uuid4().hex}"
    for path in save(tmp_path / "saved", parts_of(2)).iterdir():
        put(root, f"deep/{path.name}", path.read_bytes())
    assert len(read_all(discover([f"{root}/deep/"], BODY), 100, BODY)) == 10


def test_saved_datasets_that_are_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "dict/train", parts_of(2))
    (tmp_path / "dict/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert f"Name one of them: {tmp_path}/dict/train, {tmp_path}/dict/test" in refusal(tmp_path / "dict")
    shuffled = save(tmp_path / "shuffled", parts_of(1), _indices_files=[{"filename": "indices.arrow"}])
    assert "flatten_indices()" in refusal(shuffled)
    (folder / "data-00001-of-00002.arrow").unlink()
    assert "has no data-00001-of-00002.arrow, which its state.json names" in refusal(folder)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "../../shuffled/state.json"}]}')
    assert "has no ../../shuffled/state.json" in refusal(folder)
    (folder / "state.json").write_text('{"_data_files": 7}')
    assert "does not name its data files" in refusal(folder)
    (folder / "state.json").write_text("{")
    assert "is not a JSON object" in refusal(folder)
    (folder / "state.json").unlink()
    assert "has no state.json" in refusal(folder)
    assert "has no state.json" in refusal(folder, format="datasets")
    assert discover([f"{folder}/*.arrow"], BODY).format == "arrow"


def test_a_truncated_array_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    place.write_text('[{"body": "a"}, {"body": "b"}, {"bo')
    assert "a.json is truncated: it ends at byte 35 inside the array, after 2 complete elements" in refusal(place)
    place.write_text('[{"body": "a"}] [{"body": "b"}]')
    assert "the array ends at byte 15, but more data follows" in refusal(place)
    place.write_text("[ \n ]")
    assert "no rows" in refusal(place)
    place.write_text('["a", "b"]')
    assert "does not look like an array of JSON objects: the element is JSON, but not an object" in refusal(place)
    place.write_text('"a"')
    assert "neither an array nor one JSON object per line" in refusal(place)


def test_bad_elements_are_bad_rows(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    rows = ['{"body": "a"}', '{"body": }', "7", "", '{"body": 7}', '{"other": 1}', '{"body": "' + "x" * 99 + '"}', "{]"]
    place.write_text("[" + ",".join(rows) + ",\n]")
    stat = discover([str(place)], BODY)
    assert reasons(stat, BODY, max_item_bytes=60) == [
        None,
        "broken JSON: Expecting value at column 10",
        "the element is JSON, but not an object",
        "broken JSON: Expecting value at column 1",
        "'body' is a number, not text",
        "no field 'body'",
        "the element is 0.0 MB, over the limit of 0.0 MB",
        "broken JSON: Expecting property name enclosed in double quotes at column 2",
    ]
    assert count_lines(stat, stat.files[0]) == 8


json_values = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(st.sampled_from('a\\",[]{}é\n'), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(values=st.lists(json_values, max_size=6), block_bytes=st.integers(1, 20), indent=st.sampled_from([None, 1]))
def test_elements_end_where_json_says(values: list[object], block_bytes: int, indent: int | None) -> None:
    from shardmill.sources.json.scan import ElementScanner

    data = json.dumps(values, indent=indent).encode()
    scanner, commas, close = ElementScanner(), [], None
    for at in range(1, len(data), block_bytes):
        found = scanner.scan(data[at : at + block_bytes])
        commas += [at + comma for comma in found.commas]
        close = at + found.close if found.close is not None else None
    assert close == len(data) - 1
    bounds = [0, *commas, close]
    pieces = [data[a + 1 : b] for a, b in itertools.pairwise(bounds)]
    assert [json.loads(piece) for piece in pieces if piece.strip()] == values


def test_a_large_array_is_read_in_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    place = tmp_path / "a.json"
    with open(place, "w") as file:
        file.write("[")
        for i in range(4_000):
            file.write(("," if i else "") + json.dumps({"body": f"{i} " + "word " * 2000}))
        file.write("]")
    source = open_source(discover([str(place)], BODY), BODY)
    tracemalloc.start()
    rows = sum(len(batch) for shard in source.shards(10**9) for batch in source.read(shard))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == 4_000
    assert peak < place.stat().st_size


@pytest.mark.parametrize("kind", ["arrow stream", "json", "pickle"])
def test_a_run_is_proved_against_its_source(tmp_path: Path, kind: str) -> None:
    extension, write = WRITERS[kind]
    rows: list[Row] = [{"key": f"k{i}", "body": f"text {i}", "n": i} for i in range(200)]
    place = tmp_path / f"items.{extension}"
    place.write_bytes(write(rows))
    work = {**fake_spec(str(place)).work.model_dump(), "text": "body", "id": "key", "keep": "n"}
    run = start(make_spec(work, {"shard_bytes": 1_000}), tmp_path / "run", engine=InProcessEngine())
    report = run.verify()
    assert report.verified, report.checks
    assert run.table().select(["key", "n"]).to_pylist() == [{"key": row["key"], "n": row["n"]} for row in rows]
