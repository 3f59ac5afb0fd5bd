"""Re-rankers, classifiers and readers with torch: on a GPU, and of families that are not described here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError
from shardmill.models.encoder import memory_guard, quiet
from shardmill.models.kinds import READER, RERANKER, TAGGER
from shardmill.models.networks.stored import Reals
from shardmill.models.pair_tokens import Ints
from shardmill.models.tokenizer import count_positions
from shardmill.models.unloadable import explain_loading

# Weights that may be missing, because nothing reads them. A re-ranker's pooler is part of its head.
_UNUSED_WEIGHTS = {
    READER: ("pooler.", "position_ids"),
    RERANKER: ("position_ids",),
    TAGGER: ("pooler.", "position_ids"),
}
_NO_LIMIT = 1 << 31


class TorchPairs:
    """A model of transformers in float32, on a CPU or a GPU."""

    name = "torch float32"

    def __init__(self, folder: Path, kind: str, device: Device) -> None:
        self._device = torch.device(f"cuda:{device.index}" if device.kind == "cuda" else "cpu")
        with quiet(), memory_guard():
            self._model = _load(folder, kind).to(self._device)
        self.longest = count_positions(self._model.config.to_dict()) or _NO_LIMIT
        self.known_ids = int(getattr(self._model.config, "vocab_size", None) or _NO_LIMIT)
        self._typed = getattr(self._model.config, "type_vocab_size", 0) > 1

    def __call__(self, ids: Ints, mask: Ints, types: Ints) -> Reals:
        given = {"input_ids": ids, "attention_mask": mask, **({"token_type_ids": types} if self._typed else {})}
        with memory_guard(), torch.inference_mode():
            tensors = {name: torch.from_numpy(array).to(self._device) for name, array in given.items()}
            made = self._model(**tensors, return_dict=True)
            logits = made.logits if "logits" in made else torch.stack([made.start_logits, made.end_logits], dim=-1)
            found: Reals = logits.float().cpu().numpy()
        return found


def _load(folder: Path, kind: str) -> Any:
    from transformers import (
        AutoModelForQuestionAnswering,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
    )

    heads: dict[str, Any] = {
        READER: AutoModelForQuestionAnswering,
        RERANKER: AutoModelForSequenceClassification,
        TAGGER: AutoModelForTokenClassification,
    }
    options = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32}
    try:
        model, report = heads[kind].from_pretrained(str(folder), output_loading_info=True, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise explain_loading(folder, error) from error
    missing = sorted(k for k in report["missing_keys"] if not any(part in k for part in _UNUSED_WEIGHTS[kind]))
    if missing:
        raise ModelError(
            f"{folder.name} lacks weights: {missing[0]}.", hint="Its weights do not belong to its config.json."
        )
    return model.eval()
