"""Functions of users over real sshd: the file is sent along, and rows fall away and multiply there as they do here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import shardmill
from shardmill.core.errors import ShardmillError
from tests.engines.ssh.test_hosts import cluster
from tests.support.sshd import TestHost

pytestmark = pytest.mark.services
Write = Callable[..., Path]

CODE = """
class Repeat:
    def __init__(self, times):
        self.times = times

    def __call__(self, rows):
        return [[{"n": row["n"]}] * (row["n"] % self.times) for row in rows]
"""


def test_a_function_is_sent_to_hosts_without_a_shared_disk(
    tmp_path: Path, write_jsonl: Write, hosts: list[TestHost]
) -> None:
    source, file = write_jsonl([{"n": n} for n in range(600)]), tmp_path / "repeat.py"
    file.write_text(CODE)
    placed = cluster(tmp_path, hosts, workers=1)
    how = {"arguments": {"times": 3}, "shard_bytes": 1_000, "engine": "ssh"}
    run = shardmill.apply(
        str(source), f"{file}:Repeat", out=tmp_path / "run", engine_options=placed["engine_options"], **how
    )
    assert run.table().column("n").to_pylist() == [n for n in range(600) for _ in range(n % 3)]
    assert run.verify().verified


def test_a_module_that_only_home_has_is_told(tmp_path: Path, write_jsonl: Write, hosts: list[TestHost]) -> None:
    source, file = write_jsonl([{"n": n} for n in range(60)]), tmp_path / "needy.py"
    file.write_text("import os\nif 'SHARDMILL_WORKER' in os.environ:\n    import nowhere_at_all\n" + CODE)
    placed = cluster(tmp_path, hosts, workers=1)
    with pytest.raises(ShardmillError, match=r"No module named 'nowhere_at_all'.*\n.*installed on every machine"):
        shardmill.apply(
            str(source),
            f"{file}:Repeat",
            arguments={"times": 3},
            engine="ssh",
            engine_options=placed["engine_options"],
            out=tmp_path / "run",
        )
