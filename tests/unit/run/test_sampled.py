"""The texts that a task settles its parameters by: as many as it asks for, from the first to the last of a source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardmill.run.sampled import SampledSource
from shardmill.sources import Fields, discover, open_source
from shardmill.testing import FakeTask


@pytest.mark.parametrize(("rows", "asked"), [(3, 512), (40, 512), (600, 512), (600, 7), (5_000, 512)])
def test_texts_are_from_all_over_the_source(rows: int, asked: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"{n} {'word ' * (n % 9)}"}) + "\n" for n in range(rows)))
    fields = Fields(text="text")
    stat = discover((str(path),), fields)
    sampled = SampledSource(open_source(stat, fields), FakeTask(), stat.size_bytes)
    numbers = [int(text.partition(" ")[0]) for text in sampled.texts(asked)]
    assert len(set(numbers)) == len(numbers) == min(rows, asked)
    assert 0 in numbers
    if asked > 32:
        assert max(numbers) >= 0.95 * (rows - 1)
