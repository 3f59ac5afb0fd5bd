"""What an exported file says of itself before it is run."""

from __future__ import annotations

from dataclasses import dataclass

_TOKENS = ("last_hidden_state", "token_embeddings")
_SENTENCES = ("sentence_embedding", "sentence_embeddings")
# Scores of classes, not vectors.
_SCORES = ("logits",)


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input, an output or stored weights; a size that is left open is -1, and `shape` is None if nothing is said.

    `kind` is a float type or "int8", which stands for all that have at most eight bits; "" for any other type.
    """

    names: tuple[str, ...]
    kind: str
    shape: tuple[int, ...] | None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def width(self) -> int | None:
        """The size of its vectors, if that is said."""
        return self.shape[-1] if self.shape and self.shape[-1] > 0 else None


@dataclass(frozen=True, slots=True)
class ExportedHead:
    """`data` names the files beside it that hold its weights.

    `mixes` tells that one scale rounds the numbers of a whole batch, so that a text's vector depends on the others.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    data: tuple[str, ...]
    mixes: bool = False

    @property
    def tokens(self) -> Tensor | None:
        """The output with one vector per token."""
        return self._find(_TOKENS, 3)

    @property
    def sentences(self) -> Tensor | None:
        """The output with one vector per text."""
        return self._find(_SENTENCES, 2)

    def _find(self, usual: tuple[str, ...], rank: int) -> Tensor | None:
        """The output with a usual name; else the only one, if it has the rank."""
        for name in usual:
            for output in self.outputs:
                if name in output.names and output.rank in (rank, None):
                    return output
        of_rank = [o for o in self.outputs if o.rank == rank and not set(_SCORES).intersection(o.names)]
        others = [o for o in self.outputs if o.rank in (2, 3) and o not in of_rank]
        return of_rank[0] if len(of_rank) == 1 and (rank == 3 or not others) else None

    @property
    def precision(self) -> str:
        """The precision that its weights allow: the lowest that a matrix is stored in."""
        kinds = {tensor.kind for tensor in self.weights if (tensor.rank or 0) > 1}
        return next((kind for kind in ("int8", "bfloat16", "float16") if kind in kinds), "float32")
