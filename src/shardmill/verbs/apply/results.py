"""What a function is given of a batch, and which rows of its result belong to which item."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core.errors import SpecError, TaskError
from shardmill.plan import ROW
from shardmill.verbs.apply.fitting import cast_column, fit_values

Counts = NDArray[np.int64]
Given = Literal["dicts", "batch", "table", "pandas", "polars"]

_FRAMES: dict[str, Given] = {
    "pyarrow.RecordBatch": "batch",
    "pyarrow.Table": "table",
    "pandas.DataFrame": "pandas",
    "polars.DataFrame": "polars",
}
_ENTRIES = "Return a list with an entry per item: a dict, a list of dicts for several rows, or None for no row."
_NUMBERS = f"Keep the column {ROW!r} of the batch in the result: it says which item each row is of."


def find_given(made: Any, call: str) -> Given:
    """What the first parameter is annotated with; a list of dicts if with nothing."""
    if inspect.isclass(made) and not any("__call__" in vars(each) for each in made.__mro__):
        raise SpecError(f"{call} is a class that cannot be called.", hint="Give it def __call__(self, rows).")
    function = made.__call__ if inspect.isclass(made) else made
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise SpecError(f"{call} is async.", hint="Name a function that calls it: return asyncio.run(…).")
    parameters = [p for p in signature_of(function, call).parameters.values() if p.name != "self"]
    if not parameters:
        raise SpecError(f"{call} takes no batch.", hint="Its first parameter is the batch.")
    if parameters[0].annotation is inspect.Parameter.empty:
        return "dicts"
    kind = hints_of(function, call)[parameters[0].name]
    kind = get_origin(kind) or kind
    name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}" if inspect.isclass(kind) else str(kind)
    if name in _FRAMES:
        return _FRAMES[name]
    if inspect.isclass(kind) and issubclass(list, kind):
        return "dicts"
    raise SpecError(
        f"{call} takes a batch of type {name}.",
        hint=f"Annotate it with list[dict] or one of {', '.join(_FRAMES)}.",
    )


def signature_of(function: Callable[..., Any], call: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise SpecError(f"The parameters of {call} are unknown.", hint="Call it in a function of your own.") from error


def hints_of(function: Callable[..., Any], call: str) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except Exception as error:
        raise SpecError(
            f"The annotations of {call} cannot be read: {error}.",
            hint="Import what they name, not under TYPE_CHECKING alone.",
        ) from error


def say_given(rows: pa.RecordBatch, given: Given) -> str:
    """What `give` gives, in words."""
    if given == "dicts":
        return f"a list of dicts with the keys {', '.join(rows.schema.names) or '(none)'}"
    kind = next(name for name, each in _FRAMES.items() if each == given)
    return f"a {kind} with the columns {', '.join([*rows.schema.names, ROW])}"


def give(rows: pa.RecordBatch, given: Given, call: str) -> Any:
    """The batch as the function wants it. A frame has the number of each item in it, as `row`."""
    if given == "dicts":
        return rows.to_pylist()
    if ROW in rows.schema.names:
        raise SpecError(
            f"The source has a column {ROW!r}, the name of the items' numbers in a batch.",
            hint=f"Name the columns that {call} needs, without it: --column NAME.",
        )
    numbered = rows.append_column(ROW, pa.array(np.arange(rows.num_rows)))
    if given == "batch":
        return numbered
    table = pa.Table.from_batches([numbered])
    if given == "table":
        return table
    if given == "pandas":
        return table.to_pandas()
    import polars

    return polars.from_arrow(table)


def take_back(result: Any, items: int, output: pa.Schema, given: Given, call: str) -> tuple[pa.RecordBatch, Counts]:
    """The rows of a result, in the order of their items, and how many each item has.

    Raises ValueError if the rows have other columns than planned, which is the fault of some of them.
    """
    if is_list(result, given):
        rows, counts = list_rows(result, items, call)
        return _fit_dicts(rows, output, call), counts
    table, counts = order_rows(as_table(result, call), items, call)
    if set(table.schema.names) != set(output.names) or len(table.schema.names) != len(output.names):
        raise ValueError(_other_columns(call, table.schema.names, output))
    columns = [cast_column(table.column(field.name), field, call) for field in output]
    batches = pa.Table.from_arrays(columns, schema=output).combine_chunks().to_batches()
    return (batches[0] if batches else pa.RecordBatch.from_pylist([], schema=output)), counts


def is_list(result: Any, given: Given) -> bool:
    """Whether a result is taken for a list with an entry per item, and not for a frame."""
    return isinstance(result, list | tuple) or (given == "dicts" and _kind(result) not in _FRAMES)


def check_list(result: Any, items: int, call: str) -> list[Any]:
    """A result as a list."""
    if not isinstance(result, Iterable) or isinstance(result, Mapping | str):
        raise TaskError(f"{call} returned {_name(result)} for a batch of {items} items.", hint=_ENTRIES)
    return result if isinstance(result, list) else list(result)


def list_rows(result: Any, items: int, call: str) -> tuple[list[Mapping[str, Any]], Counts]:
    """The rows of a list with an entry per item."""
    entries = check_list(result, items, call)
    if len(entries) != items:
        raise TaskError(f"{call} returned {len(entries)} entries for a batch of {items} items.", hint=_ENTRIES)
    if {*map(type, entries)} == {dict}:
        return entries, np.ones(items, np.int64)
    counts, rows = np.zeros(items, np.int64), list[Mapping[str, Any]]()
    for i, entry in enumerate(entries):
        several = rows_of(entry, call)
        counts[i] = len(several)
        rows += several
    return rows, counts


def rows_of(entry: Any, call: str) -> Sequence[Mapping[str, Any]]:
    """The rows of an item."""
    several = [] if entry is None else [entry] if isinstance(entry, Mapping) else entry
    if not isinstance(several, list | tuple) or not all(isinstance(row, Mapping) for row in several):
        raise TaskError(f"{call} returned {_name(entry)} for an item.", hint=_ENTRIES)
    return several


def _fit_dicts(rows: list[Mapping[str, Any]], output: pa.Schema, call: str) -> pa.RecordBatch:
    names = set(output.names)
    try:
        columns = [[row[name] for row in rows] for name in output.names]
    except KeyError:
        columns = []
    if len(columns) != len(names) or {*map(len, rows)} - {len(names)}:
        raise ValueError(_other_columns(call, next(row for row in rows if row.keys() != names), output))
    arrays = [fit_values(values, field, call) for values, field in zip(columns, output, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=output)


def _other_columns(call: str, names: Iterable[Any], output: pa.Schema) -> str:
    said = ", ".join(map(str, names)) or "none"
    return f"{call} returned the columns {said}; the plan has {', '.join(output.names)}"


def as_table(result: Any, call: str) -> pa.Table:
    """A frame of any kind as a table."""
    if isinstance(result, pa.Table):
        return result
    if isinstance(result, pa.RecordBatch):
        return pa.Table.from_batches([result])
    kind = _kind(result)
    if kind == "pandas.DataFrame":
        return pa.Table.from_pandas(result, preserve_index=False)
    if kind == "polars.DataFrame":
        return result.to_arrow()
    raise TaskError(f"{call} returned {_name(result)}.", hint=f"Return one of {', '.join(_FRAMES)}.")


def order_rows(table: pa.Table, items: int, call: str) -> tuple[pa.Table, Counts]:
    """The rows in the order of their items, without their numbers, and how many each item has."""
    if ROW not in table.schema.names:
        if table.num_rows != items:
            raise TaskError(f"{call} returned {table.num_rows} rows for a batch of {items} items.", hint=_NUMBERS)
        return table, np.ones(items, np.int64)
    column = table.column(ROW)
    numbers = column.to_numpy() if pa.types.is_integer(column.type) and not column.null_count else np.array([-1])
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < items):
        raise TaskError(f"{call} returned a column {ROW!r} with numbers that the batch does not have.", hint=_NUMBERS)
    if len(numbers) and (np.diff(numbers) < 0).any():
        order = np.argsort(numbers, kind="stable")
        table, numbers = table.take(pa.array(order)), numbers[order]
    return table.drop_columns([ROW]), np.bincount(numbers.astype(np.int64), minlength=items)


def _kind(value: Any) -> str:
    """The library and name of a type: "pandas.DataFrame"."""
    return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"


def _name(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
