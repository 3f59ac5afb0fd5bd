"""Texts in, vectors out, with any sentence-transformers model. Tasks that need vectors of texts use it.

embedder = TextEmbedder("all-MiniLM-L6-v2")
embedder.open(Device("cpu", "cpu", threads=4))
vectors = embedder.embed_texts(["a text"])
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError
from shardmill.core.extras import missing_package
from shardmill.models.code import names_of_code
from shardmill.models.folder import ModelFolder, read_folder
from shardmill.models.golden import GOLDEN
from shardmill.models.installed import check_torch, has_torch
from shardmill.models.kinds import note_kind, note_pooling, refuse_reranker, refuse_sparse, refuse_tokens
from shardmill.models.location import Location, check_bundled, find_model
from shardmill.models.names import MINILM
from shardmill.models.padding import padding_revision
from shardmill.models.ragged import token_batches
from shardmill.models.rounded import INT8, check_rounds_here, name_arithmetic
from shardmill.models.window import numerics_revision

if TYPE_CHECKING:
    from shardmill.models.kernels import Kernel, KernelChoice
    from shardmill.models.tokenizer import Tokenizer, Tokens

# Weights up to N bytes; workers that share a GPU; cores that each of them needs.
_SHARING = ((150 << 20, 4, 2), (600 << 20, 2, 4))

NOT_FINITE = "the model gave NaN or infinity for this text"


class TextEmbedder:
    """A model that embeds, opened once in each worker; `dims` keeps the first dimensions, `prompt` is put before texts.

    An `adapter` is merged into its weights.

    With a `precision`, workers compute in it and in no other; queries and references stay in float32. Nothing is read
    before it is asked for. `batch_budget` and `padded` are known after `open`.
    """

    def __init__(
        self,
        model: str = MINILM,
        *,
        dims: int | None = None,
        prompt: str | None = None,
        max_tokens: int | None = None,
        precision: str = "",
        adapter: str | None = None,
    ) -> None:
        self.rounded = precision
        self._name, self._dims, self._prompt_name, self._max_tokens = model, dims, prompt, max_tokens
        self._adapter = adapter
        self.batch_budget = 1
        self.padded = True
        self._choice = ""
        self._redone = 0
        self._device = Device("cpu", "cpu")
        self._kernel: Kernel | None = None

    @cached_property
    def location(self) -> Location:
        """Where the model is."""
        return find_model(self._name, self._adapter)

    @cached_property
    def folder(self) -> ModelFolder:
        """The model's folder."""
        refuse_reranker(self.location.path)
        refuse_sparse(self.location.path)
        refuse_tokens(self.location.path)
        return read_folder(self.location.path)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, which cuts texts at the maximum length."""
        if self.folder.static is not None:
            from shardmill.models.static.tokenizer import load_static_tokenizer

            return load_static_tokenizer(self.folder.static, self._max_tokens)
        from shardmill.models.tokenizer import load_tokenizer

        return load_tokenizer(self.folder, self._max_tokens)

    @cached_property
    def prompt(self) -> str:
        """The text that is put before every text."""
        return self.folder.prompt_text(self._prompt_name)

    @cached_property
    def skip(self) -> int:
        """The tokens of the prompt that pooling leaves out."""
        return self.tokenizer.prompt_tokens(self.prompt)

    @property
    def dims(self) -> int:
        """The number of dimensions of a vector."""
        wanted, there = self._dims or self.folder.truncate_width, self.folder.width
        if self._dims is not None and self._dims > there:
            raise ModelError(
                f"{self.location.name} has {there} dimensions, not {wanted}.", hint=f"Choose {there} or fewer."
            )
        return min(wanted or there, there)

    @property
    def normalizes(self) -> bool:
        """Whether the model normalizes its vectors to length one."""
        return self.folder.normalizes

    @property
    def model_code(self) -> tuple[str, ...]:
        """The names of code that comes with the model."""
        return names_of_code(self.location.path)

    def fingerprint(self) -> dict[str, str]:
        """What the vectors depend on: the weights, the configuration, and how the windows of attention are computed."""
        revision = numerics_revision({**self.folder.config, **self.folder.config_options})
        revision |= padding_revision(self.folder.config)
        made = {"model": self.location.name, **self.location.digests(), **revision}
        return {**made, **name_arithmetic(self.rounded)}

    def check_installed(self, kind: str) -> None:
        """Refuse a model for which a library is missing here, on a kind of device, `cpu` or `cuda`."""
        if self.rounded:
            check_rounds_here(self.folder, kind, self.location.name, self.rounded)
        elif self.folder.static is not None:
            from shardmill.models.choosing import check_static

            check_static(kind, self.location.name)
            _ = self.tokenizer
        elif self.folder.exported is not None:
            from shardmill.models.exported.choosing import check_runs_on

            check_runs_on(kind, self.location.name)
        elif kind == "cuda":
            check_torch()
        elif not has_torch():
            from shardmill.models.choosing import check_without_torch

            check_without_torch(self.folder)
            _ = self.tokenizer

    def open(self, device: Device) -> None:
        """Load the model, and choose its kernel for this device by comparing vectors of known sentences."""
        from shardmill.models.choosing import choose_kernel, choose_static
        from shardmill.models.kernels import Tried

        check_bundled(self.location)
        tokenizer = self.tokenizer
        rounded = "" if device.precise or device.reference else self.rounded
        if self.folder.static is not None:
            if rounded:
                check_rounds_here(self.folder, device.kind, self.location.name, rounded)
            self._take(choose_static(self.folder, device), device)
            return
        tried = Tried(self.folder, tokenizer.pad_id, tokenizer.limit, self._golden(), self.skip, rounded)
        try:
            choice = choose_kernel(tried, device)
        except ImportError as error:
            raise missing_package(error.name or "torch", "embed") from error
        self._take(choice, device)

    def _take(self, choice: KernelChoice, device: Device) -> None:
        self._device, self._kernel = device, choice.kernel
        self.batch_budget, self.padded = choice.batch_budget, choice.kernel.padded
        self._choice = choice.why

    def used_otherwise(self, *, prompt: str | None = None, **folder: Any) -> TextEmbedder:
        """The same weights, opened, with another prompt, or as if the model's folder said something else.

        `folder` are fields of `ModelFolder`; with `max_tokens`, the limit of this embedder does not count.
        """
        other = copy.copy(self)
        other.folder = replace(self.folder, **folder)
        stale = ["prompt", "skip"]
        if {"max_tokens", "lower_case", "tokenizer_options"} & folder.keys():
            stale.append("tokenizer")
        for name in stale:
            other.__dict__.pop(name, None)
        other._prompt_name = self.prompt if prompt is None else prompt
        other._max_tokens = None if "max_tokens" in folder else self._max_tokens
        if "pooling" in folder and self._kernel is not None:
            other._kernel = self._kernel.pooled_by(other.folder.pooling)
        return other

    def close(self) -> None:
        """Free the device."""
        self._kernel = None
        if "torch" in sys.modules:
            from shardmill.models.encoder import free_memory

            free_memory()

    def _golden(self) -> list[NDArray[np.int32]]:
        tokens = self.tokenizer.encode(GOLDEN, self.prompt)
        if tokens.bad:
            raise ModelError(
                f"{self.location.name} cannot embed plain English: {next(iter(tokens.bad.values()))}.",
                hint="Its tokenizer does not belong to its weights: fetch the model again.",
            )
        return list(tokens.rows)

    @property
    def plan_notes(self) -> list[str]:
        """What the user should know of the model before a run."""
        path = self.location.path
        note = note_kind(path) or note_pooling(path, self.folder.pooling.modes)
        return [note] if note else []

    @property
    def notes(self) -> list[str]:
        """Sentences for the worker's record about how the vectors were computed."""
        kernel = [f"Kernel: {self._choice}."] if self._choice else []
        again = f"{self._redone:,} texts gave NaN in half precision and were computed in float32."
        return [*kernel, *([again] if self._redone else [])]

    @property
    def numerics(self) -> dict[str, str]:
        """The kernel and its precision, for the commits."""
        return {"kernel": self._kernel.name, "precision": self._kernel.precision} if self._kernel is not None else {}

    @property
    def device_clock(self) -> dict[str, float] | None:
        """Seconds in which the GPU was busy with batches, and idle between them; None without a GPU."""
        clock = getattr(self._kernel, "clock", None)
        return {"busy_s": round(clock.busy_s, 3), "idle_s": round(clock.idle_s, 3)} if clock and clock.busy_s else None

    @property
    def _weights_bytes(self) -> int:
        exported = self.folder.exported
        files = self.folder.transformer.glob("*.safetensors") if exported is None else exported.files
        return sum(f.stat().st_size for f in files)

    def gpu_bytes(self, precise: bool) -> int | None:
        """In float32, and once more in half precision if that is compared with it; None for what runs on CPUs only."""
        if self.rounded == INT8 or self.folder.exported is not None or self.folder.static is not None:
            return None
        dtype = self.folder.config.get("dtype") or self.folder.config.get("torch_dtype")
        weights = self._weights_bytes // (2 if dtype in ("float16", "bfloat16") else 4)
        return weights * (4 if precise else 6)

    def workers_per_gpu(self, cores: int) -> int:
        """Several workers share a GPU if the model is small: it finishes before one worker tokenizes the next batch."""
        weights_bytes = self._weights_bytes
        for limit_bytes, workers, cores_each in _SHARING:
            if weights_bytes <= limit_bytes:
                return max(1, min(workers, cores // cores_each))
        return 1

    def encode(self, texts: Sequence[str | None]) -> Tokens:
        """The tokens of texts, after the prompt; None has none."""
        return self.tokenizer.encode(texts, self.prompt)

    def begin(self, rows: Sequence[NDArray[np.int32]], skip: int | None = None) -> Callable[[], NDArray[np.float32]]:
        """Start a batch of tokens and return a function that waits for its vectors; the device works in the background.

        `skip` is the number of tokens of another prompt than its own.
        """
        if self._kernel is None:
            raise RuntimeError("call open() before run()")
        if not rows:
            return lambda: np.empty((0, self.dims), np.float32)
        skipped = self.skip if skip is None else skip
        fetch = self._kernel.begin(rows, skipped)
        return lambda: self._finish(rows, skipped, fetch())

    def _finish(
        self, rows: Sequence[NDArray[np.int32]], skip: int, vectors: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Recompute in float32 what overflowed in half precision, and truncate to the requested dimensions."""
        # No row in float32 gets into a run that asks for another precision.
        as_is = self.rounded or self._kernel is None or self._kernel.precision == "float32"
        again = [] if as_is else not_finite(vectors)
        for i in again:
            vectors[i] = self._exact.encode([rows[i]], skip)[0]
        self._redone += len(again)
        if self.dims == vectors.shape[1]:
            return vectors
        vectors = np.ascontiguousarray(vectors[:, : self.dims])
        if self.normalizes:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    @cached_property
    def _exact(self) -> Kernel:
        """The model in float32, computed by what computes it now."""
        if hasattr(self._kernel, "clock"):
            from shardmill.models.torch_kernels import plain_kernel

            return plain_kernel(self.folder, self._device, self.tokenizer.pad_id)
        if self.folder.exported is not None:
            from shardmill.models.exported.encoder import ExportedEncoder

            own = ExportedEncoder(
                self.folder, pad_id=self.tokenizer.pad_id, threads=self._device.threads, precision="f32"
            )
            return own.one_by_one()
        from shardmill.models.plain import PlainEncoder

        return PlainEncoder(self.folder, pad_id=self.tokenizer.pad_id)

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One vector per search query, after the model's own query prompt only; NaN for one without tokens."""
        return self._embed_all(texts, self.folder.prompts.get("query", ""))

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One vector per text, cut at the model's limit, as items are embedded; NaN for one without tokens."""
        return self._embed_all(texts, self.prompt)

    def _embed_all(self, texts: Sequence[str], prompt: str) -> NDArray[np.float32]:
        rows = self.tokenizer.encode(texts, prompt).rows
        skip = self.tokenizer.prompt_tokens(prompt)
        made = np.full((len(texts), self.dims), np.nan, np.float32)
        there = np.flatnonzero(rows.lengths)
        for batch in token_batches(rows.lengths[there], self.batch_budget):
            made[there[batch]] = self.begin([rows[int(i)] for i in there[batch]], skip)()
        return made


def not_finite(vectors: NDArray[Any]) -> list[int]:
    """The rows that have NaN or infinity."""
    rows: list[int] = np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist()
    return rows
