"""Any function of a batch, or a class made once per worker, as a task.

task = ApplyTask(call="words:count", fields=["body"], columns={"words": "int64"})
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from shardmill.core.arrowtypes import arrow_type, type_text
from shardmill.core.devices import Device
from shardmill.core.errors import DeviceOutOfMemory, ShardmillError, SpecError
from shardmill.core.functions import fingerprint_call, in_bounds, load_call
from shardmill.core.template import TextTemplate
from shardmill.tasks.base import Agreement, Output, Prepared, SourceSample, Task
from shardmill.tasks.params import read_params
from shardmill.verbs.apply.columns import check_columns, columns_by_annotation, columns_of
from shardmill.verbs.apply.params import ApplyParams
from shardmill.verbs.apply.results import Given, find_given, give, say_given, signature_of, take_back

_TEXT = "text"
_TORCH_OUT_OF_MEMORY = "OutOfMemoryError"
_BATCH_ROWS = 1024
# An order of magnitude for a function of some microseconds per row.
_APPLIED_BYTES_PER_S = {"cpu": 1e6, "cuda": 1e7}


class ApplyTask(Task):
    """Each item gives as many rows as the function returns for it; all run on one thread, in batches."""

    batch_budget = _BATCH_ROWS
    padded = False
    rows_vary = True
    null_rows_are_answers = True
    settles = ("fields", "columns")

    def __init__(self, **params: Any) -> None:
        self.params = read_params(ApplyParams, params, "apply")
        self.fields = self.params.fields or ()
        self.numbers_items = self.params.number
        self.output = pa.schema([(name, arrow_type(kind)) for name, kind in (self.params.columns or {}).items()])
        self._call: Callable[..., Any] | None = None

    @cached_property
    def _made(self) -> Any:
        return load_call(self.params.call, self.params.code)

    @property
    def dropped_file(self) -> str:  # type: ignore[override]
        return str(getattr(self._made, "dropped_file", ""))

    @cached_property
    def _given(self) -> Given:
        return find_given(self._made, self.params.call)

    def fingerprint(self) -> dict[str, str]:
        return fingerprint_call(self.params.call, self.params.code)

    def settle(self, source: SourceSample) -> dict[str, Any]:
        self.agreement("")
        columns = columns_by_annotation(self._made, self.params.call)
        if columns is None:
            columns = self._find_columns(source)
        check_columns(columns, self.params.call)
        return {"columns": {name: type_text(kind) for name, kind in columns.items()}}

    def _find_columns(self, source: SourceSample) -> dict[str, pa.DataType]:
        given, rows = self._given, source()
        try:
            self.open(Device("cpu", "the CPU"))
        except ShardmillError:
            raise
        except Exception as error:
            raise SpecError(
                f"{self.params.call} cannot be made: {type(error).__name__}: {error}.",
                hint="It is made here to see its columns. It is not if it says them: columns = {…} in the class.",
            ) from error
        try:
            return columns_of(self._try_rows(rows), given, self.params.call)
        finally:
            self.close()

    def _try_rows(self, rows: pa.RecordBatch) -> list[tuple[int, Any]]:
        """Results of the first rows: of all together or, if that fails, of each that does not fail alone."""
        try:
            return [(rows.num_rows, self._run(rows))]
        except ShardmillError:
            raise
        except Exception as error:
            found = []
            for i in range(rows.num_rows):
                try:
                    found.append((1, self._run(rows.slice(i, 1))))
                except Exception:
                    continue
            if found:
                return found
            raise SpecError(
                f"{self.params.call} fails on each of the first {rows.num_rows} rows: {type(error).__name__}: {error}.",
                hint=f"It is given {say_given(rows, self._given)}.",
            ) from error

    def open(self, device: Device) -> None:
        arguments = dict(self.params.arguments)
        where = "cpu" if device.kind == "cpu" else f"{device.kind}:{device.index}"
        made: Any = self._made
        signature = signature_of(made, self.params.call)
        if "device" in signature.parameters:
            arguments.setdefault("device", where)
        try:
            signature.bind(*(() if inspect.isclass(made) else [None]), **arguments)
        except TypeError as error:
            raise SpecError(
                f"{self.params.call} cannot be called with these arguments: {error}.",
                hint="Give those that it has besides the batch: --param KEY=VALUE.",
            ) from error
        with in_bounds():
            opened: Any = made(**arguments) if inspect.isclass(made) else partial(made, **arguments)
        self._call = opened

    def close(self) -> None:
        if not (inspect.isclass(self._made) and callable(close := getattr(self._call, "close", None))):
            return
        try:
            with in_bounds():
                close()
        except Exception as error:
            raise SpecError(f"The close of {self.params.call} failed: {type(error).__name__}: {error}.") from error

    def probe(self) -> None:
        """Nothing: the function is not called with what is no item."""

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        given = fields if fields is not None else pa.record_batch({})
        if self.params.text:
            columns = {name: given.column(name) for name in given.schema.names if name != _TEXT}
            given = pa.record_batch({**columns, _TEXT: pa.array(texts, pa.string())})
        bad: dict[int, str] = {}
        if self.params.template:
            given, bad = self._with_texts(given)
        return Prepared(given, np.ones(len(texts), np.int64), bad)

    def _with_texts(self, given: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        """A column of texts instead of the fields that they are made of; what is no text is bad."""
        template = TextTemplate.parse(self.params.template)
        texts, bad = [], dict[int, str]()
        for i, row in enumerate(given.select(list(template.names)).to_pylist()):
            text, why = template.render(row)
            texts.append(text or "")
            if text is None and any(str(value).strip() for value in row.values() if value is not None):
                bad[i] = why or ""
        others = {name: given.column(name) for name in given.schema.names if name not in template.names}
        return pa.record_batch({**others, _TEXT: pa.array(texts, pa.string())}), bad

    def run(self, inputs: Any) -> Output:
        try:
            result = self._run(inputs)
        except Exception as error:
            if not isinstance(error, MemoryError) and type(error).__name__ != _TORCH_OUT_OF_MEMORY:
                raise
            raise DeviceOutOfMemory(f"{self.params.call}: {type(error).__name__}: {error}") from error
        rows, counts = take_back(result, inputs.num_rows, self.output, self._given, self.params.call)
        return Output(rows, counts=counts)

    def _run(self, rows: pa.RecordBatch) -> Any:
        assert self._call is not None
        with in_bounds():
            made = self._call(give(rows, self._given, self.params.call))
            return list(made) if isinstance(made, Iterator) else made

    def bytes_per_s(self, kind: str) -> float:
        return _APPLIED_BYTES_PER_S[kind]

    def agreement(self, precision: str) -> Agreement:
        said: Agreement = getattr(self._made, "agreement", "close")
        if said not in get_args(Agreement):
            raise SpecError(
                f"{self.params.call} has the agreement {said!r}.", hint=f"Use one of {', '.join(get_args(Agreement))}."
            )
        return said
