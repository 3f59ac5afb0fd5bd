"""A run whose result goes into a table: embedded, loaded, indexed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from shardmill.core.console import say
from shardmill.core.errors import SpecError
from shardmill.core.template import TextTemplate
from shardmill.plan import Plan
from shardmill.plan.spec import Spec, make_spec
from shardmill.postgres import connect
from shardmill.postgres.embedded import describe, is_embedded, resolve
from shardmill.postgres.links import link
from shardmill.postgres.presets import find_preset
from shardmill.run import Run, start
from shardmill.run import prepare as prepare_run
from shardmill.run.planner import result_schema
from shardmill.run.spilling import keep_source
from shardmill.sinks import table as sink
from shardmill.sources.columns import split_keep

_PARENT = "product_metadata"


def complete_work(work: dict[str, Any]) -> dict[str, Any]:
    """Complete the `[work]` of a load: start an embedded server, apply a known schema, keep the text's fields."""
    to = dict(work.get("to", {}))
    if is_embedded(to.get("url", "")):
        place, to["url"] = to["url"], resolve(to["url"])
        say(describe(place, to["url"]))
    if to.get("unknown_products") and not to.get("metadata"):
        raise SpecError("No products were given.", hint="--unknown-products needs --schema with --metadata FILE.")
    if not to.get("url"):
        raise SpecError("No --to was given.", hint="Name a database: --to postgresql://USER@HOST:PORT/DATABASE")
    if to.get("preset"):
        return {**_by_preset(work, to), "to": to}
    if to.get("metadata"):
        raise SpecError("--metadata needs a known schema.", hint="Name one: --schema amazon-reviews-2023")
    if not to.get("table"):
        raise SpecError("No --table was given.", hint="Name the table to load into: --table documents")
    if not work.get("text"):
        raise SpecError("No text was given.", hint="Name the field to embed: --text body")
    id, keep = (_names(work.get(name)) for name in ("id", "keep"))
    return {**work, "keep": keep_text(work["text"], id, keep), "to": to}


def _by_preset(work: dict[str, Any], to: dict[str, Any]) -> dict[str, Any]:
    name, _, part = to["preset"].partition(":")
    table = find_preset(name).metadata if part == "metadata" else find_preset(name).reviews
    to.setdefault("table", table.table)
    key = tuple(field.source for name in table.key for field in table.fields if field.column.name == name)
    return {**work, "text": work.get("text") or table.text, "id": key, "keep": table.keep}


def _names(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(part for each in ([value] if isinstance(value, str) else value) for part in re.split(r"\s*,\s*", each))


def keep_text(text: str, id: tuple[str, ...], keep: tuple[str, ...]) -> tuple[str, ...]:
    """The columns to keep for a table: those requested, and the fields that the text is made of.

    >>> keep_text("{title}: {body}", ("id",), ("price:double", "title"))
    ('price:double', 'title', 'body')
    """
    there = {*id, *(split_keep(entry)[0] for entry in keep)}
    return (*keep, *(name for name in TextTemplate.parse(text).names if name not in there))


def default_out(work: dict[str, Any]) -> str:
    return f"runs/{work['to']['table']}"


def load(work: dict[str, Any], execution: dict[str, Any], out: str | os.PathLike[str] = "", **how: Any) -> Run:
    """Load every item of a source, then build the missing indexes. The same call resumes.

    `work` and `execution` are the tables of a spec; products that it names are loaded first. `how` is passed to
    `run.start`.
    """
    work = complete_work(work)
    place = os.fspath(out) or default_out(work)
    work = keep_source(work, place, fresh=how.get("fresh", False))
    metadata = work["to"].pop("metadata", ())
    if metadata and execution.get("detach"):
        raise SpecError("--metadata makes two runs, one after the other: they cannot be detached.")
    if metadata:
        return _load_with_products(work, execution, [metadata] if isinstance(metadata, str) else metadata, place, how)
    return load_spec(make_spec(work, execution), place, **how)


def load_spec(
    spec: Spec, out: str | os.PathLike[str], *, before: Callable[[Plan], None] = lambda plan: None, **how: Any
) -> Run:
    """Load a complete spec, then build the missing indexes."""

    def ask(plan: Plan) -> None:
        before(plan)
        _ask_about_indexes(plan, spec, how)

    return start(spec, out, before=ask, **how)


def prepare(work: dict[str, Any], execution: dict[str, Any], out: str | os.PathLike[str], **how: Any) -> Run:
    """Write the run folder of a load and create its table, and place nobody. `how` is passed to `run.prepare`."""
    work = complete_work(work)
    if work["to"].get("metadata"):
        raise SpecError("--metadata makes two runs, and a plan is of one.", hint="`shardmill load` runs both.")
    work = keep_source(work, out, fresh=how.get("fresh", False))
    spec = make_spec(work, execution)
    return prepare_run(spec, out, before=lambda plan: _ask_about_indexes(plan, spec, how), **how)


def _ask_about_indexes(plan: Plan, spec: Spec, how: dict[str, Any]) -> None:
    kind, rebuild = spec.execution.index, spec.execution.rebuild_indexes
    sink.ask_about_indexes(plan, result_schema(plan), kind=kind, rebuild=rebuild, quiet=how.get("quiet", True))


def _load_with_products(
    work: dict[str, Any], execution: dict[str, Any], metadata: Sequence[str], out: str, how: dict[str, Any]
) -> Run:
    """Load products first, so that reviews can refer to them; `unknown_products` handles reviews of missing ones."""
    preset = find_preset(work["to"]["preset"])
    schema = work["to"]["table"].rpartition(".")[0]
    to = {
        **{name: value for name, value in work["to"].items() if name != "unknown_products"},
        "preset": f"{work['to']['preset']}:metadata",
        "table": ".".join(filter(None, [schema, _PARENT])),
    }
    if not how.get("quiet", True):
        say(f"Loading products into {to['table']}, then reviews into {work['to']['table']}.")
    of_products = _by_preset({**work, "source": metadata, "text": ""}, to) | {"to": to}
    products = load_spec(make_spec(of_products, execution), f"{out}-products", **how)

    def refer(plan: Plan) -> None:
        child = sink.prepare(plan, result_schema(plan))
        parent = sink.find_target(products.plan, result_schema(products.plan))
        assert plan.work.to is not None
        with connect(plan.work.to.url, autocommit=True) as connection:
            if orphans := link(connection, child, parent, preset.product):
                say(f"{orphans:,} rows of {child.name} refer to unknown products: no foreign key is created.")

    reviews = make_spec({**work, "to": {**work["to"], "products": to["table"]}}, execution)
    return load_spec(reviews, out, before=refer, **how)


def place_of(run: Run) -> str:
    """The address of a run's table, as `search` and `verify` accept it."""
    to = run.plan.work.to
    assert to is not None
    path, mark, query = to.url.partition("?")
    return f"{path}/{to.table}{mark}{query}"
