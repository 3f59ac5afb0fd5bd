"""What is audited: files, a matrix beside a file, a table or a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardmill.core import permission
from shardmill.core.errors import UsageError, nearest
from shardmill.core.template import NO_TEXT, TextTemplate
from shardmill.ledger import Ledger
from shardmill.models.names import MINILM
from shardmill.plan import RUN, WINDOW
from shardmill.plugins import find_verb
from shardmill.postgres.places import find_table, is_table
from shardmill.run import Run
from shardmill.sources import Fields, list_columns
from shardmill.sources.sql.query import quote
from shardmill.store import is_url
from shardmill.verbs.audit.options import AuditOptions
from shardmill.verbs.audit.rows import NumpyRows, PairedRows, Rows, SourceRows
from shardmill.verbs.audit.stored import choose_column

_MODEL = ("model", "prompt", "max_tokens", "dims")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is audited: its rows, whether they have texts, and the parameters of the model they should be of."""

    place: str
    rows: Rows
    has_texts: bool
    model: dict[str, Any]


def find_subject(options: AuditOptions) -> Subject:
    """Find the vectors, and the texts that go with them."""
    if not options.source:
        raise UsageError("Nothing to audit was given.", hint="For example: shardmill audit vectors.parquet --text body")
    model = {name: value for name in _MODEL if (value := getattr(options, name)) not in (None, "")}
    if not options.model and (odd := [name for name in ("prompt", "max_tokens") if name in model]):
        raise UsageError(
            f"--{odd[0].replace('_', '-')} is given without --model.", hint="Name the model: --model MODEL"
        )
    place = ", ".join(options.source)
    if (run := _find_run(options)) is not None:
        return _subject_of_run(run, options, model)
    if options.model and not options.text:
        raise UsageError(
            "--model needs the texts, and no --text was given.",
            hint="Name the field that was embedded: --text FIELD, or leave out --model to scan the vectors alone.",
        )
    if not options.model:
        model = {}
    if len(options.source) == 1 and options.source[0].endswith(".npy"):
        return _subject_of_npy(options, model)
    if options.vectors:
        texts = SourceRows.of(
            options.source,
            Fields(options.text or NO_TEXT, options.id, (), options.query, config=options.config, split=options.split),
            options.format,
        )
        vectors = NumpyRows(options.vectors)
        return Subject(
            options.vectors, PairedRows(vectors, texts) if options.text else vectors, bool(options.text), model
        )
    places, query = _places(options)
    columns = list_columns(places, query, options.format, options.config)
    column = options.column or choose_column(columns, in_database=bool(query))
    for name in (column, *TextTemplate.parse(options.text or NO_TEXT).names):
        if name not in columns:
            raise UsageError(f"The source has no column {name!r}.", hint=nearest(name, [*columns]))
    fields = Fields(
        options.text or NO_TEXT, options.id, (), query, (column,), config=options.config, split=options.split
    )
    return Subject(place, SourceRows.of(places, fields, options.format, column), bool(options.text), model)


def _subject_of_npy(options: AuditOptions, model: dict[str, Any]) -> Subject:
    (path,) = options.source
    if options.text:
        raise UsageError(
            f"{path} has vectors, and no texts.",
            hint=f"Give the source of the texts: shardmill audit SOURCE --text {options.text} --vectors {path}",
        )
    return Subject(path, NumpyRows(path), False, model)


def _places(options: AuditOptions) -> tuple[Sequence[str], str]:
    """The places and the query; a table is all of its rows."""
    if options.query or len(options.source) != 1 or not is_table(options.source[0]):
        return options.source, options.query
    found = find_table(options.source[0])
    return (found.url,), f"SELECT * FROM {quote(found.schema)}.{quote(found.table)}"


def _find_run(options: AuditOptions) -> Run | None:
    place = options.source[0].removeprefix(RUN)
    if len(options.source) != 1 or options.query or options.vectors or is_table(place):
        return None
    if not options.source[0].startswith(RUN) and not is_url(place) and not Path(place).is_dir():
        return None
    return None if Ledger(place).find_plan() is None else Run(place, allow_code=options.allow_code)


def _subject_of_run(run: Run, options: AuditOptions, model: dict[str, Any]) -> Subject:
    """The vectors of a run, with the texts of its source, or with a column that it kept."""
    plan, work = run.plan, run.plan.work
    permission.check(plan.code, sends_keys=False)
    places = [f"{RUN}{run.ledger.url}"]
    columns = list_columns(places)
    column = options.column or choose_column(columns, in_database=False)
    kept = options.text or (work.text if work.text in columns else NO_TEXT)
    rows = SourceRows.of(places, Fields(kept, wanted=(column,)), None, column)
    own = {"model": MINILM} | {
        name: work.params[name] for name in (*_MODEL, "precision", "adapter") if work.params.get(name) is not None
    }
    windows = WINDOW in columns or bool(work.params.get("window_tokens"))
    # Windows, and rows that several items gave, are no longer the texts of the source.
    paired = not (windows or work.query or work.group_by)
    made_here = find_verb(work.task).embeds_texts and (kept != NO_TEXT or paired) and not windows
    if not model.get("model"):
        model = {**own, **model} if made_here else {}
    place = run.ledger.url
    if kept != NO_TEXT or not paired:
        return Subject(place, rows, kept != NO_TEXT, model)
    texts = SourceRows(plan.stat, Fields.of(work), shards=plan.shards, place=", ".join(work.source))
    return Subject(place, PairedRows(rows, texts), True, model)
