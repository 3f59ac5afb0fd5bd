"""Embed texts with any sentence-transformers model; only safetensors are read and no code of a model is run.

task = EmbedTask(model="all-MiniLM-L6-v2")
task.open(Device("cpu", "cpu", threads=4))
rows = task.run(task.prepare(["a text"]).inputs).rows
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shardmill.devices import Device
from shardmill.errors import ModelError, SpecError, missing_extra
from shardmill.tasks.base import Output, Prepared
from shardmill.tasks.embed.find import MINILM, Location, check_bundled, find_model
from shardmill.tasks.embed.fingerprint import digest_folder
from shardmill.tasks.embed.folder import ModelFolder, read_folder
from shardmill.tasks.embed.golden import GOLDEN, agree

if TYPE_CHECKING:
    from shardmill.tasks.embed.encoder import Encoder
    from shardmill.tasks.embed.tokens import Tokenizer

_CPU_BUDGET_TOKENS = 1024
_CUDA_BUDGET_TOKENS = 32768


class EmbedParams(BaseModel):
    """What `[task]` may say: the model, how many dimensions to keep, how they are stored, the prompt, the length."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(MINILM, min_length=1)
    dims: int | None = Field(None, ge=1)
    dtype: Literal["float32", "float16"] = "float32"
    prompt: str | None = None
    max_tokens: int | None = Field(None, ge=1)


class EmbedTask:
    """The `embed` task: one vector a text, in the column `embedding`."""

    def __init__(self, **params: Any) -> None:
        try:
            self.params = EmbedParams(**params)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors())
            known = ", ".join(EmbedParams.model_fields)
            raise SpecError(f"The embed task cannot be made: {wrong}.", hint=f"Its parameters are {known}.") from error
        self.batch_budget = _CPU_BUDGET_TOKENS
        self.notes: list[str] = []
        self._device = ""
        self._encoder: Encoder | None = None
        self._exact: Encoder | None = None

    @cached_property
    def _location(self) -> Location:
        return find_model(self.params.model)

    @cached_property
    def _folder(self) -> ModelFolder:
        return read_folder(self._location.path)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from shardmill.tasks.embed.tokens import load_tokenizer

        return load_tokenizer(self._folder, self.params.max_tokens)

    @cached_property
    def _prompt(self) -> str:
        return self._folder.prompt_text(self.params.prompt)

    @property
    def dims(self) -> int:
        """How many dimensions a stored vector has."""
        wanted, there = self.params.dims or self._folder.truncate_width, self._folder.width
        if self.params.dims is not None and self.params.dims > there:
            raise ModelError(f"{self._location.name} has {there} dimensions, not {wanted}.", hint="Lower dims.")
        return min(wanted or there, there)

    @property
    def unit_norm(self) -> bool:
        """Whether the model promises vectors of length one."""
        return self._folder.normalizes

    @property
    def output(self) -> pa.Schema:
        kind = pa.float32() if self.params.dtype == "float32" else pa.float16()
        return pa.schema([pa.field("embedding", pa.list_(kind, self.dims), nullable=True)])

    def fingerprint(self) -> dict[str, str]:
        return {"model": self._location.name, **digest_folder(self._location.path)}

    def open(self, device: Device) -> None:
        """Load the model and check it: batched in the device's precision against one by one in float32."""
        try:
            import torch

            from shardmill.tasks.embed.encoder import Encoder, quiet
        except ImportError as error:
            raise missing_extra(error.name or "torch", "embed") from error
        check_bundled(self._location)
        self._device = "cuda:0" if device.kind == "cuda" else "cpu"
        self.batch_budget = _CUDA_BUDGET_TOKENS if device.kind == "cuda" else _CPU_BUDGET_TOKENS
        if device.kind == "cpu":
            torch.set_num_threads(device.threads)
        with quiet():
            golden = [row for row in self._tokenizer.encode(GOLDEN, self._prompt).rows if row is not None]
        encoder = Encoder(self._folder, device=self._device, pad_id=self._tokenizer.pad_id)
        expected = np.concatenate([encoder.encode([row], self._skip) for row in golden])
        if not np.isfinite(expected).all():
            raise ModelError(f"{self._location.name} gives NaN or infinity in float32.", hint="Fetch the model again.")
        if device.kind == "cuda":
            bf16 = "bfloat16" in (self._folder.config.get("dtype"), self._folder.config.get("torch_dtype"))
            encoder.cast(torch.bfloat16 if bf16 else torch.float16)
        if not agree(encoder.encode(golden, self._skip), expected):
            chosen = str(encoder.dtype).removeprefix("torch.")
            self.notes.append(f"{self._location.name} is not exact in {chosen} batches here; it runs in plain float32.")
            encoder = self._plain_encoder()
        self._encoder = encoder

    def prepare(self, texts: Sequence[str | None]) -> Prepared:
        """Tokenize; None stays None at no cost."""
        return self._tokenizer.encode(texts, self._prompt).prepared()

    def run(self, inputs: Sequence[Any]) -> Output:
        vectors = self._vectors(inputs, self._skip)
        bad = dict.fromkeys(_not_finite(vectors), "the model gave NaN or infinity for this text")
        if self.params.dtype == "float16":
            with np.errstate(over="ignore"):
                stored: NDArray[Any] = vectors.astype(np.float16)
            bad = dict.fromkeys(_not_finite(stored), "the vector does not fit in float16") | bad
        else:
            stored = vectors
        stored[list(bad)] = 0
        null = np.zeros(len(stored), bool)
        null[list(bad)] = True
        kind = self.output.field("embedding").type
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(stored.reshape(-1)), type=kind, mask=pa.array(null) if bad else None
        )
        return Output(pa.record_batch([column], schema=self.output), bad)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """The vector to search with: the model's prompt for queries goes before `text`, and no other."""
        prompt = self._folder.prompts.get("query", "")
        row = self._tokenizer.encode([text], prompt).rows[0]
        if row is None:
            raise SpecError("The query has no tokens.", hint="Write a few words.")
        vector: NDArray[np.float32] = self._vectors([row], self._tokenizer.prompt_tokens(prompt))[0]
        return vector

    @cached_property
    def _skip(self) -> int:
        return self._tokenizer.prompt_tokens(self._prompt)

    def _vectors(self, rows: Sequence[NDArray[np.int32]], skip: int) -> NDArray[np.float32]:
        if self._encoder is None:
            raise RuntimeError("open() comes before run()")
        if not rows:
            return np.empty((0, self.dims), np.float32)
        vectors = self._encoder.encode(rows, skip)
        again = _not_finite(vectors) if self._lower_precision() else []
        for i in again:
            if self._exact is None:
                self._exact = self._plain_encoder()
            vectors[i] = self._exact.encode([rows[i]], skip)[0]
        if self.dims == vectors.shape[1]:
            return vectors
        vectors = np.ascontiguousarray(vectors[:, : self.dims])
        if self._folder.normalizes:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def _lower_precision(self) -> bool:
        return self._encoder is not None and self._encoder.dtype.itemsize < 4

    def _plain_encoder(self) -> Encoder:
        from shardmill.tasks.embed.encoder import Encoder

        return Encoder(self._folder, device=self._device, pad_id=self._tokenizer.pad_id, attention="eager")


def _not_finite(vectors: NDArray[Any]) -> list[int]:
    rows: list[int] = np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist()
    return rows
