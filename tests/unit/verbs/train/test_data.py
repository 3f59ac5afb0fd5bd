"""What the rows of a source are to a training run: groups, labels, and whether there is anything to learn."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import SourceError, SpecError, TooManyErrors
from shardmill.verbs.train.params import TrainParams
from tests.support.libraries import needed
from tests.support.training import topic_pairs

needed("torch")

from shardmill.verbs.train.data import Pairs, read_pairs  # noqa: E402

ROWS = topic_pairs(24)


def read(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Pairs:
    made = TrainParams(**{"model": "m", "columns": ("question", "passage"), "held_out": 0.2, **options})
    table = pa.Table.from_pylist([{"row": i, **row} for i, row in enumerate(rows)])
    pq.write_table(table.append_column("why", pa.nulls(len(rows), pa.string())), folder / "rows.parquet")
    return read_pairs(str(folder / "rows.parquet"), made, ("",) * len(made.columns))


def changed(**values: Any) -> list[dict[str, Any]]:
    """The rows with other values, each given or made of the row's number."""
    return [
        {**row, **{name: value(i) if callable(value) else value for name, value in values.items()}}
        for i, row in enumerate(ROWS)
    ]


def test_rows_without_a_group_are_on_one_side(tmp_path: Path) -> None:
    rows = changed(title=lambda i: None if i % 4 == 0 else f"title {i % 5}")
    for seed in range(4):
        learnt, held = read(tmp_path, rows, split_by="title", seed=seed).split()
        assert sorted([*learnt, *held]) == list(range(24))
        assert len(held)
        assert set(range(0, 24, 4)) <= set((learnt if 0 in learnt else held).tolist())
        assert not {rows[i]["title"] for i in learnt} & {rows[i]["title"] for i in held}


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        (lambda i: bool(i % 2), lambda i: i % 2),
        (lambda i: Decimal(i) / 100, lambda i: i / 100),
    ],
)
def test_labels_may_be_truths_and_decimals(labels: Any, wanted: Any, tmp_path: Path) -> None:
    batch = read(tmp_path, changed(score=labels), label="score").batch(range(24))
    np.testing.assert_allclose(batch.labels, [wanted(i) for i in range(24)], rtol=1e-6)


def test_labels_that_are_no_cosine_are_refused(tmp_path: Path) -> None:
    rows = changed(score=lambda i: i % 6)
    with pytest.raises(SpecError, match=r"'score' has labels from 0 to 5; .*cosine") as caught:
        read(tmp_path, rows, label="score", loss="cosine")
    assert "Leave out --loss" in str(caught.value.hint)
    assert len(read(tmp_path, rows, label="score")) == 24
    assert len(read(tmp_path, changed(score=lambda i: i % 3 - 1), label="score", loss="cosine")) == 24


def test_labels_without_any_number_name_the_label(tmp_path: Path) -> None:
    with pytest.raises(TooManyErrors) as caught:
        read(tmp_path, changed(score=float("nan")), label="score")
    assert "--label" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        ({"passage": "the same"}, {}, "have the same text in 'passage'"),
        ({"question": "the same"}, {}, "have the same text in 'question'"),
        ({"score": 1.0}, {"label": "score"}, "have the same label in 'score'"),
    ],
)
def test_items_that_teach_nothing_are_refused(
    values: dict[str, Any], options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=f"All 24 items to train on {words}"):
        read(tmp_path, changed(**values), held_out=0, **options)


def test_a_part_that_teaches_nothing_is_refused(tmp_path: Path) -> None:
    rows = changed(passage=lambda i: f"passage {i // 12}")
    with pytest.raises(SourceError, match="All 12 items to train on have the same text in 'passage'") as caught:
        read(tmp_path, rows, held_out=0.5)
    assert "--held-out" in str(caught.value.hint)


def test_a_wrong_text_of_each_item_is_enough_to_learn_from(tmp_path: Path) -> None:
    rows = changed(passage="the same")
    assert len(read(tmp_path, rows, columns=("question", "passage", "negative"), held_out=0)) == 24
    assert len(read(tmp_path, rows, hard_negatives="run", held_out=0)) == 24


def test_groups_of_mined_negatives_are_refused() -> None:
    with pytest.raises(ValueError, match="none called negative"):
        TrainParams(model="m", columns=("question", "passage"), hard_negatives="run", split_by="negative")
