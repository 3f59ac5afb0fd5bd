"""Score pairs of texts with a re-ranker, or each candidate of a query.

task = ScoreTask(model="./reranker", query_text="question")
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardmill.core.devices import Device
from shardmill.core.errors import SpecError
from shardmill.core.template import TextTemplate, check_text, kind_of
from shardmill.models.embedder import not_finite
from shardmill.models.kinds import RERANKER
from shardmill.models.location import Location, check_bundled, find_model
from shardmill.models.networks.stored import Reals
from shardmill.models.pair_golden import most_distant
from shardmill.models.pair_networks import check_installed
from shardmill.models.pair_tokens import PairRows, PairTokenizer, PairTokens
from shardmill.models.rerankers.folder import Reranker, find_activation, read_reranker
from shardmill.models.rerankers.prompting import notes_of, open_tokens
from shardmill.models.tokenizer import count_positions
from shardmill.tasks.base import Combined, Output, Prepared, Task
from shardmill.tasks.params import read_params
from shardmill.verbs.score.params import ScoreParams

if TYPE_CHECKING:
    from shardmill.models.pairs import PairModel

SCORE, SCORES = "score", "scores"
_NO_LIMIT = 1 << 31
_NOT_KNOWN = "it has a token that is not in the model's vocabulary"
_NOT_FINITE = "the model gave NaN or infinity for this pair"
_ONE = pa.schema([pa.field(SCORE, pa.float32())])
_MANY = pa.schema([pa.field(SCORES, pa.list_(pa.float32()))])
# The number of a candidate in its list, and its score.
_CANDIDATE = pa.schema([pa.field("candidate", pa.int32()), pa.field(SCORE, pa.float32())])
# Weights up to N bytes; workers that share a GPU; cores that each of them needs.
_SHARING = ((150 << 20, 4, 2), (600 << 20, 2, 4))
# How much slower a causal model is, which has a hundred times the weights.
_CAUSAL = 20


class ScoreTask(Task):
    """The `score` task: the score of a pair, of each label if there are several, or of each candidate of a list."""

    serves_runs = True
    takes_adapters = True

    def __init__(self, **params: Any) -> None:
        self.params = read_params(ScoreParams, params, "score")
        if bool(self.params.candidates) == bool(self.params.query_text):
            raise SpecError(
                "A pair has a query_text, or its query has candidates.", hint="Give --query-text, or --candidates."
            )
        self._query = TextTemplate.parse(self.params.query_text) if self.params.query_text else None
        self.fields = self._query.names if self._query is not None else (self.params.candidates,)
        self.batch_budget, self.padded = 4_096, True
        self._model: PairModel | None = None
        self._redone = 0

    @cached_property
    def _location(self) -> Location:
        return find_model(self.params.model, self.params.adapter)

    @cached_property
    def folder(self) -> Reranker:
        """What the model's folder says."""
        made = read_reranker(self._location.path)
        find_activation(made)
        if self.params.candidates and made.labels > 1:
            raise SpecError(
                f"{self._location.name} gives {made.labels} numbers for a pair; a candidate needs one score.",
                hint="Choose a re-ranker with one label, or score single pairs: --query-text query --text passage",
            )
        return made

    @property
    def output(self) -> pa.Schema:
        return _MANY if self.params.candidates or self.folder.labels > 1 else _ONE

    @cached_property
    def _tokens(self) -> PairTokenizer:
        return open_tokens(self.folder, self.params.prompt)

    @cached_property
    def _limit(self) -> int:
        """Tokens of a pair, by the model's files and the parameters."""
        limits = (self.params.max_tokens, self.folder.max_tokens, count_positions(dict(self.folder.config)))
        return min(self._tokens.longest, *(limit for limit in limits if limit is not None))

    def fingerprint(self) -> dict[str, str]:
        _ = self.folder
        return {"model": self._location.name, **self._location.digests()}

    def check_installed(self, kind: str) -> None:
        check_installed(self.folder.transformer, self.folder.kind, kind)

    @property
    def plan_notes(self) -> list[str]:  # type: ignore[override]
        return notes_of(self.folder)

    def open(self, device: Device) -> None:
        """Load the model."""
        from shardmill.models.pairs import PairModel

        check_bundled(self._location)
        self._device = device
        self._model = PairModel(self._location.path, RERANKER, device, prompt=self.params.prompt, fast=True)
        self._limit = min(self._limit, self._model.limit)
        self.batch_budget, self.padded = self._model.budget, self._model.padded

    def close(self) -> None:
        self._model = None
        if "torch" in sys.modules:
            from shardmill.models.encoder import free_memory

            free_memory()

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        """Tokenize each pair, or the query with each of its candidates."""
        if self._query is None:
            return self._prepare_lists(texts, fields)
        bad: dict[int, str] = {}
        queries = self._render(self._query, texts, fields, bad)
        there = [i for i, text in enumerate(texts) if text is not None and queries[i] is not None]
        rows = self._encode([queries[i] or "" for i in there], [texts[i] or "" for i in there])
        inputs: list[PairTokens | None] = [None] * len(texts)
        for i, pair in zip(there, rows, strict=True):
            inputs[i] = pair
        costs = np.zeros(len(texts), np.int64)
        costs[there] = rows.ids.lengths
        bad |= {there[k]: reason for k, reason in rows.bad.items()}
        return Prepared(inputs, costs, bad, int(costs.sum()), rows.truncated)

    def _render(
        self, query: TextTemplate, texts: Sequence[str | None], fields: pa.RecordBatch | None, bad: dict[int, str]
    ) -> list[str | None]:
        """The first text of each pair; why one has none is added to `bad`."""
        assert fields is not None
        made: list[str | None] = []
        for i, row in enumerate(fields.to_pylist()):
            text, why = query.render(row)
            made.append(text)
            if text is None and texts[i] is not None:
                bad[i] = f"the query: {why}"
        return made

    def _prepare_lists(self, texts: Sequence[str | None], fields: pa.RecordBatch | None) -> Prepared:
        assert fields is not None
        lists = [_read_list(value) for value in fields.column(self.params.candidates).to_pylist()]
        bad: dict[int, str] = {}
        owners: list[int] = []
        for i, (text, found) in enumerate(zip(texts, lists, strict=True)):
            if text is None:
                continue
            if why := _why_no_list(found, self.params.candidates):
                bad[i] = why
            else:
                owners += [i] * len(found)
        numbers = [k for i in dict.fromkeys(owners) for k in range(len(lists[i]))]
        seconds = [lists[i][k] for i, k in zip(owners, numbers, strict=True)]
        rows = self._encode([texts[i] or "" for i in owners], seconds)
        bad |= {owners[k]: f"candidate {numbers[k] + 1}: {reason}" for k, reason in rows.bad.items()}
        kept = [k for k, owner in enumerate(owners) if owner not in bad]
        inputs = [(numbers[k], rows[k]) for k in kept]
        costs = rows.ids.lengths[kept]
        return Prepared(inputs, costs, bad, int(costs.sum()), rows.truncated, owners=np.array(owners, np.int64)[kept])

    def _encode(self, firsts: Sequence[str], seconds: Sequence[str]) -> PairRows:
        """The tokens of pairs; one with a token that the model does not know is bad."""
        rows = self._tokens.encode(firsts, seconds, self._limit)
        unknown = np.flatnonzero(rows.ids.flat >= self.folder.config.get("vocab_size", _NO_LIMIT))
        at = np.searchsorted(rows.ids.starts, unknown, side="right") - 1
        return replace(rows, bad={**dict.fromkeys(at.tolist(), _NOT_KNOWN), **rows.bad})

    def run(self, inputs: Sequence[Any]) -> Output:
        return self.begin(inputs)()

    def begin(self, inputs: Sequence[Any]) -> Callable[[], Output]:
        """Start a batch and return a function that waits for its rows; the device works in the background."""
        if self._model is None:
            raise RuntimeError("call open() before run()")
        if self._query is not None:
            fetch = self._begin(inputs)
            return lambda: self._rows(fetch())
        fetch = self._begin([pair for _, pair in inputs])

        def rows() -> Output:
            scores = fetch()
            numbers = pa.array([number for number, _ in inputs], pa.int32())
            bad = dict.fromkeys(not_finite(scores), _NOT_FINITE)
            return Output(pa.record_batch([numbers, pa.array(scores[:, 0])], schema=_CANDIDATE), bad)

        return rows

    def _begin(self, pairs: Sequence[PairTokens]) -> Callable[[], Reals]:
        """Start a batch of pairs; what overflows in half precision is computed again in float32."""
        assert self._model is not None
        activate, model = find_activation(self.folder), self._model
        fetch = model.begin(pairs)

        def scores() -> Reals:
            logits = fetch()
            again = not_finite(logits) if model.precision != "float32" else []
            if again:
                logits = logits.copy()
                logits[again] = self._exact.begin([pairs[i] for i in again])()
                self._redone += len(again)
            return activate(logits)

        return scores

    @cached_property
    def _exact(self) -> PairModel:
        """The model in float32."""
        from shardmill.models.pairs import PairModel

        return PairModel(self._location.path, RERANKER, self._device, prompt=self.params.prompt)

    def _rows(self, scores: Reals) -> Output:
        bad = dict.fromkeys(not_finite(scores), _NOT_FINITE)
        there = np.ones(len(scores), bool)
        there[list(bad)] = False
        if self.folder.labels == 1:
            column = pa.array(scores[:, 0], mask=~there)
        else:
            column = pa.array([row if ok else None for row, ok in zip(scores, there, strict=True)], _MANY[0].type)
        return Output(pa.record_batch([column], schema=self.output), bad)

    def combine(self, items: int) -> Combined | None:
        """Return an object that puts the scores of each query's candidates in their order."""
        return _Lists(items) if self.params.candidates else None

    def probe(self) -> None:
        """Check that the device works, with a plain pair."""
        assert self._model is not None
        self._model.begin(self._encode(["A query."], ["A text."])[:])()

    def distance(self, column: str, stored: Any, again: Any) -> float | None:
        """How far two scores are apart; of large ones, by the larger, since logits are rounded so."""
        if not (stored.is_valid and again.is_valid):
            return 0.0 if stored.is_valid == again.is_valid else np.inf
        seen, due = (np.atleast_1d(np.asarray(each.as_py(), np.float64)) for each in (stored, again))
        if seen.shape != due.shape or not np.isfinite(seen).all():
            return np.inf
        return float((np.abs(seen - due) / np.maximum(1.0, np.abs(due))).max(initial=0.0))

    def most_distant(self, precision: str) -> float | None:
        return most_distant(precision)

    def check_rows(self, rows: pa.RecordBatch) -> str | None:
        column = rows.column(0)
        scores = column if self.output is _ONE else pc.list_flatten(column)
        there = scores.drop_null().to_numpy(zero_copy_only=False)
        if self.output is _MANY and scores.null_count:
            return "a list of scores has a null"
        if not np.isfinite(there).all():
            return "a score is not a finite number"
        if self.folder.activation in ("Sigmoid", "Softmax") and ((there < 0) | (there > 1)).any():
            return "a score is not between 0 and 1"
        return None

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        kernel = [f"Kernel: {self._model.note}."] if self._model is not None else []
        again = f"{self._redone:,} pairs gave NaN in half precision and were computed in float32."
        return [*kernel, *([again] if self._redone else [])]

    @property
    def numerics(self) -> dict[str, str]:  # type: ignore[override]
        return {"kernel": self._model.kernel, "precision": self._model.precision} if self._model is not None else {}

    @property
    def device_clock(self) -> dict[str, float] | None:  # type: ignore[override]
        return self._model.device_clock if self._model is not None else None

    @property
    def _weights_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.transformer.glob("*.safetensors"))

    def gpu_bytes(self, precise: bool) -> int | None:
        """In float32, and once more in half precision if that is compared with it."""
        dtype = self.folder.config.get("dtype") or self.folder.config.get("torch_dtype")
        weights = self._weights_bytes // (2 if dtype in ("float16", "bfloat16") else 4)
        return weights * (4 if precise else 6)

    def workers_per_gpu(self, cores: int) -> int:
        """Several workers share a GPU if the model is small: it finishes before one worker reads the next batch."""
        for limit_bytes, workers, cores_each in _SHARING:
            if self._weights_bytes <= limit_bytes:
                return max(1, min(workers, cores // cores_each))
        return 1

    def bytes_per_s(self, kind: str) -> float:
        return super().bytes_per_s(kind) / (1 if self.folder.words is None else _CAUSAL)


class _Lists:
    """The scores of each item's candidates, by their numbers, in whatever order they come."""

    def __init__(self, items: int) -> None:
        self._scores: list[dict[int, float]] = [{} for _ in range(items)]

    def add(self, items: NDArray[np.int64], rows: pa.RecordBatch) -> None:
        numbers, scores = (column.to_pylist() for column in rows.columns)
        for item, number, score in zip(items.tolist(), numbers, scores, strict=True):
            self._scores[item][number] = score

    def finish(self) -> Output:
        lists = [[found[k] for k in sorted(found)] or None for found in self._scores]
        return Output(pa.record_batch([pa.array(lists, _MANY[0].type)], schema=_MANY))


def _read_list(value: Any) -> Any:
    """A list of candidates; a column of lines whose values differ in kind has it as JSON."""
    if not (isinstance(value, str) and value.startswith("[")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _why_no_list(found: Any, column: str) -> str:
    """Why a value is no list of candidates; "" if it is one."""
    if not isinstance(found, list):
        return f"'{column}' is {kind_of(found)}, not a list of texts"
    if not found:
        return f"'{column}' is an empty list"
    for k, each in enumerate(found, 1):
        if not isinstance(each, str):
            return f"candidate {k} of '{column}' is {kind_of(each)}, not text"
        if (why := check_text(each)[1]) is not None:
            return f"candidate {k} of '{column}': {why}"
    return ""
