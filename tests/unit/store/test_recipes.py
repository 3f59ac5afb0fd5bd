"""Parts whose rows lie in other parts are read like any other."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.core.errors import CorruptState
from shardmill.store.parts import PartFile, open_part
from shardmill.store.recipes import RECIPE, PartName, Recipe, RecipeBuilder, as_ranges, run_of

SCHEMA = pa.schema({"word": pa.string(), "vector": pa.list_(pa.float32(), 3), "item": pa.int64()})


def make_rows(name: str, count: int) -> pa.Table:
    vectors = np.arange(3 * count, dtype=np.float32) + len(name)
    columns = [[f"{name} {n}" for n in range(count)], pa.FixedSizeListArray.from_arrays(vectors, 3), range(count)]
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)


def write_part(path: Path, rows: pa.Table, recipe: Recipe | None = None, group: int = 7) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = PartFile(path.open("wb"))
    writer = pq.ParquetWriter(file, SCHEMA, write_page_checksum=True)
    writer.write_table(rows, row_group_size=group)
    if recipe is not None:
        writer.add_key_value_metadata({RECIPE.decode(): recipe.encode().decode()})
    with file.footer():
        writer.close()
    file.close()


def put_together(tables: list[pa.Table], ranges: list[tuple[int, int, int, int]]) -> pa.Table:
    """The slow, plain way."""
    pieces = []
    for part, first, rows, shift in ranges:
        piece = tables[part].slice(first, rows)
        pieces.append(piece.set_column(2, "item", pa.array([n + shift for n in piece.column("item").to_pylist()])))
    return pa.concat_tables([SCHEMA.empty_table(), *pieces])


sizes = (11, 30, 8000)
ranges = st.integers(0, 2).flatmap(
    lambda part: st.tuples(
        st.just(part), st.integers(0, sizes[part] - 1), st.integers(1, sizes[part]), st.integers(-3, 3)
    )
)


@given(st.lists(ranges, max_size=12), st.integers(1, 5000), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_come_from_where_they_are(
    tmp_path: Path, ranges: list[tuple[int, int, int, int]], batch: int, some: bool
) -> None:
    tables = [make_rows(name, size) for name, size in zip(("own", "one", "other"), sizes, strict=True)]
    ranges = [(part, first, min(rows, sizes[part] - first), shift) for part, first, rows, shift in ranges]
    names = (PartName(1, "parts/000000.a.parquet", "", 9.0), PartName(2, "parts/000003.b-1.parquet", "", 9.0))
    recipe = Recipe(names, np.array(ranges, np.int64).reshape(-1, 4), "item")
    assert Recipe.decode(recipe.encode()).ranges.tolist() == recipe.ranges.tolist()
    write_part(tmp_path / "parts/000000.a.parquet", tables[1])
    write_part(tmp_path / "editions/000002/parts/000003.b-1.parquet", tables[2], group=3000)
    place = tmp_path / "editions/000003/parts/000000.c.parquet"
    write_part(place, tables[0], recipe)
    expected = put_together(tables, ranges)
    columns = ["item", "word"] if some else None
    with place.open("rb") as file:
        opened, marked = open_part(file, str(place), "digest")
        with opened:
            assert marked
            assert opened.metadata.num_rows == expected.num_rows == recipe.rows
            found = [*opened.iter_batches(batch, columns=columns)]
            assert all(0 < rows.num_rows <= batch for rows in found)
            schema = opened.schema_arrow if columns is None else None
            table = pa.Table.from_batches(found, schema) if found or schema else expected.select(["word", "item"])
            assert table.equals(expected.select(table.column_names))
            assert opened.read(columns).num_rows == expected.num_rows
            first = 0
            for group in range(opened.metadata.num_row_groups):
                rows = opened.read_row_group(group)
                assert rows.num_rows == opened.metadata.row_group(group).num_rows
                assert rows.equals(expected.slice(first, rows.num_rows))
                first += rows.num_rows
            if expected.num_rows:
                sizes_of = [opened.metadata.row_group(0).column(i).total_compressed_size for i in range(3)]
                assert min(sizes_of) >= 0


def test_recipes_of_consecutive_rows_are_joined() -> None:
    a, b = PartName(1, "parts/000000.a.parquet", "1", 1.0), PartName(1, "parts/000001.b.parquet", "2", 10.0)
    builder = RecipeBuilder()
    builder.add(None, 3)
    builder.add(Recipe((a,), np.array([[1, 5, 2, 0], [0, 0, 1, 0]])), 1)
    builder.add(None, 2)
    builder.add(Recipe((b, a), np.array([[2, 7, 4, 0], [2, 11, 1, 0], [1, 0, 1, 0]])), 0)
    made = builder.make()
    assert made is not None
    assert made.parts == (a, b)
    assert made.ranges.tolist() == [[0, 0, 3, 0], [1, 5, 2, 0], [0, 3, 3, 0], [1, 7, 5, 0], [2, 0, 1, 0]]
    assert (made.rows, made.own_rows, made.borrowed_bytes) == (14, 6, 7 + 10)
    own = RecipeBuilder()
    own.add(None, 3)
    assert own.make() is None


def test_rows_become_ranges() -> None:
    columns = np.array([[1, 4, 0], [1, 5, 0], [1, 6, 1], [0, 0, 0], [2, 1, 0], [2, 3, 0]])
    found = as_ranges(*columns.T).tolist()
    assert found == [[1, 4, 2, 0], [1, 6, 1, 1], [0, 0, 1, 0], [2, 1, 1, 0], [2, 3, 1, 0]]
    assert as_ranges(*np.zeros((3, 0), np.int64)).shape == (0, 4)


@pytest.mark.parametrize("place", ["runs/a/parts/000000.x.parquet", "runs/a/editions/000012/parts/000000.x.parquet"])
def test_parts_know_their_run(place: str) -> None:
    assert run_of(place) == "runs/a"


@pytest.mark.parametrize(
    "change",
    [
        {"parts": [[1, "../../etc/passwd", "", 1.0]]},
        {"parts": [[0, "parts/000000.a.parquet", "", 1.0]]},
        {"parts": [["x"]]},
        {"parts": []},
        {"ranges": "AAAA"},
        {"ranges": None},
    ],
)
def test_a_recipe_that_names_anything_else_is_refused(change: dict[str, object]) -> None:
    recipe = Recipe((PartName(1, "parts/000000.a.parquet", "", 1.0),), np.array([[1, 0, 5, 0]]))
    with pytest.raises(ValueError, match="its recipe"):
        Recipe.decode(json.dumps({**json.loads(recipe.encode()), **change}).encode())


def test_a_part_that_is_gone_or_too_short_is_told(tmp_path: Path) -> None:
    place = tmp_path / "editions/000002/parts/000000.b.parquet"
    recipe = Recipe((PartName(1, "parts/000000.a.parquet", "", 1.0),), np.array([[1, 0, 5, 0]]))
    write_part(place, make_rows("own", 0), recipe)
    data = io.BytesIO(place.read_bytes())
    with pytest.raises(CorruptState, match=r"run|parts/000000.a.parquet is gone"):
        open_part(data, str(place), "digest")[0].read()
    write_part(tmp_path / "parts/000000.a.parquet", make_rows("one", 4))
    with pytest.raises(ValueError, match="more rows than a part"):
        open_part(data, str(place), "digest")[0].read()
