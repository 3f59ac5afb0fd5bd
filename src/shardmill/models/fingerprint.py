"""Digests of a model folder's content, independent of its path."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from shardmill.models.code import fingerprint_code
from shardmill.models.exported.files import find_exported
from shardmill.models.folder import find_transformer, has_safetensors

_CONFIG_SUFFIXES = {".json", ".txt", ".model", ".spm", ".jinja"}
_STANFORD = "artifact.metadata"
_OTHER_RUNTIMES = {"onnx", "openvino"}
_MIB = 1 << 20
_READ_WHOLE_BYTES = 8 * _MIB
_BLOCKS, _BLOCK_BYTES = 64, 64 << 10


def digest_folder(folder: Path) -> dict[str, str]:
    """The digests of the weights, of the configuration (with the tokenizer), and of code if it is run."""
    files = [f for f in sorted(folder.rglob("*")) if f.is_file() and _counts(f.relative_to(folder))]
    weights = [f for f in files if f.suffix == ".safetensors"] + _exported_weights(folder)
    config = [f for f in files if f.suffix in _CONFIG_SUFFIXES or f.name == _STANFORD]
    return {"weights": _digest(folder, weights), "config": _digest(folder, config), **fingerprint_code(folder)}


def _exported_weights(folder: Path) -> list[Path]:
    """The ONNX or OpenVINO file that is run, and those that belong to it; none beside safetensors."""
    transformer = find_transformer(folder)
    exported = None if has_safetensors(transformer) else find_exported(transformer)
    return sorted(folder / file.relative_to(folder.absolute()) for file in exported.files) if exported else []


def _counts(relative: Path) -> bool:
    hidden = any(part.startswith(".") for part in relative.parts)
    return not hidden and not _OTHER_RUNTIMES.intersection(relative.parts[:-1])


def _digest(folder: Path, files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(file.relative_to(folder).as_posix().encode() + b"\0" + _digest_file(file))
    return total.hexdigest()


def _digest_file(path: Path) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _READ_WHOLE_BYTES:
            return hashlib.file_digest(file, "sha256").digest()
        total = hashlib.sha256(str(size).encode())
        total.update(file.read(_MIB))
        for i in range(_BLOCKS):
            file.seek(_MIB + i * (size - 2 * _MIB - _BLOCK_BYTES) // (_BLOCKS - 1))
            total.update(file.read(_BLOCK_BYTES))
        file.seek(size - _MIB)
        total.update(file.read())
        return total.digest()
