"""A run whose result goes into a table: embedded, loaded, indexed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from shardmill.console import say
from shardmill.engines.base import Engine
from shardmill.errors import SpecError
from shardmill.plan import Plan
from shardmill.planner import result_schema
from shardmill.postgres import connect
from shardmill.postgres.embedded import describe, is_embedded, resolve
from shardmill.postgres.links import link
from shardmill.postgres.presets import find_preset
from shardmill.run import Run, start
from shardmill.sinks import table as sink
from shardmill.sources.columns import split_keep
from shardmill.spec import Spec
from shardmill.template import TextTemplate

_PARENT = "product_metadata"


# What a table is asked for by name, and what a spec calls it.
_TO = {"to": "url", "schema": "preset"} | dict.fromkeys(
    ("table", "mode", "vector", "changed_only", "unknown_products"), ""
)


def to_table(work: dict[str, Any], values: Mapping[str, Any], *, products: bool = False) -> dict[str, Any]:
    """The `[work]` of a load: with where it goes, the fields of a schema that was named, and the text as columns.

    `values` are by the names that commands and functions have for them.
    """
    asked = {_TO[name] or name: value for name, value in values.items() if name in _TO and value is not None}
    given = {**work.get("to", {}), **asked}
    if is_embedded(given.get("url", "")):
        place, given["url"] = given["url"], resolve(given["url"])
        say(describe(place, given["url"]))
    if given.get("unknown_products") and not products:
        raise SpecError("No products were given.", hint="--unknown-products is for --schema with --metadata FILE.")
    if not given.get("url"):
        raise SpecError("No --to was given.", hint="Name a database: --to postgresql://USER@HOST:PORT/DATABASE")
    if given.get("preset"):
        return {**_by_preset(work, given), "to": given}
    if not given.get("table"):
        raise SpecError("No --table was given.", hint="Name the table that rows go into: --table documents")
    if not work.get("text"):
        raise SpecError("No text was given.", hint="Name the field that is embedded: --text body")
    id, keep = (_names(work.get(name)) for name in ("id", "keep"))
    return {**work, "keep": keep_text(work["text"], id, keep), "to": given}


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
    """The columns to keep for a table: those asked for, and the fields that the text is made of.

    >>> keep_text("{title}: {body}", ("id",), ("price:double", "title"))
    ('price:double', 'title', 'body')
    """
    there = {*id, *(split_keep(entry)[0] for entry in keep)}
    return (*keep, *(name for name in TextTemplate.parse(text).names if name not in there))


def default_out(work: dict[str, Any]) -> str:
    return f"runs/{work['to']['table']}"


def load(
    spec: Spec,
    out: str | os.PathLike[str],
    *,
    index: str = "hnsw",
    rebuild_indexes: bool = False,
    fresh: bool = False,
    resume: bool = False,
    quiet: bool = True,
    engine: Engine | None = None,
) -> Run:
    """Embed and load every item, then build the indexes that are missing. The same call resumes."""

    def before(plan: Plan) -> None:
        sink.ask_about_indexes(plan, result_schema(plan), kind=index, rebuild=rebuild_indexes, quiet=quiet)

    run = start(spec, out, fresh=fresh, resume=resume, quiet=quiet, engine=engine, before=before)
    return _index(run, index, quiet)


def _index(run: Run, kind: str, quiet: bool) -> Run:
    for line in sink.finish(run.plan, result_schema(run.plan), kind=kind, quiet=quiet):
        if not quiet:
            say(f"Indexed: {line}")
    return run


def load_with_products(
    make: Callable[[dict[str, Any]], Spec], work: dict[str, Any], metadata: list[str], out: str, **settings: Any
) -> Run:
    """Products first, so that reviews can refer to them; `unknown_products` says what becomes of a review of none."""
    preset = find_preset(work["to"]["preset"])
    schema = work["to"]["table"].rpartition(".")[0]
    to = {
        **{name: value for name, value in work["to"].items() if name != "unknown_products"},
        "preset": f"{work['to']['preset']}:metadata",
        "table": ".".join(filter(None, [schema, _PARENT])),
    }
    if not settings["quiet"]:
        say(f"Products first, into {to['table']}; then reviews, into {work['to']['table']}.")
    products = load(
        make(_by_preset({**work, "source": metadata, "text": ""}, to) | {"to": to}), f"{out}-products", **settings
    )
    spec = make({**work, "to": {**work["to"], "products": to["table"]}})

    def before(plan: Plan) -> None:
        child = sink.prepare(plan, result_schema(plan))
        parent = sink.find_target(products.plan, result_schema(products.plan))
        assert plan.work.to is not None
        with connect(plan.work.to.url, autocommit=True) as connection:
            if orphans := link(connection, child, parent, preset.product):
                say(f"{orphans:,} rows of {child.name} are of unknown products: no foreign key is made.")
        sink.ask_about_indexes(
            plan,
            result_schema(plan),
            kind=settings["index"],
            rebuild=settings["rebuild_indexes"],
            quiet=settings["quiet"],
        )

    own = {k: v for k, v in settings.items() if k not in ("index", "rebuild_indexes")}
    run = start(spec, out, before=before, **own)
    return _index(run, settings["index"], settings["quiet"])


def place_of(run: Run) -> str:
    """The table of a run, as `search` and `verify` take it."""
    to = run.plan.work.to
    assert to is not None
    path, mark, query = to.url.partition("?")
    return f"{path}/{to.table}{mark}{query}"
