"""What Argo needs of us that no cluster is needed for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from tests.support.libraries import needed

needed("lightkube")

from shardmill.engines.kubernetes.api import ClusterApi  # noqa: E402
from shardmill.engines.kubernetes.argo import NODE_BYTES  # noqa: E402
from tests.support.argo_reader import ArgoReader, Unreadable  # noqa: E402

RECORDED = Path(__file__).parents[2] / "data" / "argo" / "recorded.json"


def test_what_the_reader_does_not_know_it_refuses() -> None:
    spec = {"entrypoint": "a", "templates": [{"name": "a", "script": {"image": "b"}}]}
    with pytest.raises(Unreadable, match="script"):
        ArgoReader(cast(ClusterApi, None), {"metadata": {"name": "w"}, "spec": spec}, None, lambda n, p: None)


def test_the_bytes_of_a_node_are_those_recorded() -> None:
    recorded = json.loads(RECORDED.read_text())["embed"]
    assert recorded["bytes"] / len(recorded["nodes"]) <= NODE_BYTES
