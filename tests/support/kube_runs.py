"""Runs on the test cluster: their source and folder are in the S3 server that pods see too."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from shardmill.ledger import Ledger
from shardmill.plan.spec import Spec
from shardmill.run import Run
from shardmill.store import open_store
from tests.support.corpora import fake_rows, fake_spec
from tests.support.kube_cluster import SECRET, KubeCluster


def on_pods(cluster: KubeCluster, namespace: str, **options: Any) -> dict[str, Any]:
    """The execution of a run on pods without GPUs."""
    given = {"image": cluster.image, "namespace": namespace, "secret": SECRET, "memory": "400Mi", **options}
    return {"engine": "kubernetes", "device": "cpu", "engine_options": given}


def put_source(bucket: str, rows: int) -> str:
    folder = f"{bucket}/{uuid.uuid4().hex}"
    lines = "".join(json.dumps(row) + "\n" for row in fake_rows(rows))
    open_store(folder).put("items.jsonl", lines.encode())
    return f"{folder}/items.jsonl"


def spec_of(source: str, delay_s: float = 0.05, **execution: Any) -> Spec:
    settings = {"batch_tokens": 300, "shard_bytes": 4_000, **execution}
    return fake_spec(source, params={"delay_s": delay_s}, **settings)


def assert_committed_once(ledger: Ledger) -> None:
    """Each shard has one commit, and its part is the only one left of it."""
    commits = ledger.commits.read()
    assert sorted(commits) == list(range(len(ledger.plan().shards)))
    parts = [entry.key for entry in ledger.store.list("parts/")]
    assert sorted(parts) == sorted(commit.part for commit in commits.values())


def merge(place: str, file: Path) -> bytes:
    """The merged result, to be compared."""
    Run(place).merge(file)
    return file.read_bytes()
