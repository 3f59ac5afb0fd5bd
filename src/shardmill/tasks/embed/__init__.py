"""Embed texts with any sentence-transformers model; weights are safetensors only, a model's own code only if allowed.

task = EmbedTask(model="all-MiniLM-L6-v2")
task.open(Device("cpu", "cpu", threads=4))
rows = task.run(task.prepare(["a text"]).inputs).rows
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from shardmill.devices import Device
from shardmill.errors import ModelError, SpecError, missing_extra
from shardmill.models.code import names_of_code
from shardmill.models.fingerprint import digest_folder
from shardmill.models.folder import ModelFolder, read_folder
from shardmill.models.golden import GOLDEN
from shardmill.models.location import MINILM, Location, check_bundled, find_model
from shardmill.models.ragged import token_batches
from shardmill.models.window import numerics_revision
from shardmill.tasks.base import START, STOP, WINDOW, Combined, Output, Prepared, Task
from shardmill.tasks.params import read_params

if TYPE_CHECKING:
    from shardmill.models.kernels import Kernel
    from shardmill.models.tokenizer import Tokenizer
    from shardmill.tasks.embed.windows import Cutter, Window


# Weights up to N bytes; workers that share a GPU; cores that each of them needs.
_SHARING = ((150 << 20, 4, 2), (600 << 20, 2, 4))

_NOT_FINITE = "the model gave NaN or infinity for this text"
_SPAN = (pa.field(START, pa.int64()), pa.field(STOP, pa.int64()))


class EmbedParams(BaseModel):
    """The parameters of the task: the model, dimensions to keep, their type, the prompt, the maximum length.

    `window_tokens` cuts a text into windows of that many tokens, special tokens included, that share `overlap` tokens.
    The result has one row per window, or the mean of an item's windows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(MINILM, min_length=1)
    dims: int | None = Field(None, ge=1)
    dtype: Literal["float32", "float16"] = "float32"
    prompt: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    window_tokens: int | None = Field(None, ge=1)
    overlap: int | None = Field(None, ge=0)
    windows: Literal["each", "mean"] | None = None


