"""A model that fails on every text ends its run at once, with the cause: no worker is started again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.cli import Cli, assert_told
from tests.support.tiny_models import SMALL, transformers, write_model


def test_it_is_told_once(write_jsonl: Callable[..., Path], tmp_path: Path, shardmill: Cli) -> None:
    parts = {"text_config": {**SMALL, "vocab_size": 30522}, "vision_config": {**SMALL, "image_size": 32}}
    folder = write_model(tmp_path / "clip", transformers.CLIPConfig(**parts))
    source = write_jsonl([{"text": "a phone"}] * 5)
    said = shardmill("embed", source, "--text", "text", "--model", folder, "--device", "cpu", "--out", tmp_path / "run")
    note, _, err = said.err.partition("\n")
    assert "clip has no modules.json" in note
    assert_told(
        said._replace(err=err), said.status, "clip cannot be run on texts: AttributeError", "choose another model"
    )
    assert said.status != 0
    assert len(list((tmp_path / "run/workers").iterdir())) == 1
