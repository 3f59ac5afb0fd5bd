"""FNet is refused: it has no attention mask, so that its vectors depend on what a text is padded to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_models import SMALL, pooling, transformers, write_model

from shardmill.core.errors import ModelError  # isort: skip
from shardmill.models.folder import read_folder  # isort: skip


@pytest.mark.parametrize("whole", [True, False])
def test_fnet_is_refused_by_name(tmp_path: Path, whole: bool) -> None:
    small = {name: value for name, value in SMALL.items() if name != "num_attention_heads"}
    folder = write_model(tmp_path / "fnet", transformers.FNetConfig(**small), [pooling("mean")] if whole else None)
    with pytest.raises(ModelError, match="fnet mixes all tokens of a row, padding included"):
        read_folder(folder)