class EmbedTask(Task):
    """The `embed` task: one vector per text, or per window of it, in the column `embedding`."""

    serves_runs = True

    def __init__(self, **params: Any) -> None:
        self.params = read_params(EmbedParams, params, "embed")
        _check_windows(self.params)
        self._by_window = self.params.window_tokens is not None and self.params.windows != "mean"
        self.batch_budget = 1
        self.padded = True
        self._choice = ""
        self._redone = 0
        self._device = Device("cpu", "cpu")
        self._kernel: Kernel | None = None

    @cached_property
    def _location(self) -> Location:
        return find_model(self.params.model)

    @cached_property
    def _folder(self) -> ModelFolder:
        return read_folder(self._location.path)

    @property
    def folder(self) -> ModelFolder:
        """The model's folder."""
        return self._folder

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from shardmill.models.tokenizer import load_tokenizer

        return load_tokenizer(self._folder, self.params.max_tokens)

    @cached_property
    def _prompt(self) -> str:
        return self._folder.prompt_text(self.params.prompt)

    @cached_property
    def _cutter(self) -> Cutter | None:
        if self.params.window_tokens is None:
            return None
        from shardmill.tasks.embed.windows import Cutter

        return Cutter(self._tokenizer, self._prompt, self.params.window_tokens, self.params.overlap or 0)

    @property
    def dims(self) -> int:
        """The number of dimensions of a stored vector."""
        wanted, there = self.params.dims or self._folder.truncate_width, self._folder.width
        if self.params.dims is not None and self.params.dims > there:
            raise ModelError(f"{self._location.name} has {there} dimensions, not {wanted}.", hint="Lower dims.")
        return min(wanted or there, there)

    @property
    def unit_norm(self) -> bool:  # type: ignore[override]
        """Whether the model normalizes its vectors to length one."""
        return self._folder.normalizes

    @property
    def output(self) -> pa.Schema:
        return pa.schema([pa.field(WINDOW, pa.int32()), *_SPAN, *self._stored]) if self._by_window else self._stored

    @property
    def _stored(self) -> pa.Schema:
        kind = pa.float32() if self.params.dtype == "float32" else pa.float16()
        return pa.schema([pa.field("embedding", pa.list_(kind, self.dims), nullable=True)])

    @property
    def model_code(self) -> tuple[str, ...]:  # type: ignore[override]
        return names_of_code(self._location.path)

    def fingerprint(self) -> dict[str, str]:
        _ = self._cutter  # Rejects windows that are too long for the model before a run is planned.
        revision = numerics_revision({**self._folder.config, **self._folder.config_options})
        return {"model": self._location.name, **digest_folder(self._location.path), **revision}

    def open(self, device: Device) -> None:
        """Load the model, and choose its kernel for this device by comparing vectors of known sentences."""
        try:
            import torch

            from shardmill.models.encoder import quiet
            from shardmill.models.kernels import choose_kernel
        except ImportError as error:
            raise missing_extra(error.name or "torch", "embed") from error
        check_bundled(self._location)
        if device.index:
            torch.cuda.set_device(device.index)
        # With a GPU, torch has no CPU work to parallelize, and every copy would wake its threads.
        torch.set_num_threads(device.threads if device.kind == "cpu" else 1)
        with quiet():
            golden = self._golden()
            choice = choose_kernel(
                self._folder,
                device,
                pad_id=self._tokenizer.pad_id,
                limit=self._tokenizer.limit,
                golden=golden,
                skip=self._skip,
            )
        self._device, self._kernel = device, choice.kernel
        self.batch_budget, self.padded = choice.batch_budget, choice.kernel.padded
        self._choice = choice.why

    def close(self) -> None:
        from shardmill.models.encoder import free_memory

        self._kernel = None
        free_memory()

    def _golden(self) -> list[NDArray[np.int32]]:
        tokens = self._tokenizer.encode(GOLDEN, self._prompt)
        if tokens.bad:
            raise ModelError(
                f"{self._location.name} cannot embed plain English: {next(iter(tokens.bad.values()))}.",
                hint="Its tokenizer does not belong to its weights: fetch the model again.",
            )
        return list(tokens.rows)

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        """Sentences for the worker's record about how the vectors were computed."""
        kernel = [f"Kernel: {self._choice}."] if self._choice else []
        again = f"{self._redone:,} texts gave NaN in half precision and were computed in float32."
        return [*kernel, *([again] if self._redone else [])]

    @property
    def numerics(self) -> dict[str, str]:  # type: ignore[override]
        """The kernel and its precision, for the commits."""
        return {"kernel": self._kernel.name, "precision": self._kernel.precision} if self._kernel is not None else {}

    @property
    def device_clock(self) -> dict[str, float] | None:  # type: ignore[override]
        """Seconds in which the GPU was busy with batches, and idle between them; None without a GPU."""
        clock = getattr(self._kernel, "clock", None)
        return {"busy_s": round(clock.busy_s, 3), "idle_s": round(clock.idle_s, 3)} if clock and clock.busy_s else None

    @property
    def _weights_bytes(self) -> int:
        return sum(f.stat().st_size for f in self._folder.transformer.glob("*.safetensors"))

    def gpu_bytes(self, precise: bool) -> int:
        """In float32, and once more in half precision if that is compared with it."""
        dtype = self._folder.config.get("dtype") or self._folder.config.get("torch_dtype")
        weights = self._weights_bytes // (2 if dtype in ("float16", "bfloat16") else 4)
        return weights * (4 if precise else 6)

    def workers_per_gpu(self, cores: int) -> int:
        """Several workers share a GPU if the model is small: it finishes before one worker tokenizes the next batch."""
        weights_bytes = self._weights_bytes
        for limit_bytes, workers, cores_each in _SHARING:
            if weights_bytes <= limit_bytes:
                return max(1, min(workers, cores // cores_each))
        return 1

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        """Tokenize; None has no tokens and costs nothing."""
        if self._cutter is not None:
            return self._cutter.prepare(texts)
        tokens = self._tokenizer.encode(texts, self._prompt)
        costs = tokens.rows.lengths
        return Prepared(tokens.rows, costs, tokens.bad, int(costs.sum()), tokens.truncated)

    def run(self, inputs: Sequence[Any]) -> Output:
        return self.begin(inputs)()

    def begin(self, inputs: Sequence[Any]) -> Callable[[], Output]:
        """Start a batch and return a function that waits for its rows; the device works in the background."""
        if self._cutter is not None:
            fetch_windows = self._begin([window.ids for window in inputs], self._skip)
            return lambda: self._window_rows(inputs, fetch_windows())
        fetch = self._begin(inputs, self._skip)
        return lambda: self._rows(fetch())

    def combine(self, items: int) -> Combined | None:
        """Return an object that averages the windows of each item; None if each window is a row."""
        if self.params.windows != "mean":
            return None
        from shardmill.tasks.embed.windows import Mean

        return Mean(items, self.dims, normalize=self.unit_norm, store=self._rows)

    def _window_rows(self, windows: Sequence[Window], vectors: NDArray[np.float32]) -> Output:
        if self._by_window:
            made = self._rows(vectors)
            spans = [pa.array([w.start for w in windows], pa.int64()), pa.array([w.stop for w in windows], pa.int64())]
            schema = pa.schema([*_SPAN, *self._stored])
            return Output(pa.record_batch([*spans, *made.rows.columns], schema=schema), made.bad)
        bad = dict.fromkeys(_not_finite(vectors), _NOT_FINITE)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.dims)
        tokens = pa.array([w.tokens for w in windows], pa.int64())
        return Output(pa.record_batch([tokens, column], names=["tokens", "embedding"]), bad)

    def _rows(self, vectors: NDArray[np.float32]) -> Output:
        bad = dict.fromkeys(_not_finite(vectors), _NOT_FINITE)
        if self.params.dtype == "float16":
            with np.errstate(over="ignore"):
                stored: NDArray[Any] = vectors.astype(np.float16)
            bad = dict.fromkeys(_not_finite(stored), "the vector does not fit in float16") | bad
        else:
            stored = vectors
        stored[list(bad)] = 0
        null = np.zeros(len(stored), bool)
        null[list(bad)] = True
        kind = self._stored.field("embedding").type
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(stored.reshape(-1)), type=kind, mask=pa.array(null) if bad else None
        )
        return Output(pa.record_batch([column], schema=self._stored), bad)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """The vector of a search query; only the model's own query prompt is put before `text`."""
        vector: NDArray[np.float32] = self.embed_queries([text])[0]
        if np.isnan(vector).all():
            raise SpecError("The query has no tokens.", hint="Write a few words.")
        return vector

    def embed_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One vector per search query, NaN for one without tokens."""
        return self._embed_all(texts, self._folder.prompts.get("query", ""))

    def embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One vector per text, cut at the model's limit, as items are embedded; NaN for one without tokens."""
        return self._embed_all(texts, self._prompt)

    def _embed_all(self, texts: Sequence[str], prompt: str) -> NDArray[np.float32]:
        rows = self._tokenizer.encode(texts, prompt).rows
        skip = self._tokenizer.prompt_tokens(prompt)
        made = np.full((len(texts), self.dims), np.nan, np.float32)
        there = np.flatnonzero(rows.lengths)
        for batch in token_batches(rows.lengths[there], self.batch_budget):
            made[there[batch]] = self._begin([rows[int(i)] for i in there[batch]], skip)()
        return made

    @cached_property
    def _skip(self) -> int:
        return self._tokenizer.prompt_tokens(self._prompt)

    def _begin(self, rows: Sequence[NDArray[np.int32]], skip: int) -> Callable[[], NDArray[np.float32]]:
        if self._kernel is None:
            raise RuntimeError("call open() before run()")
        if not rows:
            return lambda: np.empty((0, self.dims), np.float32)
        fetch = self._kernel.begin(rows, skip)
        return lambda: self._finish(rows, skip, fetch())

    def _finish(
        self, rows: Sequence[NDArray[np.int32]], skip: int, vectors: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Recompute in float32 what overflowed in half precision, and truncate to the requested dimensions."""
        again = [] if self._kernel is None or self._kernel.precision == "float32" else _not_finite(vectors)
        for i in again:
            vectors[i] = self._exact.encode([rows[i]], skip)[0]
        self._redone += len(again)
        if self.dims == vectors.shape[1]:
            return vectors
        vectors = np.ascontiguousarray(vectors[:, : self.dims])
        if self._folder.normalizes:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    @cached_property
    def _exact(self) -> Kernel:
        from shardmill.models.kernels import plain_kernel

        return plain_kernel(self._folder, self._device, self._tokenizer.pad_id)


def _check_windows(params: EmbedParams) -> None:
    if params.window_tokens is None:
        for name in ("overlap", "windows"):
            if getattr(params, name) is not None:
                raise SpecError(f"{name} is given without window_tokens.", hint="Give --window-tokens 256 as well.")
    elif (params.overlap or 0) >= params.window_tokens:
        raise SpecError(
            f"An overlap of {params.overlap:,} tokens leaves no new tokens in a window of {params.window_tokens:,}.",
            hint="Lower --overlap, or raise --window-tokens.",
        )


def _not_finite(vectors: NDArray[Any]) -> list[int]:
    rows: list[int] = np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist()
    return rows
