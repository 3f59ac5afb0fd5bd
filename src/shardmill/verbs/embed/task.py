"""Embed texts with any sentence-transformers model; a model's own code runs only if allowed, and no pickle is read.

task = EmbedTask(model="all-MiniLM-L6-v2")
task.open(Device("cpu", "cpu", threads=4))
rows = task.run(task.prepare(["a text"]).inputs).rows
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardmill.core.console import say
from shardmill.core.dialect import name_option
from shardmill.core.errors import SpecError, TaskError
from shardmill.core.quantised import BYTE_TYPES, Quantiser, Ranges
from shardmill.models.embedder import NOT_FINITE, TextEmbedder, not_finite
from shardmill.models.folder import ModelFolder
from shardmill.models.golden import cosines, lowest_of_many, lowest_rounded
from shardmill.models.pictures.embedder import PictureEmbedder
from shardmill.plan import BYTES
from shardmill.sources.documents.document import PAGE
from shardmill.tasks import open_here
from shardmill.tasks.base import PLAIN_TEXT, START, STOP, WINDOW, Combined, Output, Prepared, SourceSample, Task
from shardmill.tasks.encoding import EncoderTask
from shardmill.tasks.params import read_params
from shardmill.verbs.embed.params import EmbedParams

if TYPE_CHECKING:
    from shardmill.verbs.embed.windows import Cutter, Window

# Texts that the ranges of int8 and uint8 are measured on, and their characters at most.
_CALIBRATED, _CALIBRATED_CHARACTERS = 512, 2_000
# How far the cosine is from 1 if every number is off by one step of int8, and a little more.
_ONE_STEP_OFF = 5e-4
# Bits differ by chance: up to three times as many as on average, and some more of a short vector.
_TIMES_THE_AVERAGE, _BITS_MORE = 3.0, 4
# Source bytes per second, if a picture has a hundred thousand of them.
_PICTURE_BYTES_PER_S = {"cpu": 1e6, "cuda": 5e7}
_OF_TEXTS = ("adapter", "prompt", "max_tokens", "window_tokens", "precision")
_SPAN = (pa.field(START, pa.int64()), pa.field(STOP, pa.int64()))


class EmbedTask(EncoderTask):
    """The `embed` task: one vector per text, or per window of it, in the column `embedding`."""

    encoder: TextEmbedder | PictureEmbedder
    serves_runs = True
    takes_adapters = True

    def __init__(self, **params: Any) -> None:
        self.params = read_params(EmbedParams, params, "embed")
        _check_windows(self.params)
        self._by_window = self.params.window_tokens is not None and self.params.windows != "mean"
        own = self.params
        if own.ranges is not None and own.dtype not in BYTE_TYPES:
            raise SpecError(f"ranges are given with dtype {own.dtype}.", hint="They belong to int8 and uint8.")
        if own.pictures:
            self.encoder = _open_pictures(own)
            self.embed_picture = self._embed_picture
            return
        self.encoder = TextEmbedder(
            own.model,
            dims=own.dims,
            prompt=own.prompt,
            max_tokens=own.max_tokens,
            precision=self.rounded,
            adapter=own.adapter,
        )

    @property
    def _pictures(self) -> PictureEmbedder | None:
        """What embeds pictures, if items are such."""
        return self.encoder if isinstance(self.encoder, PictureEmbedder) else None

    @property
    def _texts(self) -> TextEmbedder:
        """What embeds texts."""
        assert isinstance(self.encoder, TextEmbedder)
        return self.encoder

    @property
    def folder(self) -> ModelFolder | None:
        """The model's folder, if it is one of texts."""
        return None if self._pictures else self._texts.folder

    @property
    def item_bytes(self) -> int:  # type: ignore[override]
        return self._pictures.item_bytes if self._pictures else 0

    def bytes_per_s(self, kind: str) -> float:
        return _PICTURE_BYTES_PER_S[kind] if self._pictures else super().bytes_per_s(kind)

    @property
    def rounded(self) -> str:  # type: ignore[override]
        return self.params.precision or ""

    @cached_property
    def _cutter(self) -> Cutter | None:
        if self.params.window_tokens is None:
            return None
        from shardmill.verbs.embed.windows import Cutter

        own = self._texts
        borders = bool(self.params.borders)
        return Cutter(own.tokenizer, own.prompt, self.params.window_tokens, self.params.overlap or 0, borders)

    @property
    def border_param(self) -> str:  # type: ignore[override]
        return "" if self.params.window_tokens is None else "borders"

    @property
    def page_param(self) -> str:  # type: ignore[override]
        return "page" if self._by_window else ""

    @property
    def fields(self) -> tuple[str, ...]:  # type: ignore[override]
        return (PAGE,) if self._by_window and self.params.page else ()

    @property
    def dims(self) -> int:
        """The number of dimensions of a stored vector."""
        return self.encoder.dims

    @property
    def unit_norm(self) -> bool:  # type: ignore[override]
        """Whether the model normalizes its vectors to length one."""
        return self.encoder.normalizes

    @cached_property
    def quantiser(self) -> Quantiser | None:  # type: ignore[override]
        """How a vector is stored in fewer bits."""
        dtype, ranges = self.params.dtype, self.params.ranges
        if dtype == "float32" or dtype == "float16":
            return None
        return Quantiser(dtype, self.dims, None if ranges is None else _read_ranges(ranges, self.dims))

    @property
    def settles(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("ranges",) if self.params.dtype in BYTE_TYPES else ()

    def settle(self, source: SourceSample) -> dict[str, Any]:
        """The ranges of each dimension, by texts from all over the source."""
        if not (texts := source.texts(_CALIBRATED)):
            raise SpecError(
                f"The source has no texts to measure for --dtype {self.params.dtype}.", hint="Choose float16 or binary."
            )
        if not source.quiet:
            say(f"Measuring the range of each dimension on {len(texts):,} texts.")
        open_here(self, precise=False)
        try:
            vectors = self._texts.embed_texts([text[:_CALIBRATED_CHARACTERS] for text in texts])
        finally:
            self.close()
        return {"ranges": Ranges.of(np.delete(vectors, not_finite(vectors), axis=0)).to_json()}

    @property
    def output(self) -> pa.Schema:
        return pa.schema([pa.field(WINDOW, pa.int32()), *self._placed]) if self._by_window else self._stored

    @property
    def _placed(self) -> pa.Schema:
        """Where a window is, and its vector."""
        return pa.schema([*_SPAN, *(pa.field(name, pa.int64()) for name in self.fields), *self._stored])

    @property
    def _stored(self) -> pa.Schema:
        if (own := self.quantiser) is not None:
            return pa.schema([pa.field("embedding", pa.binary(own.width), nullable=True, metadata=own.describe())])
        kind = pa.float32() if self.params.dtype == "float32" else pa.float16()
        return pa.schema([pa.field("embedding", pa.list_(kind, self.dims), nullable=True)])

    @property
    def model_code(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.encoder.model_code

    def fingerprint(self) -> dict[str, str]:
        _ = self._cutter  # Rejects windows that are too long for the model before a run is planned.
        return self.encoder.fingerprint()

    @property
    def plan_notes(self) -> list[str]:  # type: ignore[override]
        return self.encoder.plan_notes

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        """Tokenize, or decode pictures; None has no tokens and costs nothing."""
        if self._pictures is not None:
            return _prepare_pictures(self._pictures, texts, fields)
        if self._cutter is not None:
            paged = pc.indices_nonzero(fields.column(PAGE).is_valid()).to_pylist() if fields is not None else ()
            return self._cutter.prepare(texts, paged)
        tokens = self._texts.encode(texts)
        costs = tokens.rows.lengths
        return Prepared(tokens.rows, costs, tokens.bad, int(costs.sum()), tokens.truncated)

    def begin(self, inputs: Sequence[Any]) -> Callable[[], Output]:
        """Start a batch and return a function that waits for its rows; the device works in the background."""
        if self._cutter is not None:
            fetch_windows = self._texts.begin([window.ids for window in inputs])
            return lambda: self._window_rows(inputs, fetch_windows())
        if self._pictures is not None:
            fetch = self._pictures.begin(np.asarray(inputs, np.uint8))
        else:
            fetch = self._texts.begin(inputs)
        return lambda: self._rows(fetch())

    def combine(self, items: int) -> Combined | None:
        """Return an object that averages the windows of each item; None if each window is a row."""
        if self.params.windows != "mean":
            return None
        from shardmill.verbs.embed.windows import Mean

        return Mean(items, self.dims, normalize=self.unit_norm, store=self._rows)

    def _window_rows(self, windows: Sequence[Window], vectors: NDArray[np.float32]) -> Output:
        if self._by_window:
            made = self._rows(vectors)
            places = [[w.start for w in windows], [w.stop for w in windows], [w.page or None for w in windows]]
            columns = [pa.array(numbers, pa.int64()) for numbers in places[: len(_SPAN) + len(self.fields)]]
            return Output(pa.record_batch([*columns, *made.rows.columns], schema=self._placed), made.bad)
        bad = dict.fromkeys(not_finite(vectors), NOT_FINITE)
        column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.dims)
        tokens = pa.array([w.tokens for w in windows], pa.int64())
        return Output(pa.record_batch([tokens, column], names=["tokens", "embedding"]), bad)

    def _rows(self, vectors: NDArray[np.float32]) -> Output:
        bad = dict.fromkeys(not_finite(vectors), NOT_FINITE)
        if self.quantiser is not None:
            return self._coded(self.quantiser, vectors, bad)
        if self.params.dtype == "float16":
            with np.errstate(over="ignore"):
                stored: NDArray[Any] = vectors.astype(np.float16)
            bad = dict.fromkeys(not_finite(stored), "the vector does not fit in float16") | bad
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

    def _coded(self, quantiser: Quantiser, vectors: NDArray[np.float32], bad: dict[int, str]) -> Output:
        vectors[list(bad)] = 0
        codes = [row.tobytes() for row in quantiser.encode(vectors)]
        rows = [None if i in bad else code for i, code in enumerate(codes)]
        return Output(pa.record_batch([pa.array(rows, pa.binary(quantiser.width))], schema=self._stored), bad)

    def for_reference(self) -> Task:
        if self.quantiser is None:
            return self
        plain = self.params.model_dump(exclude_unset=True, exclude={"dtype", "ranges"})
        return EmbedTask(**plain)

    def distance(self, column: str, stored: Any, again: Any) -> float | None:
        """Of bits, the share that differs; of bytes, how far the cosine of what they stand for is from 1."""
        if (quantiser := self.quantiser) is None or column != "embedding":
            return None
        if not (stored.is_valid and again.is_valid):
            return float(stored.is_valid != again.is_valid)
        vector = np.asarray(again.values.to_numpy(zero_copy_only=False), np.float32)[None]
        there, made = quantiser.read(stored.as_py()), quantiser.encode(vector)
        if np.array_equal(there, made):
            return 0.0
        if quantiser.dtype == "binary":
            return float(np.unpackbits(np.bitwise_xor(there, made)).sum()) / self.dims
        [cosine] = cosines(quantiser.decode(there), quantiser.decode(made))
        return max(1.0 - float(cosine), float(np.finfo(np.float64).eps))

    def most_distant(self, precision: str) -> float | None:
        if self.quantiser is None:
            return None
        least = lowest_rounded(self.rounded) if self.rounded else lowest_of_many(precision)
        if self.quantiser.dtype != "binary":
            return 1.0 - least + _ONE_STEP_OFF
        # Of two vectors with an angle between them, this share of the signs differs on average.
        return _TIMES_THE_AVERAGE * math.acos(least) / math.pi + _BITS_MORE / self.dims

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """The vector of a search query; only the model's own query prompt is put before `text`."""
        vector: NDArray[np.float32] = self.encoder.embed_queries([text])[0]
        if np.isnan(vector).all():
            raise SpecError("The query has no tokens.", hint="Write a few words.")
        return vector

    def _embed_picture(self, content: bytes) -> NDArray[np.float32]:
        assert self._pictures is not None
        pixels, bad = self._pictures.decode([content])
        if bad:
            raise SpecError(f"The picture to search for: {bad[0]}.", hint="Give a JPEG, PNG or WebP file.")
        vector: NDArray[np.float32] = self._pictures.begin(pixels)()[0]
        return vector


def _open_pictures(params: EmbedParams) -> PictureEmbedder:
    """What embeds pictures; refuses parameters that are of texts."""
    if given := [name for name in _OF_TEXTS if getattr(params, name) is not None]:
        raise SpecError(f"{name_option(given[0])} has no meaning for pictures.", hint="Leave it out.")
    if params.dtype in BYTE_TYPES:
        raise SpecError(
            f"--dtype {params.dtype} has no meaning for pictures: its ranges are measured on texts.",
            hint="Choose float16 or binary.",
        )
    return PictureEmbedder(params.model, dims=params.dims, max_pixels=params.max_pixels)


def _prepare_pictures(
    embedder: PictureEmbedder, texts: Sequence[str | None], fields: pa.RecordBatch | None
) -> Prepared:
    """The pixels of items that are bytes; the text of each is their digest."""
    if fields is None or BYTES not in fields.schema.names:
        if any(text is not None and text != PLAIN_TEXT for text in texts):
            raise TaskError("The items are no pictures.", hint="Name the column that has them: --picture COLUMN")
        pixels, bad = embedder.golden(len(texts)), dict[int, str]()
    else:
        contents = fields.column(BYTES).to_pylist()
        given = [content if text is not None else None for content, text in zip(contents, texts, strict=True)]
        pixels, bad = embedder.decode(given)
    costs = np.full(len(texts), embedder.folder.patches, np.int64)
    costs[[row for row, text in enumerate(texts) if text is None]] = 0
    return Prepared(pixels, costs, bad, int(costs.sum()))


def _read_ranges(ranges: list[list[float]], dims: int) -> Ranges:
    if [len(each) for each in ranges] != [dims, dims]:
        raise SpecError(f"ranges are not two lists of {dims} numbers.", hint="Leave them out: planning measures them.")
    return Ranges.read(ranges)


def _check_windows(params: EmbedParams) -> None:
    if params.window_tokens is None:
        for name in ("overlap", "windows", "borders", "page"):
            if getattr(params, name) is not None:
                raise SpecError(f"{name} is given without window_tokens.", hint="Give --window-tokens 256 as well.")
    elif (params.overlap or 0) >= params.window_tokens:
        raise SpecError(
            f"An overlap of {params.overlap:,} tokens leaves no new tokens in a window of {params.window_tokens:,}.",
            hint="Lower --overlap, or raise --window-tokens.",
        )
