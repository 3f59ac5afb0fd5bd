"""The rooms of src/shardmill and who may import whom: the rule that a test holds and that CONTRIBUTING shows."""

from __future__ import annotations

# Every room, and the rooms that its files import. What stands further down is built on what stands above it.
MAY_IMPORT: dict[str, str] = {
    "_version": "",
    "core": "_version",
    "plugins": "core",
    "store": "core",
    "augment": "core",
    "plan": "core plugins",
    "ledger": "core store plan",
    "postgres": "core",
    "models": "_version core store plan",
    # What a run made is a source of the next.
    "sources": "core plugins store plan ledger postgres",
    "sinks": "core plugins store plan ledger postgres",
    "tasks": "core plugins plan ledger",
    "results": "core plugins store plan ledger models sources sinks tasks",
    "worker": "_version core plugins plan ledger sources sinks tasks results",
    # A host without a common disk is sent the bytes that its shards need, and the sources know which these are.
    "engines": "_version core plugins store plan ledger sources",
    "run": "_version core plugins store plan ledger postgres models sources sinks tasks results worker engines",
    "verbs": "_version core plugins store augment plan ledger postgres models sources sinks tasks results worker "
    "engines run",
    "watch": "_version core plugins store plan ledger models tasks results run",
    "testing": "core plugins plan store ledger sources sinks tasks worker engines run",
    "bench": "core store augment plan models sources sinks tasks run verbs",
    "cli": "__init__ _version core plugins store augment plan models engines run verbs watch bench",
    "__init__": "_version core plugins plan run verbs",
    "__main__": "cli",
}
# Modules whose names users import, and which only name what has its home elsewhere.
THIN = {"api": "verbs", "batching": "core", "ranges": "core", "ray": "run", "spec": "plan"}
