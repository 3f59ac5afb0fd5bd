"""The names and shapes of the tensors that a model folder stores, without their numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shardmill.core.errors import ModelError
from shardmill.models.folder import ModelFolder


def read_heads(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of every stored tensor, with its `dtype` and `shape`, from the heads of the files."""
    for path in sorted(folder.glob("model*.safetensors")):
        try:
            with path.open("rb") as file:
                head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        except (OSError, ValueError, MemoryError) as error:
            raise ModelError(f"{path} cannot be read: {error}.", hint="Fetch the model again.") from error
        yield from ((name, said) for name, said in head.items() if name != "__metadata__")


def stored_shapes(folder: ModelFolder) -> Iterator[tuple[str, Sequence[int]]]:
    """The name and the shape of every stored tensor of the transformer."""
    if folder.exported is None:
        yield from ((name, said["shape"]) for name, said in read_heads(folder.transformer))
        return
    for tensor in folder.exported.head.weights:
        # Quantisation gives a tensor's numbers a longer name.
        yield tensor.names[0].removesuffix("_quantized"), tensor.shape or ()
