"""The declarations that come with shardmill, by group and name, as an entry point of a package would name them."""

from __future__ import annotations

# Verbs with a folder of their own, in the order of lists.
_RUNNING = (
    *("embed", "load", "embed-sparse", "embed-tokens", "classify", "generate", "summarize", "answer", "score"),
    *("apply", "dedup", "train", "tune", "augment"),
    "run",
)
_ANSWER, _DECLARED, _MACHINES = "shardmill.verbs.answer", "shardmill.cli.declared", "shardmill.cli.machines"
# Sources by suffix and by scheme, in the order of lists.
_FORMATS = (
    *("jsonl", "text", "csv", "tsv", "parquet", "orc", "avro", "arrow", "json", "pickle", "excel"),
    *("files", "webdataset", "mds"),
)
_SINKS = (
    *("parts", "postgresql", "lance", "delta", "iceberg", "duckdb", "sqlite"),
    *("qdrant", "qdrant_local", "milvus", "milvus_lite", "chroma", "redis"),
)
_SCHEMES = ("run", "range", "postgresql", "mysql", "sqlite", "duckdb", "lance", "python")

BUILTIN: dict[str, dict[str, str]] = {
    "verbs": {
        **{name: f"shardmill.verbs.{name.replace('-', '_')}:VERB" for name in _RUNNING},
        "init": "shardmill.verbs.init:VERB",
        "peek": "shardmill.verbs.peek:VERB",
        "refresh": "shardmill.verbs.refresh:VERB",
        "migrate": "shardmill.verbs.migrate:VERB",
        "rollback": f"{_DECLARED}:ROLLBACK",
        **{name: f"{_DECLARED}:{name.upper()}" for name in ("resume", "work", "stop", "prune", "plan", "status")},
        "runs": f"{_DECLARED}:LIST_RUNS",
        **{name: f"{_DECLARED}:{name.upper()}" for name in ("show", "cost", "monitor")},
        "study": "shardmill.verbs.tune:STUDY",
        "verify": f"{_DECLARED}:VERIFY",
        "receipt": "shardmill.verbs.receipt:VERB",
        **{name: f"{_DECLARED}:{name.upper()}" for name in ("merge", "report", "search")},
        **{name: f"{_ANSWER}:{name.upper()}" for name in ("ask", "index", "evaluate")},
        "map": "shardmill.verbs.map:VERB",
        "audit": "shardmill.verbs.audit:VERB",
        "split": "shardmill.verbs.split:VERB",
        **{f"bench {name}": f"{_MACHINES}:BENCH_{name.upper()}" for name in ("embed", "augment", "tasks")},
        **{f"hosts {name}": f"{_MACHINES}:HOSTS_{name.upper()}" for name in ("check", "stop", "clean")},
        **{f"kubernetes {name}": f"{_MACHINES}:{name.upper()}" for name in ("render", "check", "probe", "report")},
        "plugins": f"{_DECLARED}:PLUGINS",
        "doctor": "shardmill.verbs.doctor:VERB",
        "sample": "shardmill.verbs.sample:VERB",
    },
    "sources": {name: f"shardmill.sources.kinds:{name.upper()}" for name in (*_FORMATS, *_SCHEMES)},
    "sinks": {name: f"shardmill.sinks.kinds:{name.upper()}" for name in _SINKS},
    "engines": {
        name: f"shardmill.engines.kinds:{name.upper()}"
        for name in ("local", "ssh", "slurm", "ray", "kubernetes", "argo", "pool")
    },
}
