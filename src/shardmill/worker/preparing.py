"""Texts as a task prepares them for the device; one that it cannot prepare is set aside alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from shardmill.core.errors import ShardmillError, TaskError
from shardmill.tasks.base import WINDOW, Prepared, Task

CONTRACT = "A task must return one row per input, in order (docs/tasks.md)."
_OWNERS = "Prepared.owners must give the text of each input, in order; every text needs an input (docs/tasks.md)."


def prepare(task: Task, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
    """Prepare texts. On an error, halve them until the failing text is alone, and mark it bad."""
    try:
        prepared = task.prepare(texts) if fields is None else task.prepare(texts, fields)
    except (ShardmillError, MemoryError):
        raise
    except Exception as error:
        if len(texts) == 1:
            return Prepared([None], np.zeros(1, np.int64), {0: f"{type(error).__name__}: {error}"[:500]})
        middle = len(texts) // 2
        first, second = (None, None) if fields is None else (fields.slice(0, middle), fields.slice(middle))
        halves = prepare(task, texts[:middle], first), prepare(task, texts[middle:], second)
        return _add(*halves, middle, len(texts) - middle)
    _check(task, prepared, texts)
    return prepared


def _check(task: Task, prepared: Prepared, texts: Sequence[str | None]) -> None:
    owners = prepared.owners
    if owners is None:
        if not len(texts) == len(prepared.inputs) == len(prepared.costs):
            raise TaskError(f"The task prepared {len(prepared.inputs)} inputs for {len(texts)} texts.", hint=CONTRACT)
        return
    wanted = {i for i, text in enumerate(texts) if text is not None and i not in prepared.bad}
    in_order = len(owners) == len(prepared.inputs) == len(prepared.costs) and bool((np.diff(owners) >= 0).all())
    if not in_order or set(owners.tolist()) != wanted:
        raise TaskError(f"The task's `owners` do not match its inputs for {len(texts)} texts.", hint=_OWNERS)
    if WINDOW not in task.output.names and task.combine(len(texts)) is None:
        raise TaskError(
            "The task prepares several inputs per text but does not say how they become rows.",
            hint=f"Give it {WINDOW!r} in its output, or a method combine (docs/tasks.md).",
        )


def _add(a: Prepared, b: Prepared, a_texts: int, b_texts: int) -> Prepared:
    bad = {**a.bad, **{row + a_texts: reason for row, reason in b.bad.items()}}
    costs = np.concatenate([a.costs, b.costs])
    owners = None
    if a.owners is not None or b.owners is not None:
        firsts, seconds = (np.arange(n) if p.owners is None else p.owners for p, n in ((a, a_texts), (b, b_texts)))
        owners = np.concatenate([firsts, seconds + a_texts])
    return Prepared([*a.inputs, *b.inputs], costs, bad, a.tokens + b.tokens, a.truncated + b.truncated, owners)
