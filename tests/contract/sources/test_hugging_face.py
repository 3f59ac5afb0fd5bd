"""Datasets of Hugging Face as data in memory: whole, streamed, and in splits."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.core.errors import SourceError
from shardmill.run.spilling import keep_source
from shardmill.sources.held import find_held
from shardmill.testing import check_source
from tests.support.corpora import fake_rows
from tests.support.libraries import needed

needed("datasets")

import datasets  # noqa: E402

ROWS = fake_rows(30)


def test_datasets_are_read_as_they_give_their_rows(tmp_path: Path) -> None:
    data = datasets.Dataset.from_list(ROWS)
    chosen = data.shuffle(seed=1).select(range(20))
    given = {"whole": (data, ROWS), "streamed": (data.to_iterable_dataset(), ROWS), "chosen": (chosen, list(chosen))}
    for name, (each, rows) in given.items():
        kept = keep_source({"source": find_held(each)}, tmp_path / name)
        assert check_source([kept["source"]], rows=rows, text="text", id="id") > 10


def test_splits_have_to_be_named() -> None:
    splits = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS)})
    with pytest.raises(
        SourceError, match=r"holds several splits: 'train', 'test'\.\nGive one of them: data\['train'\]"
    ):
        find_held(splits)
