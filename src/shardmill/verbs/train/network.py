"""A model while it learns: texts -> vectors with gradients, in mini-batches that bound the memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shardmill.core.devices import Device
from shardmill.core.errors import DeviceOutOfMemory, TaskError
from shardmill.models.encoder import Encoder, memory_guard
from shardmill.models.folder import ModelFolder
from shardmill.models.golden import GOLDEN
from shardmill.models.memory import free_cuda_bytes
from shardmill.models.ragged import Ids, token_batches
from shardmill.models.tokenizer import load_tokenizer
from shardmill.models.torch_kernels import training_encoder
from shardmill.verbs.train.batch import Text
from shardmill.verbs.train.lora import TrainedAdapter

# Tokens of one mini-batch, and tokens whose graphs are kept between the two directions; the rest is computed twice.
_MINI_TOKENS = {"cpu": 2048, "cuda": 65536}
_LEAST_MINI_TOKENS = 512
_KEPT_TOKENS_ON_CPU = 16384
# Bytes that a layer keeps for a token, per unit of its width: a first guess, until it was measured.
_KEPT_BYTES = {"cuda": 68, "cpu": 136}
# Of the memory that is free beside the weights, their gradients and the two moments of each.
_KEPT_SHARE = 0.75
_STATES = 4


@dataclass(slots=True)
class _Part:
    """A mini-batch: rows of the texts, their ids, and its vectors if their graph is kept."""

    rows: NDArray[np.int64]
    ids: list[Ids]
    skip: int
    vectors: Tensor | None = None

    @property
    def tokens(self) -> int:
        return len(self.ids) * max(map(len, self.ids))


@dataclass(slots=True)
class TokenizedTexts:
    """`count` texts as mini-batches of ids."""

    count: int
    parts: list[_Part]


@dataclass(slots=True)
class Pass:
    """The way forward of some texts: their vectors, without a graph, and what the way back needs."""

    vectors: Tensor
    parts: list[_Part] = field(default_factory=list)


class Network:
    """A model of a folder in float32, without dropout; a GPU computes the transformer in bfloat16 unless `precise`.

    With `lora`, a rank and an alpha, only factors beside its linear layers learn. `on_part` is called after each
    mini-batch.
    """

    on_part: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        folder: ModelFolder,
        device: Device,
        *,
        max_tokens: int | None = None,
        seed: int = 0,
        compiled: bool = False,
        lora: tuple[int, float] | None = None,
    ) -> None:
        self.folder, self.device = folder, device
        self.tokenizer = load_tokenizer(folder, max_tokens)
        self._tokenizing = threading.Lock()
        half = device.kind == "cuda" and not device.precise
        self._autocast = torch.bfloat16 if half else None
        with torch.random.fork_rng(devices=[]):
            # Weights that the folder lacks and the vectors do not use are drawn, and are saved with the rest.
            torch.manual_seed(seed)
            golden = list(self.tokenizer.encode(GOLDEN, "").rows)
            self._encoder: Encoder = training_encoder(
                folder, device, self.tokenizer.pad_id, golden, self._autocast, compiled=compiled
            )
        self.modules = nn.ModuleList(self._encoder.modules())
        self.adapter = None if lora is None else TrainedAdapter(self.modules, *lora, seed)
        self._mini_tokens = _MINI_TOKENS[device.kind]
        layers = int(folder.config.get("num_hidden_layers") or folder.config.get("n_layers") or 24)
        width = int(folder.config.get("hidden_size") or folder.width)
        self._token_bytes = float(_KEPT_BYTES[device.kind] * layers * width)
        self._room_bytes = _KEPT_TOKENS_ON_CPU * self._token_bytes
        self._freeze_unused()
        if device.kind == "cuda":
            states = _STATES * sum(weight.numel() for weight in self.weights().values()) * 4
            self._room_bytes = _KEPT_SHARE * max(0, free_cuda_bytes(device.sharing) - states)

    def weights(self) -> dict[str, nn.Parameter]:
        """The weights that learn, by name, each once."""
        return {name: weight for name, weight in self.modules.named_parameters() if weight.requires_grad}

    def _freeze_unused(self) -> None:
        """Leave weights alone that no vector depends on; the others have gradients from now on, zero at first."""
        done = self.forward(self.prepare([("", "a")]))
        self.backward(done, torch.ones_like(done.vectors))
        for weight in self.modules.parameters():
            if weight.grad is None:
                weight.requires_grad_(False)
            else:
                weight.grad.zero_()

    def prepare(self, texts: Sequence[Text]) -> TokenizedTexts:
        """Tokenize (prompt, text) pairs. Another thread may do that while this one computes."""
        with self._tokenizing:
            return TokenizedTexts(len(texts), list(self._cut(texts)))

    def forward(self, texts: TokenizedTexts) -> Pass:
        """Embed texts. Graphs are kept for as many tokens as memory allows."""
        kept, before = 0, _cuda_bytes()
        found: Tensor | None = None
        for part in sorted(texts.parts, key=lambda each: sum(map(len, each.ids))):
            keeps = torch.is_grad_enabled() and (kept + part.tokens) * self._token_bytes <= self._room_bytes
            with torch.set_grad_enabled(keeps), memory_guard():
                vectors = self._encoder.vectors(part.ids, part.skip, autocast=self._autocast)
            if found is None:
                found = vectors.new_zeros(texts.count, vectors.shape[1])
            found[torch.from_numpy(part.rows).to(found.device)] = vectors.detach()
            part.vectors = vectors if keeps else None
            if keeps:
                kept += part.tokens
                if before and kept >= self._mini_tokens:
                    self._token_bytes = (_cuda_bytes() - before) / kept
            self.on_part()
        if found is None:
            found = next(self.modules.parameters()).new_zeros(0, self.folder.width)
        return Pass(found, texts.parts)

    def backward(self, done: Pass, gradients: Tensor) -> None:
        """Add the gradients of the weights, given those of the vectors."""
        for part in sorted(done.parts, key=lambda each: each.vectors is None):
            mine = gradients[torch.from_numpy(part.rows).to(gradients.device)]
            vectors, part.vectors = part.vectors, None
            with memory_guard():
                if vectors is None:
                    vectors = self._encoder.vectors(part.ids, part.skip, autocast=self._autocast)
                self._encoder.backward(vectors, mine, part.ids)
            self.on_part()

    def embed(self, texts: Sequence[Text]) -> Tensor:
        """The vectors of texts, for evaluation."""
        while True:
            with contextlib.suppress(DeviceOutOfMemory), torch.no_grad():
                return self.forward(self.prepare(texts)).vectors
            self.shrink()

    def shrink(self) -> None:
        """Use less memory from now on: keep no graphs, then take smaller mini-batches."""
        if self._room_bytes:
            self._room_bytes = 0.0
        elif self._mini_tokens > _LEAST_MINI_TOKENS:
            self._mini_tokens //= 2
        else:
            raise DeviceOutOfMemory("A single text does not fit in memory.", hint="Lower --max-tokens.")

    def _cut(self, texts: Sequence[Text]) -> Iterator[_Part]:
        """Mini-batches of texts of about the same length, each with one prompt."""
        by_prompt: dict[str, list[int]] = {}
        for i, (prompt, _) in enumerate(texts):
            by_prompt.setdefault(prompt, []).append(i)
        for prompt, rows in by_prompt.items():
            encoded = self.tokenizer.encode([texts[i][1] for i in rows], prompt)
            for k, reason in encoded.bad.items():
                raise TaskError(
                    f"The text {texts[rows[k]][1][:40]!r} cannot be trained on: {reason}.",
                    hint="Take it out of the source, and start over with --fresh.",
                )
            tokens = encoded.rows
            skip = self.tokenizer.prompt_tokens(prompt)
            for chosen in token_batches(tokens.lengths, self._mini_tokens):
                yield _Part(np.array(rows)[chosen], [tokens[int(i)] for i in chosen], skip)


def _cuda_bytes() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
