"""One contract over every format and store: each row exactly once, in order, wherever the cuts fall."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.sources import Fields, discover, open_source
from tests.support.sources import FIELDS, NEAR_ROOTS, WRITERS, Row, as_csv, put, read_all, rows_strategy, s3_root

SOURCE_ROOTS = [*NEAR_ROOTS, pytest.param(s3_root, marks=pytest.mark.services)]


@pytest.fixture(params=NEAR_ROOTS, ids=lambda root: root.__name__)
def near_root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """For what is tried with many examples: a server would take a minute."""
    return str(request.param(tmp_path))


@pytest.fixture(params=SOURCE_ROOTS, ids=lambda root: root.__name__)
def source_root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param is s3_root:
        request.getfixturevalue("s3_server")
    return str(request.param(tmp_path))


@pytest.fixture(params=WRITERS)
def format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(rows_strategy, min_size=1, max_size=2),
    target_bytes=st.integers(1, 400),
    newline=st.sampled_from(["\n", "\r\n"]),
    final=st.booleans(),
)
def test_every_row_is_read_once_in_order(
    near_root: str, format: str, files: list[list[Row]], target_bytes: int, newline: str, final: bool
) -> None:
    run = uuid.uuid4().hex
    places = []
    for i, rows in enumerate(files):
        places.append(f"{near_root}/{run}-{i}.{format}")
        put(near_root, f"{run}-{i}.{format}", WRITERS[format](rows, newline, final))
    found = read_all(discover(places, FIELDS), target_bytes)
    assert found == [
        {**row, "body": row["body"] if str(row["body"]).strip() else None} for rows in files for row in rows
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.text(st.sampled_from("ab é界\t\x00"), max_size=12), min_size=1, max_size=40),
    target_bytes=st.integers(1, 60),
    newline=st.sampled_from(["\n", "\r\n"]),
    final=st.booleans(),
)
def test_text_lines_are_read_once_with_their_line_numbers(
    near_root: str, lines: list[str], target_bytes: int, newline: str, final: bool
) -> None:
    lines = [*lines, "end"]
    name = f"{uuid.uuid4().hex}.txt"
    put(near_root, name, (newline.join(lines) + (newline if final else "")).encode())
    fields = Fields(text="line")
    source = open_source(discover([f"{near_root}/{name}"], fields), fields)
    found, before = [], 0
    for shard in source.shards(target_bytes):
        for batch in source.read(shard):
            found += [(before, line, text) for line, text in zip(batch.lines, batch.texts.to_pylist(), strict=True)]
        before += sum(batch.line_count for batch in source.read(shard))
    assert before == len(lines)
    assert [(at + line, text) for at, line, text in found] == [(i, t) for i, t in enumerate(lines, 1) if t.strip()]


def test_line_numbers_of_quoted_records_are_those_of_the_file(source_root: str) -> None:
    rows = [{"key": str(i), "body": 'a\nb, "c"\n' * (i % 3) + "d", "n": i} for i in range(300)]
    data = as_csv(rows, "\n", True)
    put(source_root, "q.csv", data)
    source = open_source(discover([f"{source_root}/q.csv"], FIELDS), FIELDS)
    shards = source.shards(1000)
    assert len(shards) > 5
    before, found = 0, []
    for shard in shards:
        batches = list(source.read(shard))
        found += [before + line for batch in batches for line in batch.lines]
        before += sum(batch.line_count for batch in batches)
    assert before == data.count(b"\n")
    starts = [data[: data.index(f"\n{i},".encode()) + 1].count(b"\n") + 1 for i in range(300)]
    assert found == starts


def test_a_folder_is_read_in_the_order_of_its_names(source_root: str, format: str) -> None:
    for name in ("b", "a", "c"):
        put(source_root, f"{name}.{format}", WRITERS[format]([{"key": name, "body": name, "n": 1}], "\n", True))
    put(source_root, "notes.md", b"# not data")
    for place in (source_root, f"{source_root}/", f"{source_root}/*.{format}", f"{source_root}/[abc].*"):
        stat = discover([place], FIELDS)
        assert [f.place.rpartition("/")[2] for f in stat.files] == [f"{n}.{format}" for n in "abc"]
        assert [row["key"] for row in read_all(stat, 10)] == ["a", "b", "c"]


def test_many_rows_come_in_bounded_batches(source_root: str, format: str) -> None:
    rows = [{"key": str(i), "body": f"text {i}" + "x" * (i % 50), "n": i} for i in range(3000)]
    put(source_root, f"many.{format}", WRITERS[format](rows, "\n", True))
    stat = discover([f"{source_root}/many.{format}"], FIELDS)
    assert read_all(stat, 20_000) == rows
    assert read_all(stat, 10**9) == rows
