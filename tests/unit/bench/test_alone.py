"""The benchmark of models alone as one command, on tiny shapes."""

from __future__ import annotations

import pytest

from tests.support.tiny_models import needed

needed("torch"), needed("transformers"), needed("tokenizers")

from benchmarks.alone import main  # noqa: E402
from benchmarks.families import SHAPES  # noqa: E402


def test_every_shape(capsys: pytest.CaptureFixture[str]) -> None:
    lines = main(["--tiny", "--device", "cpu", "--texts", "20", "--seconds", "0.1"])
    assert [line[0] for line in lines] == list(SHAPES)
    assert all(float(line[2].replace(",", "")) > 0 and line[1] for line in lines)
    assert "docs/s" in capsys.readouterr().out
