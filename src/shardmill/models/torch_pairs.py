"""Re-rankers, classifiers and readers with torch: on a GPU, and of families that are not described here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError
from shardmill.models.encoder import memory_guard, quiet
from shardmill.models.kinds import CAUSAL, READER, RERANKER, TAGGER
from shardmill.models.networks.stored import Reals
from shardmill.models.pair_tokens import Ints
from shardmill.models.tokenizer import count_positions
from shardmill.models.unloadable import explain_loading

# Weights that may be missing, because nothing reads them. A re-ranker's pooler is part of its head.
_UNUSED_WEIGHTS = {
    READER: ("pooler.", "position_ids"),
    RERANKER: ("position_ids",),
    TAGGER: ("pooler.", "position_ids"),
    CAUSAL: ("position_ids",),
}
_NO_LIMIT = 1 << 31


class TorchPairs:
    """A model of transformers in float32, on a CPU or a GPU.

    A causal one gives the logits of `words` at the end of each pair: the first, or the first less the second.
    """

    padded = True

    def __init__(self, folder: Path, kind: str, device: Device, words: Sequence[int] = ()) -> None:
        self._device = torch.device(f"cuda:{device.index}" if device.kind == "cuda" else "cpu")
        self._words, self.precision = words, "float32"
        with quiet(), memory_guard():
            self._model = load_pairs(folder, kind, words).to(self._device)
        self.longest = count_positions(self._model.config.to_dict()) or _NO_LIMIT
        self.known_ids = int(getattr(self._model.config, "vocab_size", None) or _NO_LIMIT)
        self._typed = getattr(self._model.config, "type_vocab_size", 0) > 1

    @property
    def name(self) -> str:
        return f"torch {self.precision}"

    def cast(self, dtype: torch.dtype) -> None:
        """Compute in `dtype` from now on."""
        with memory_guard():
            self._model = self._model.to(dtype)
        self.precision = str(dtype).removeprefix("torch.")

    def __call__(self, ids: Ints, mask: Ints, types: Ints) -> Reals:
        given = {"input_ids": ids, "attention_mask": mask, **({"token_type_ids": types} if self._typed else {})}
        with memory_guard(), torch.inference_mode():
            tensors = {name: torch.from_numpy(array).to(self._device) for name, array in given.items()}
            made = self._model(**tensors, return_dict=True)
            logits = made.logits if "logits" in made else torch.stack([made.start_logits, made.end_logits], dim=-1)
            if self._words:
                rows = torch.arange(len(ids), device=self._device)
                logits = join_words(logits[rows, tensors["attention_mask"].sum(dim=1) - 1])
            found: Reals = logits.float().cpu().numpy()
        return found


def join_words(logits: Tensor) -> Tensor:
    """The score of each pair, from the logits of its words."""
    return logits[:, :1] - logits[:, 1:] if logits.shape[1] > 1 else logits


class _FewWords(nn.Module):
    """The rows of a head that are needed, in float32: half precision would round the difference of their logits."""

    def __init__(self, head: Any, words: Sequence[int]) -> None:
        super().__init__()
        self.rows = head.weight.detach()[list(words)].float()
        self.bias = None if getattr(head, "bias", None) is None else head.bias.detach()[list(words)].float()

    def forward(self, hidden: Tensor) -> Tensor:
        return nn.functional.linear(hidden.float(), self.rows, self.bias)

    def _apply(self, move: Any, recurse: bool = True) -> Any:
        """To another device, but of the same type."""
        self.rows, self.bias = (None if t is None else t.to(move(t).device) for t in (self.rows, self.bias))
        return self


def load_pairs(folder: Path, kind: str, words: Sequence[int] = (), attention: str | None = None) -> Any:
    """The model of a folder in float32, with every weight."""
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForQuestionAnswering,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )

    heads: dict[str, Any] = {
        READER: AutoModelForQuestionAnswering,
        RERANKER: AutoModelForSequenceClassification,
        TAGGER: AutoModelForTokenClassification,
        CAUSAL: AutoModelForCausalLM,
    }
    options = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32}
    if attention is not None:
        options["attn_implementation"] = attention
    try:
        model, report = heads[kind].from_pretrained(str(folder), output_loading_info=True, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise explain_loading(folder, error) from error
    missing = sorted(k for k in report["missing_keys"] if not any(part in k for part in _UNUSED_WEIGHTS[kind]))
    if missing:
        raise ModelError(
            f"{folder.name} lacks weights: {missing[0]}.", hint="Its weights do not belong to its config.json."
        )
    if words:
        model.set_output_embeddings(_FewWords(model.get_output_embeddings(), words))
        model.config.use_cache = False
    return model.eval()
