"""A training run over real sshd: hosts with a common folder train, others are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import SpecError
from shardmill.run import Run
from shardmill.run.carrying import carry_out
from tests.support.sshd import TestHost
from tests.support.training import a_model, topic_pairs


def train(folder: Path, source: Path, hosts: list[TestHost], before: str = "") -> Run:
    path = folder / "cluster.toml"
    path.write_text(before + "\n".join(host.entry(workers=1) for host in hosts))
    params: dict[str, Any] = {"model": str(a_model(folder / "model")), "columns": ["question", "passage"], "batch": 8}
    execution = {"engine": "ssh", "engine_options": {"hosts": str(path)}}
    return carry_out({"source": str(source), "task": "train", "params": params}, execution, folder / "run")


def test_hosts_with_a_common_folder_train(
    tmp_path: Path, write_jsonl: Callable[..., Path], hosts: list[TestHost]
) -> None:
    run = train(tmp_path, write_jsonl(topic_pairs(40)), hosts, "shared = true\n")
    assert run.table()["steps"].to_pylist() == [5]
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert run.verify().verified


def test_hosts_with_a_folder_each_are_refused_by_name(
    tmp_path: Path, write_jsonl: Callable[..., Path], hosts: list[TestHost]
) -> None:
    with pytest.raises(SpecError, match=r"which 127.0.0.2, 127.0.0.3 do not reach") as caught:
        train(tmp_path, write_jsonl(topic_pairs(40)), hosts)
    assert "shared = true" in caught.value.hint
