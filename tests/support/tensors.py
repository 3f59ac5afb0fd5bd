"""Weights in a file whose bytes depend on no library: what a model's digest is made from, in tests of plan ids."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def read_tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    said = json.loads(data[8 : 8 + size])
    found = {}
    for name, about in said.items():
        if name != "__metadata__":
            start, stop = about["data_offsets"]
            found[name] = np.frombuffer(data[8 + size + start : 8 + size + stop], np.float32).reshape(about["shape"])
    return found


def write_tensors(path: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    said, stop = {}, 0
    for name, tensor in tensors.items():
        start, stop = stop, stop + tensor.nbytes
        said[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [start, stop]}
    head = json.dumps(said).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(tensor.tobytes() for tensor in tensors.values()))


def with_head(body: Path, folder: Path, config: dict[str, Any], heads: dict[str, tuple[int, ...]]) -> Path:
    """A copy of a tiny model with other entries in its config.json and weights of a head, all 0.25."""
    folder.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(body / name, folder / name)
    said = {**json.loads((folder / "config.json").read_text()), **config}
    (folder / "config.json").write_text(json.dumps(said, indent=2))
    added = {name: np.full(shape, 0.25, np.float32) for name, shape in heads.items()}
    write_tensors(folder / "model.safetensors", {**read_tensors(body / "model.safetensors"), **added})
    return folder
