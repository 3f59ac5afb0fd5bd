"""Weights as they are stored: mapped from their files, and given back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shardmill.core.errors import ModelError
from shardmill.models.networks.stored import read_weights
from tests.support.libraries import needed

safetensors = needed("safetensors.numpy")

WEIGHTS = {
    "word": np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024),
    "half": np.arange(8, dtype=np.float16).reshape(2, 4),
}


def _resident_bytes(file: Path) -> int:
    """What this process holds of a file that it mapped: nothing else in it has a part in that."""
    kilobytes, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            ours = line.endswith(str(file))
        elif ours and name == "Rss:":
            kilobytes += int(rest[0])
    return kilobytes << 10


def test_what_was_given_back_is_read_again(tmp_path: Path) -> None:
    safetensors.save_file(WEIGHTS, tmp_path / "model.safetensors")
    weights = read_weights(tmp_path)
    word, half = weights["word"], weights["half"]
    assert word.sum() == WEIGHTS["word"].sum()
    assert _resident_bytes(tmp_path / "model.safetensors") >= 4 << 20
    weights.let_go()
    assert _resident_bytes(tmp_path / "model.safetensors") < 1 << 20
    np.testing.assert_array_equal(word, WEIGHTS["word"])
    np.testing.assert_array_equal(half, WEIGHTS["half"].astype(np.float32))
    np.testing.assert_array_equal(weights["word"], WEIGHTS["word"])


@pytest.mark.parametrize("data", [b"", b"\x08", b"\xff" * 16, b"\x02\0\0\0\0\0\0\0[]"])
def test_a_file_that_holds_no_weights_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match="cannot be read"):
        read_weights(tmp_path)
