"""Reads a folder of model2vec, or of sentence-transformers' StaticEmbedding: which tensors, and which rules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.core.errors import ModelError
from shardmill.models.networks.stored import StoredWeights

MODEL2VEC = "model2vec"
_AGAIN = "Fetch the model again."
# The type of model in the config of a folder that has none.
KIND = "static"
_USUAL_MAX_LENGTH = 512
# model2vec's name for the token vectors, and sentence-transformers'.
_TABLES = ("embeddings", "embedding.weight")


@dataclass(frozen=True, slots=True)
class StaticTable:
    """Where the token vectors are, their number and width, and what is done with a text before they are averaged.

    `rows` is the number of token ids that have a vector: with a `mapping` several share one. By `model2vec`'s rules a
    text has at most `max_length` tokens, is first cut at that many tokens of median length, and its unknown tokens do
    not count. Others are cut where their tokenizer.json says, and unknown tokens have a vector like all others.
    """

    folder: Path
    table: str
    rows: int
    width: int
    weighted: bool = False
    mapped: bool = False
    model2vec: bool = False
    max_length: int | None = None


def read_static(folder: Path, config: dict[str, Any], *, model2vec: bool) -> StaticTable:
    """The table of a folder; a ModelError says what does not fit."""
    for name in ("model.safetensors", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ModelError(f"{folder.name} has no {name}.", hint="Pass the folder of a whole model.")
    stored = StoredWeights(folder / "model.safetensors")
    shapes = {name: stored.shape(name) for name in stored}
    table = next((name for name in _TABLES if name in shapes), "")
    if len(shapes.get(table, ())) != 2 or 0 in shapes[table]:
        raise ModelError(f"{folder.name}/model.safetensors holds no table of token vectors.", hint=_AGAIN)
    vectors, width = shapes[table]
    others = {name: shapes[name] for name in ("weights", "mapping") if table == _TABLES[0] and name in shapes}
    rows = others["mapping"][0] if others.get("mapping") else vectors
    for name, shape in others.items():
        if shape != (rows,):
            raise ModelError(
                f"{folder.name} has {name} of shape {list(shape)} for {rows:,} tokens.",
                hint=f"Its tensors do not belong together. {_AGAIN}",
            )
    longest = config.get("max_length", _USUAL_MAX_LENGTH) if model2vec else None
    if longest is not None and (not isinstance(longest, int) or isinstance(longest, bool) or longest < 1):
        raise ModelError(f"{folder.name}/config.json has max_length {longest!r}.", hint="Make it a number or null.")
    return StaticTable(
        folder,
        table,
        rows,
        width,
        weighted="weights" in others,
        mapped="mapping" in others,
        model2vec=model2vec,
        max_length=longest,
    )
