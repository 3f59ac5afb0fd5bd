"""Items that name their adapter: a task for each adapter, all over the same base model, behind one task.

Design: docs/design/kinds-of-models.md
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.devices import Device
from shardmill.core.errors import SpecError
from shardmill.core.template import TextTemplate
from shardmill.tasks.base import Agreement, Combined, Output, Prepared, SourceSample, Task

# All of them are in memory at once.
MOST_ADAPTERS = 64
# Only folders with this file are adapters.
_SETTINGS = "adapter_config.json"
_ADAPTER = "adapter"
# What each of the tasks says alike, since they differ in the adapter only.
_OF_ANY = frozenset(
    {
        *("output", "rows_vary", "streams", "max_errors", "few_rows", "null_rows_are_answers", "unit_norm", "rounded"),
        *("folder", "quantiser", "settles", "model_code", "border_param", "page_param", "numbers_items"),
    }
)
# From the most exact one on.
_PRECISIONS = ("float32", "float16", "bfloat16")


def names_field(adapter: object) -> bool:
    """Whether an adapter is that of each item: a folder with a field in its name."""
    return isinstance(adapter, str) and "{" in adapter


class ByAdapter(Task):
    """A task whose parameter `adapter` names a field, such as `adapters/{tenant}`: the folder of each item's adapter.

    An input is the folder and the input of that adapter's task. What cannot be said for several models, such as the
    vector of a question, it has not.
    """

    def __init__(self, kind: type[Task], params: dict[str, Any]) -> None:
        self._template = _parse(params[_ADAPTER])
        self._tasks = {folder: kind(**{**params, _ADAPTER: folder}) for folder in find_adapters(self._template)}
        self._first = next(iter(self._tasks.values()))
        # Those whose rows were made last: a distance may depend on what they made.
        self._ran = [self._first]
        self.fields = tuple(dict.fromkeys((*self._template.names, *self._first.fields)))

    def __getattribute__(self, name: str) -> Any:
        """Asks one of the tasks each time, since `open` may change a part."""
        return getattr(self._first, name) if name in _OF_ANY else super().__getattribute__(name)

    @property
    def _every(self) -> list[Task]:
        return list(self._tasks.values())

    @cached_property
    def _names(self) -> dict[str, str]:
        """The folders, by what the items' fields say of them: the same on every machine."""
        return {folder.removeprefix(self._template.parts[0]): folder for folder in self._tasks}

    def fingerprint(self) -> dict[str, str]:
        made = {name: self._tasks[folder].fingerprint() for name, folder in self._names.items()}
        digests = json.dumps(sorted((name, each.pop(_ADAPTER)) for name, each in made.items()))
        self._check_alike()
        return {**next(iter(made.values())), "adapters": hashlib.sha256(digests.encode()).hexdigest()}

    def _check_alike(self) -> None:
        for name, folder in self._names.items():
            if self._tasks[folder].output != self._first.output:
                raise SpecError(
                    f"The adapters {next(iter(self._names))} and {name} give different columns.",
                    hint="Run each kind of adapter by itself, with --where.",
                )

    @property
    def plan_notes(self) -> Sequence[str]:  # type: ignore[override]
        shown = ", ".join(list(self._names)[:5]) + (", …" if len(self._names) > 5 else "")
        return [f"{len(self._names)} adapters: {shown}.", *dict.fromkeys(n for t in self._every for n in t.plan_notes)]

    def check_installed(self, kind: str) -> None:
        self._first.check_installed(kind)

    def settle(self, source: SourceSample) -> dict[str, Any]:
        settled = self._first.settle(source)
        for task in self._every[1:]:
            if task.settle(source) != settled:
                raise SpecError(
                    f"Each adapter would settle {', '.join(settled)} in another way.",
                    hint="Run each adapter by itself; of vectors, float16 and binary need nothing settled.",
                )
        return settled

    def follow_model(self) -> dict[str, Any]:
        return self._first.follow_model()

    def open(self, device: Device) -> None:
        """Load all models, which share the device."""
        shared = replace(device, sharing=device.sharing * len(self._tasks))
        for task in self._every:
            task.open(shared)
        self.batch_budget = min(task.batch_budget for task in self._every)
        self.padded = any(task.padded for task in self._every)

    def close(self) -> None:
        for task in self._every:
            task.close()

    def probe(self) -> None:
        for task in self._every:
            task.probe()

    @property
    def notes(self) -> Sequence[str]:  # type: ignore[override]
        return list(dict.fromkeys(note for task in self._every for note in task.notes))

    @property
    def numerics(self) -> dict[str, str]:  # type: ignore[override]
        """The kernels of all, and the least exact precision among them."""
        found = [dict(task.numerics) for task in self._every if task.numerics]
        if not found:
            return {}
        least = max(found, key=lambda each: (*_PRECISIONS, each["precision"]).index(each["precision"]))
        return {**least, "kernel": ", ".join(dict.fromkeys(each["kernel"] for each in found))}

    def gpu_bytes(self, precise: bool) -> int | None:
        needs = [task.gpu_bytes(precise) for task in self._every]
        return sum(need for need in needs if need is not None) if None not in needs else None

    def workers_per_gpu(self, cores: int) -> int:
        return max(1, self._first.workers_per_gpu(cores) // len(self._tasks))

    def bytes_per_s(self, kind: str) -> float:
        return self._first.bytes_per_s(kind)

    def agreement(self, precision: str) -> Agreement:
        return self._first.agreement(precision)

    def for_reference(self) -> Task:
        tasks = {folder: task.for_reference() for folder, task in self._tasks.items()}
        if tasks == self._tasks:
            return self
        other = object.__new__(ByAdapter)
        other.__dict__.update(self.__dict__)
        other._tasks, other._first = tasks, next(iter(tasks.values()))
        return other

    def distance(self, column: str, stored: Any, again: Any) -> float | None:
        """By the tasks that computed last, among whose rows this one is."""
        found = [task.distance(column, stored, again) for task in self._ran]
        return min((each for each in found if each is not None), default=None)

    def most_distant(self, precision: str) -> float | None:
        return self._first.most_distant(precision)

    def check_rows(self, rows: pa.RecordBatch) -> str | None:
        return self._first.check_rows(rows)

    def combine(self, items: int) -> Combined | None:
        return self._first.combine(items)

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        """Prepare each text by the task of its adapter; a text whose adapter does not exist is bad."""
        assert fields is not None
        bad: dict[int, str] = {}
        groups: dict[str, list[int]] = {}
        for i, row in enumerate(fields.select(list(self._template.names)).to_pylist()):
            folder, why = self._template.render(row)
            if texts[i] is not None and folder not in self._tasks:
                bad[i] = f"the adapter: {why or f'{folder} is none of the {len(self._tasks)} that there are'}"
            known = folder if folder is not None and folder in self._tasks else next(iter(self._tasks))
            groups.setdefault(known, []).append(i)
        inputs: list[tuple[str, Any]] = []
        owners: list[int] = []
        costs, tokens, truncated = [np.zeros(0, np.int64)], 0, 0
        varies = False
        for folder, places in groups.items():
            task = self._tasks[folder]
            own = fields.select(list(task.fields)).take(pa.array(places)) if task.fields else None
            some = [None if i in bad else texts[i] for i in places]
            made = task.prepare(some) if own is None else task.prepare(some, own)
            varies = varies or made.owners is not None
            whose = range(len(places)) if made.owners is None else made.owners.tolist()
            inputs += [(folder, made.inputs[k]) for k in range(len(made.costs))]
            owners += [places[k] for k in whose]
            costs.append(made.costs)
            bad.update({places[k]: why for k, why in made.bad.items()})
            tokens, truncated = tokens + made.tokens, truncated + made.truncated
        order = np.argsort(np.array(owners, np.int64), kind="stable")
        sorted_owners = np.array(owners, np.int64)[order] if varies else None
        kept = [inputs[k] for k in order]
        return Prepared(kept, np.concatenate(costs)[order], bad, tokens, truncated, owners=sorted_owners)

    def run(self, inputs: Sequence[Any]) -> Output:
        return self.begin(inputs)()

    def begin(self, inputs: Sequence[Any]) -> Callable[[], Output]:
        """Start a batch of each adapter, and return a function that waits for the rows of all."""
        if not len(inputs):
            return self._first.begin(inputs)
        groups: dict[str, list[int]] = {}
        for i, (folder, _) in enumerate(inputs):
            groups.setdefault(folder, []).append(i)
        self._ran = [self._tasks[folder] for folder in groups]
        begun = [
            (places, self._tasks[folder].begin([inputs[i][1] for i in places])) for folder, places in groups.items()
        ]
        return lambda: _put_together([(places, fetch()) for places, fetch in begun])

    def stream(self, inputs: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[Sequence[int], Output]]:
        """Stream what is there, one adapter after another, then what has come meanwhile."""
        groups: dict[str, list[tuple[int, Any]]] = {}
        for each in inputs:
            if each is not None:
                number, (folder, own) = each
                groups.setdefault(folder, []).append((number, own))
                continue
            yield from self._stream_groups(groups)
        yield from self._stream_groups(groups)

    def _stream_groups(self, groups: dict[str, list[tuple[int, Any]]]) -> Iterator[tuple[Sequence[int], Output]]:
        while groups:
            folder, own = groups.popitem()
            yield from self._tasks[folder].stream(iter(own))


def any_adapter(adapter: str | None) -> str | None:
    """The adapter, or one of those that the items name: they need the same libraries."""
    if adapter is None or not names_field(adapter):
        return adapter
    return find_adapters(_parse(adapter))[0]


def _parse(adapter: str) -> TextTemplate:
    try:
        return TextTemplate.parse(os.path.expanduser(adapter))
    except SpecError as error:
        raise SpecError(
            f"--adapter {adapter!r}: only plain field names are allowed between braces.",
            hint="Name the folders of the adapters by a field: --adapter 'adapters/{tenant}'.",
        ) from error


def find_adapters(template: TextTemplate) -> list[str]:
    """The folders of adapters that a template may name."""
    literals = [glob.escape(literal) for literal in template.parts[::2]]
    shown = "{…}".join(template.parts[::2])
    found = sorted(glob.glob("*".join(literals)))
    adapters = [folder for folder in found if (Path(folder) / _SETTINGS).is_file()]
    if not adapters:
        raise SpecError(
            f"No adapter is in {shown}: {len(found):,} folders have such a name, and none has {_SETTINGS}.",
            hint="Name the folders of the adapters by a field: --adapter 'adapters/{tenant}'.",
        )
    if len(adapters) > MOST_ADAPTERS:
        raise SpecError(
            f"{shown} has {len(adapters):,} adapters; a worker holds {MOST_ADAPTERS} models at most.",
            hint="Put those of some items into a folder of their own, and take these items with --where.",
        )
    return adapters


def _put_together(made: Sequence[tuple[list[int], Output]]) -> Output:
    """The rows of several groups in the order of their inputs."""
    places = np.concatenate([np.array(own, np.int64) for own, _ in made])
    order = pa.array(np.argsort(places))
    rows = pa.concat_batches([output.rows for _, output in made]).take(order)
    bad = {own[i]: why for own, output in made for i, why in output.bad.items()}
    tokens_out, tokens_in = (
        [counts[i] for i in order.to_pylist()] if (counts := [n for _, o in made for n in getattr(o, name)]) else ()
        for name in ("tokens_out", "tokens_in")
    )
    return Output(rows, bad, tokens_out, tokens_in)
