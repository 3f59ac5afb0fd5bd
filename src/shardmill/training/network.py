"""A model while it learns: texts -> vectors with gradients, in mini-batches that bound the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shardmill.devices import Device
from shardmill.errors import TaskError
from shardmill.models.encoder import Encoder, memory_guard
from shardmill.models.folder import ModelFolder
from shardmill.models.ragged import Ids, token_batches
from shardmill.models.tokenizer import load_tokenizer
from shardmill.training.batch import Text

# Tokens of one mini-batch, and tokens whose graphs are kept between the two directions; the rest is computed twice.
_MINI_TOKENS = {"cpu": 2048, "cuda": 32768}
_KEPT_TOKENS_ON_CPU = 16384
# Bytes that a layer keeps for a token, per unit of its width and byte of a number; attention itself keeps little.
_KEPT_NUMBERS = 34
_KEPT_SHARE = 0.6


@dataclass(slots=True)
class _Part:
    """A mini-batch: rows of the texts, their ids, and its vectors if their graph is kept."""

    rows: NDArray[np.int64]
    ids: list[Ids]
    skip: int
    vectors: Tensor | None = None


@dataclass(slots=True)
class Pass:
    """The way forward of some texts: their vectors, without a graph, and what the way back needs."""

    vectors: Tensor
    parts: list[_Part] = field(default_factory=list)


class Network:
    """A model of a folder in float32, without dropout; a GPU computes the transformer in bfloat16 unless `precise`."""

    def __init__(self, folder: ModelFolder, device: Device, *, max_tokens: int | None = None, seed: int = 0) -> None:
        self.folder, self.device = folder, device
        self.tokenizer = load_tokenizer(folder, max_tokens)
        place = f"cuda:{device.index}" if device.kind == "cuda" else "cpu"
        with torch.random.fork_rng(devices=[]):
            # Weights that the folder lacks and the vectors do not use are drawn, and are saved with the rest.
            torch.manual_seed(seed)
            self._encoder = Encoder(folder, device=place, pad_id=self.tokenizer.pad_id)
        self.modules = nn.ModuleList(self._encoder.modules())
        half = device.kind == "cuda" and not device.precise
        self._autocast = torch.bfloat16 if half else None
        self._mini_tokens = _MINI_TOKENS[device.kind]
        self._kept_tokens = _kept_tokens(folder, device, 2 if half else 4)
        self._freeze_unused()

    def weights(self) -> dict[str, nn.Parameter]:
        """The weights that learn, by name, each once."""
        return {name: weight for name, weight in self.modules.named_parameters() if weight.requires_grad}

    def _freeze_unused(self) -> None:
        """Leave weights alone that no vector depends on; the others have gradients from now on, zero at first."""
        done = self.forward([("", "a")])
        self.backward(done, torch.ones_like(done.vectors))
        for weight in self.modules.parameters():
            if weight.grad is None:
                weight.requires_grad_(False)
            else:
                weight.grad.zero_()

    def forward(self, texts: Sequence[Text]) -> Pass:
        """Embed (prompt, text) pairs. Graphs are kept for as many tokens as memory allows."""
        parts, kept = list(self._cut(texts)), 0
        found: Tensor | None = None
        for part in sorted(parts, key=lambda each: sum(map(len, each.ids))):
            size = len(part.ids) * max(map(len, part.ids))
            keeps = torch.is_grad_enabled() and kept + size <= self._kept_tokens
            kept += size if keeps else 0
            with torch.set_grad_enabled(keeps), memory_guard():
                vectors = self._encoder.vectors(part.ids, part.skip, autocast=self._autocast)
            if found is None:
                found = vectors.new_zeros(len(texts), vectors.shape[1])
            found[torch.from_numpy(part.rows).to(found.device)] = vectors.detach()
            part.vectors = vectors if keeps else None
        if found is None:
            weight = next(self.modules.parameters())
            found = weight.new_zeros(0, self.folder.width)
        return Pass(found, parts)

    def backward(self, done: Pass, gradients: Tensor) -> None:
        """Add the gradients of the weights, given those of the vectors."""
        for part in sorted(done.parts, key=lambda each: each.vectors is None):
            mine = gradients[torch.from_numpy(part.rows).to(gradients.device)]
            with memory_guard():
                if part.vectors is None:
                    part.vectors = self._encoder.vectors(part.ids, part.skip, autocast=self._autocast)
                part.vectors.backward(mine)  # type: ignore[no-untyped-call]
            part.vectors = None

    def embed(self, texts: Sequence[Text]) -> Tensor:
        """The vectors of texts, for evaluation."""
        with torch.no_grad():
            return self.forward(texts).vectors

    def _cut(self, texts: Sequence[Text]) -> Iterator[_Part]:
        """Mini-batches of texts of about the same length, each with one prompt."""
        by_prompt: dict[str, list[int]] = {}
        for i, (prompt, _) in enumerate(texts):
            by_prompt.setdefault(prompt, []).append(i)
        for prompt, rows in by_prompt.items():
            encoded = self.tokenizer.encode([texts[i][1] for i in rows], prompt)
            for k, reason in encoded.bad.items():
                raise TaskError(f"The text {texts[rows[k]][1][:40]!r} cannot be trained on: {reason}.")
            tokens = encoded.rows
            skip = self.tokenizer.prompt_tokens(prompt)
            for chosen in token_batches(tokens.lengths, self._mini_tokens):
                yield _Part(np.array(rows)[chosen], [tokens[int(i)] for i in chosen], skip)


def _kept_tokens(folder: ModelFolder, device: Device, number_bytes: int) -> int:
    if device.kind != "cuda":
        return _KEPT_TOKENS_ON_CPU
    layers = int(folder.config.get("num_hidden_layers") or folder.config.get("n_layers") or 24)
    width = int(folder.config.get("hidden_size") or folder.width)
    room = _KEPT_SHARE * (device.free_bytes or device.memory_bytes) / device.sharing
    return int(room / (_KEPT_NUMBERS * layers * width * number_bytes))
