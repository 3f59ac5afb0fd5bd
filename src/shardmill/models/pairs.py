"""Models that read two texts together, as a question and a passage: tokens of pairs, and the model's logits.

Readers and cross-encoders are computed in float32: near ties between spans or passages are settled by low bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.core.devices import Device
from shardmill.core.errors import DeviceOutOfMemory, ModelError
from shardmill.models.encoder import memory_guard, quiet
from shardmill.models.kinds import READER, RERANKER, check_kind
from shardmill.models.ragged import token_batches
from shardmill.models.tokenizer import count_positions
from shardmill.models.unloadable import explain_loading

# Tokens of one batch, with padding. On a GPU enough to keep it busy; much larger ones fill its memory with
# attention in float32, and then wait for memory more than for results.
_BATCH_TOKENS = {"cpu": 4_096, "cuda": 32_768}
_UNUSED_WEIGHTS = ("pooler.", "position_ids")


@dataclass(frozen=True, slots=True)
class PairTokens:
    """One pair as the model takes it: ids, and which of the two texts each belongs to."""

    ids: NDArray[np.int64]
    types: NDArray[np.int64]


class PairModel:
    """A loaded reader or cross-encoder, with its tokenizer. `limit` is the maximum number of tokens of a pair."""

    def __init__(self, folder: Path, kind: str, device: Device) -> None:
        check_kind(folder, kind)
        self._device = torch.device(f"cuda:{device.index}" if device.kind == "cuda" else "cpu")
        self._budget = _BATCH_TOKENS[device.kind]
        with quiet(), memory_guard():
            self.tokenizer, model = _load(folder, kind)
            self._model = model.to(self._device)
        positions = count_positions(model.config.to_dict())
        limits = [int(self.tokenizer.model_max_length), *([positions] if positions else [])]
        self.limit = min(limits)
        self._typed = getattr(model.config, "type_vocab_size", 0) > 1
        self._pad_id = int(self.tokenizer.pad_token_id or 0)
        self.labels = int(getattr(model.config, "num_labels", 1))

    def encode(self, firsts: Sequence[str], seconds: Sequence[str]) -> list[PairTokens]:
        """Tokenize pairs; of one that is too long, the longer text is cut."""
        made = self.tokenizer(
            list(firsts), list(seconds), truncation="longest_first", max_length=self.limit, return_token_type_ids=True
        )
        return [
            PairTokens(np.array(ids, np.int64), np.array(types, np.int64))
            for ids, types in zip(made["input_ids"], made["token_type_ids"], strict=True)
        ]

    def score(self, pairs: Sequence[PairTokens]) -> NDArray[np.float32]:
        """The relevance of each pair, from a cross-encoder: its logit, or that of the last label less the first."""
        logits = np.stack(self._run(pairs, lambda out: out.logits))
        return logits[:, 0] if logits.shape[1] == 1 else logits[:, -1] - logits[:, 0]

    def spans(self, pairs: Sequence[PairTokens]) -> list[NDArray[np.float32]]:
        """Start and end logits of each token of each pair, from a reader, as an array with two rows."""
        found = self._run(pairs, lambda out: torch.stack([out.start_logits, out.end_logits], dim=1))
        return [logits[:, : len(pair.ids)] for logits, pair in zip(found, pairs, strict=True)]

    def _run(self, pairs: Sequence[PairTokens], pick: Callable[[Any], torch.Tensor]) -> list[NDArray[np.float32]]:
        made: list[NDArray[np.float32]] = [np.zeros(0, np.float32)] * len(pairs)
        lengths = np.array([len(pair.ids) for pair in pairs], np.int64)
        for batch in token_batches(lengths, self._budget):
            self._run_batch(pairs, batch, pick, made)
        return made

    def _run_batch(
        self,
        pairs: Sequence[PairTokens],
        batch: NDArray[np.int64],
        pick: Callable[[Any], torch.Tensor],
        made: list[NDArray[np.float32]],
    ) -> None:
        """Run one batch, in halves if it does not fit."""
        try:
            with memory_guard(), torch.inference_mode():
                found = pick(self._forward([pairs[i] for i in batch])).float().cpu().numpy()
            for i, logits in zip(batch, found, strict=True):
                made[i] = logits
        except DeviceOutOfMemory:
            if len(batch) == 1:
                raise
            self._budget = max(1, self._budget // 2)
            for half in np.array_split(batch, 2):
                self._run_batch(pairs, half, pick, made)

    def _forward(self, pairs: Sequence[PairTokens]) -> Any:
        lengths = np.array([len(pair.ids) for pair in pairs])
        real = np.arange(lengths.max()) < lengths[:, None]
        ids = np.full(real.shape, self._pad_id, np.int64)
        types = np.zeros(real.shape, np.int64)
        ids[real] = np.concatenate([pair.ids for pair in pairs])
        types[real] = np.concatenate([pair.types for pair in pairs])
        given = {"input_ids": ids, "attention_mask": real.astype(np.int64)}
        given |= {"token_type_ids": types} if self._typed else {}
        tensors = {name: torch.from_numpy(array).to(self._device) for name, array in given.items()}
        return self._model(**tensors, return_dict=True)


def _load(folder: Path, kind: str) -> tuple[Any, Any]:
    from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, AutoTokenizer

    local = {"local_files_only": True, "trust_remote_code": False}
    heads: dict[str, Any] = {READER: AutoModelForQuestionAnswering, RERANKER: AutoModelForSequenceClassification}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), **local)
        model, report = heads[kind].from_pretrained(
            str(folder), use_safetensors=True, output_loading_info=True, dtype=torch.float32, **local
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise explain_loading(folder, error) from error
    missing = sorted(k for k in report["missing_keys"] if not any(part in k for part in _UNUSED_WEIGHTS))
    if missing:
        raise ModelError(
            f"{folder.name} lacks weights: {missing[0]}.", hint="Its weights do not belong to its config.json."
        )
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(f"{folder.name} has no fast tokenizer.", hint="Convert it, so that it has tokenizer.json.")
    return tokenizer, model.eval()
