"""Writes the passages of a run, or their words alone: by groups of shards, so that a kill costs one group."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardmill.core import permission
from shardmill.core.console import Bar, say
from shardmill.core.dialect import shell_command
from shardmill.core.errors import CorruptState, SourceError, UsageError
from shardmill.core.languages import read_language
from shardmill.ledger import Commit, Ledger
from shardmill.models.retrieval.graph import VectorGraph, measure_recall, write_graph
from shardmill.models.retrieval.passages import (
    RECORD,
    SCHEMA,
    WORDS,
    PassageGroup,
    PassageRecord,
    fetch_files,
    find_record,
    find_rules,
    group_name,
    local_folder,
    open_words,
    send_files,
    word_folders,
)
from shardmill.models.retrieval.wording import FILE as RULES
from shardmill.models.retrieval.wording import WordRules, read_rules
from shardmill.models.retrieval.words import GroupedWords, write_words
from shardmill.plan import ITEM, START, STOP, WINDOW, Plan, Shard
from shardmill.plugins import find_verb
from shardmill.results.documents import FILE, is_of_documents, list_files
from shardmill.results.merge import digest_of, part_schema, stored_vectors
from shardmill.results.windows import count_items, has_windows
from shardmill.sinks.parquet import read_part
from shardmill.sources import Fields, Source, open_source
from shardmill.sources.documents.document import find_pages, has_pages

# Search is exact up to this many rows; beyond, graphs are built without being asked for.
EXACT_ROWS = 1_000_000
# A group has the shards that follow one another up to this many rows, or one larger shard.
GROUP_ROWS = 100_000
# The language of the texts is told by this many shards at most, from the first to the last.
_SAMPLED_SHARDS = 8


def write_passages(
    ledger: Ledger, plan: Plan, *, graph: bool = False, language: str = "", quiet: bool = False
) -> PassageRecord:
    """Write what is missing of a run's passages; `graph` builds graphs whatever the number of rows.

    The words are those of the `language` that is asked for or, in a new index, that a sample of the texts is in.
    """
    _check_kind(ledger, plan)
    commits = ledger.commits.read_complete(plan)
    digest = digest_of(commits)
    groups = list(_groups(plan, commits))
    sizes = _sizes(groups)
    graph = graph or sum(sizes) > EXACT_ROWS
    found = find_record(ledger.store)
    found = found if found is not None and found.digest == digest else None
    rules = _settle_rules(ledger, plan, groups, found, language)
    if found is not None and (found.recall is not None or not graph) and rules == find_rules(ledger.store, found):
        return found
    dims = stored_vectors(ledger, plan).dims
    record = PassageRecord(digest, plan.work.task, plan.work.params, plan.fingerprint, dims, sizes)
    folder = fetch_files(ledger.store, found) if found is not None else local_folder(ledger.store, digest)
    folder.mkdir(parents=True, exist_ok=True)
    with Bar("indexing", quiet=quiet) as bar:
        recalls = []
        for i, (group, rows) in enumerate(zip(groups, sizes, strict=True)):
            bar.at(i / len(groups), f"group {i + 1} of {len(groups)}, {rows:,} passages")
            _write_group(ledger, plan, group, folder, group_name(i), rules)
            if graph:
                recalls.append(_write_graph(folder, group_name(i)))
        bar.at(1.0)
    if graph:
        record = replace(record, recall=round(float(np.average(recalls, weights=sizes)), 4))
    elif found is not None:
        record = found
    _record(folder, rules, ledger.url, quiet)
    send_files(ledger.store, record)
    ledger.store.put(RECORD, record.encode())
    return record


def write_run_words(ledger: Ledger, plan: Plan, *, language: str = "", quiet: bool = False) -> GroupedWords:
    """BM25 over the rows of a run; what is missing of it is written first. `index` uses what is there."""
    commits = ledger.commits.read_complete(plan)
    digest = digest_of(commits)
    found = find_record(ledger.store)
    found = found if found is not None and found.digest == digest else None
    groups = list(_groups(plan, commits))
    folder = local_folder(ledger.store, digest)
    there = _find_rules(ledger, folder, found)
    if language and there is not None and there.language != read_language(language):
        again = shell_command("index", ledger.url, "--language", language)
        raise UsageError(
            f"The words of {ledger.url} are indexed in the language {there.language}.",
            hint=f"In another: {again}" if find_verb(plan.work.task).makes_vectors else f"Delete {folder} first.",
        )
    if found is not None:
        return open_words(fetch_files(ledger.store, found, only_words=True), found.groups, there or WordRules())
    _check_texts(ledger, plan)
    rules = _settle_rules(ledger, plan, groups, None, language)
    sizes, paths = _sizes(groups), word_folders(folder, len(groups), rules)
    missing = [i for i, path in enumerate(paths) if not path.exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        done, total = 0, sum(sizes[i] for i in missing)
        with Bar("indexing words", quiet=quiet) as bar:
            for i in missing:
                with renamed(paths[i]) as path:
                    write_words(_read_texts(ledger, plan, groups[i]), path, rules)
                done += sizes[i]
                bar.count(done, total, "rows")
        _record(folder, rules, ledger.url, quiet)
    return open_words(folder, sizes, rules)


def _settle_rules(
    ledger: Ledger,
    plan: Plan,
    groups: Sequence[list[tuple[Shard, Commit]]],
    found: PassageRecord | None,
    language: str,
) -> WordRules:
    """How texts are cut into words: as recorded, or as an earlier version began with; else by a sample of them."""
    folder = local_folder(ledger.store, digest_of([commit for group in groups for _, commit in group]))
    there = _find_rules(ledger, folder, found)
    if there is not None and (not language or not there.is_less_than(WordRules.of(read_language(language)))):
        return there
    pairs = [pair for group in groups for pair in group if pair[1].rows_in_part]
    some = pairs[:: -(-len(pairs) // _SAMPLED_SHARDS) or 1]
    return WordRules.settle(language, lambda: _read_texts(ledger, plan, some))


def _find_rules(ledger: Ledger, folder: Path, found: PassageRecord | None) -> WordRules | None:
    """Those of the words that are there; None if there are none. Earlier versions recorded none and cut all alike."""
    if found is not None:
        return find_rules(ledger.store, found)
    return read_rules(folder) or (WordRules() if any(folder.glob(f"{'[0-9]' * 6}{WORDS}")) else None)


def _record(folder: Path, rules: WordRules, url: str, quiet: bool) -> None:
    """Say in the folder how its words are cut, once all of them are there."""
    if (read_rules(folder) or WordRules()) == rules:
        return
    with renamed(folder / RULES) as path:
        path.write_bytes(rules.encode())
    if rules.lacks_stems and not quiet:
        say(
            f"The words are indexed without stems, which a library knows: pip install PyStemmer, then "
            f"{shell_command('index', url, '--language', rules.language)}"
        )


def _check_kind(ledger: Ledger, plan: Plan) -> None:
    if not find_verb(plan.work.task).makes_vectors:
        raise UsageError(
            f"{ledger.url} is a run of the task {plan.work.task!r}, not of embed: it has no vectors to search.",
            hint="Embed the passages first: shardmill embed SOURCE --text FIELD --out RUN",
        )
    _check_texts(ledger, plan)


def _check_texts(ledger: Ledger, plan: Plan) -> None:
    """Refuse a run whose texts are neither in it nor in its source."""
    if not plan.work.text:
        raise UsageError(
            f"{ledger.url} has no texts: its items were not made from any.", hint="Search it by meaning alone."
        )
    if plan.work.query and not _keeps_text(plan):
        raise UsageError(
            f"{ledger.url} did not keep the text of its passages, and the rows of its query may have changed.",
            hint=f"Embed again with --keep {plan.work.text}, or load a table and answer over that.",
        )
    if not _keeps_text(plan):
        permission.check(plan.code)


def _keeps_text(plan: Plan) -> bool:
    return plan.kept.get(plan.work.text) in ("string", "large_string")


def _groups(plan: Plan, commits: Sequence[Commit]) -> Iterator[list[tuple[Shard, Commit]]]:
    group: list[tuple[Shard, Commit]] = []
    rows = 0
    for pair in zip(plan.shards, commits, strict=True):
        if group and rows + pair[1].rows_in_part > GROUP_ROWS:
            yield group
            group, rows = [], 0
        group.append(pair)
        rows += pair[1].rows_in_part
    yield group


def _sizes(groups: Sequence[list[tuple[Shard, Commit]]]) -> tuple[int, ...]:
    return tuple(sum(commit.rows_in_part for _, commit in group) for group in groups)


def _write_group(
    ledger: Ledger, plan: Plan, group: list[tuple[Shard, Commit]], folder: Path, name: str, rules: WordRules
) -> None:
    """Write the vectors, the words and then the texts of a group; texts that are there say that the group is done."""
    done, words = folder / f"{name}.arrow", folder / f"{name}{rules.ending}{WORDS}"
    if done.exists():
        if not words.exists():
            with renamed(words) as path:
                write_words(PassageGroup(folder, name).table.column("text").to_pylist(), path, rules)
        return
    table, matrix = _read_group(ledger, plan, group)
    with renamed(folder / f"{name}.npy") as path, path.open("wb") as file:
        np.save(file, matrix)
    if not words.exists():
        with renamed(words) as path:
            write_words(table.column("text").to_pylist(), path, rules)
    with renamed(done) as path, pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
        writer.write_table(table)


def _write_graph(folder: Path, name: str) -> float:
    """Write the graph of a group, if it is not there, and return its recall."""
    path = folder / f"{name}.graph"
    matrix = PassageGroup(folder, name).matrix
    if not path.exists():
        with renamed(path) as partial:
            write_graph(matrix, partial)
    return measure_recall(matrix, VectorGraph(path, matrix))


class renamed:  # noqa: N801
    """A path to write to, which takes its name once it is whole."""

    def __init__(self, path: Path) -> None:
        self._path, self._partial = path, path.with_name(f"{path.name}.{os.getpid()}.partial")

    def __enter__(self) -> Path:
        if self._partial.is_dir():
            shutil.rmtree(self._partial)
        return self._partial

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            if self._path.is_dir():
                shutil.rmtree(self._path)
            os.replace(self._partial, self._path)
        elif self._partial.is_dir():
            shutil.rmtree(self._partial)
        else:
            self._partial.unlink(missing_ok=True)


def _read_group(ledger: Ledger, plan: Plan, group: list[tuple[Shard, Commit]]) -> tuple[pa.Table, Any]:
    """The passages of a group and their vectors, in source order."""
    first = sum(c.rows for c in ledger.commits.read_complete(plan)[: group[0][0].index])
    known = {} if FILE in plan.kept else dict(enumerate(list_files(plan)))
    stored = stored_vectors(ledger, plan)
    tables, matrices = [], []
    kept = [FILE] if FILE in plan.kept else []
    for rows, commit in _read_shards(ledger, plan, group, [*plan.work.id, *kept, stored.name]):
        tables.append(_passages(plan, rows, first, known))
        matrices.append(stored.read_floats(rows.part.column(stored.name).combine_chunks()))
        first += commit.rows
    return pa.concat_tables(tables), np.concatenate(matrices)


def _read_texts(ledger: Ledger, plan: Plan, group: list[tuple[Shard, Commit]]) -> list[str]:
    """The texts of the passages of a group alone."""
    return [text for rows, _ in _read_shards(ledger, plan, group, []) for text in rows.passages]


def _read_shards(
    ledger: Ledger, plan: Plan, group: list[tuple[Shard, Commit]], columns: Sequence[str]
) -> Iterator[tuple[_ShardRows, Commit]]:
    """The rows of each shard, with these columns; the texts come from the source if the run did not keep them."""
    work, schema = plan.work, part_schema(ledger, plan)
    try:
        source = None if _keeps_text(plan) else open_source(plan.stat, Fields.of(work), work.max_item_bytes)
        for shard, commit in group:
            yield _ShardRows.read(ledger, plan, schema, shard, commit, source, columns), commit
    except (SourceError, FileNotFoundError) as error:
        again = "" if _is_made_up(work.text) else f", or embed it again with --keep {work.text}"
        why = error.message if isinstance(error, SourceError) else str(error)
        raise UsageError(
            f"The texts of {ledger.url} are in its source, which cannot be read: {why}",
            hint=f"Put the source back{again}.",
        ) from error


def _is_made_up(text: str) -> bool:
    """Whether texts are made from several fields, which the run cannot keep as one."""
    return "," in text or "{" in text


@dataclass(slots=True)
class _ShardRows:
    """The rows of a shard: their columns, items in the shard, texts of these items, and the windows' characters."""

    part: pa.Table
    items: NDArray[np.int64]
    whole: list[str]
    starts: list[int]
    stops: list[int] | None

    @classmethod
    def read(
        cls,
        ledger: Ledger,
        plan: Plan,
        schema: pa.Schema,
        shard: Shard,
        commit: Commit,
        source: Source | None,
        columns: Sequence[str],
    ) -> _ShardRows:
        spans = [name for name in (WINDOW, START, STOP) if has_windows(plan, schema) and name in schema.names]
        numbered = [ITEM] if plan.work.takes_part else []
        names = [*dict.fromkeys([*([] if source else [plan.work.text]), *spans, *numbered, *columns])]
        batches = [*read_part(ledger.store, commit, names)]
        part = pa.Table.from_batches(batches) if batches else _no_rows(schema, names)
        if numbered:
            items = part.column(ITEM).to_numpy()
        else:
            items = count_items(part.column(WINDOW).combine_chunks(), 0) if spans else np.arange(commit.rows_in_part)
        texts = _source_texts(source, shard, commit) if source else part.column(plan.work.text).to_pylist()
        whole = [texts[i] or "" for i in items] if source else [text or "" for text in texts]
        starts = [n or 0 for n in part.column(START).to_pylist()] if START in spans else [0] * len(items)
        stops = [n or 0 for n in part.column(STOP).to_pylist()] if STOP in spans else None
        return cls(part, items, whole, starts, stops)

    @property
    def passages(self) -> list[str]:
        if self.stops is None:
            return self.whole
        return [text[a:b] for text, a, b in zip(self.whole, self.starts, self.stops, strict=True)]


def _no_rows(schema: pa.Schema, names: Sequence[str]) -> pa.Table:
    fields = [pa.field(name, pa.int64()) if name == ITEM else schema.field(name) for name in names]
    return pa.schema(fields).empty_table()


def _passages(plan: Plan, rows: _ShardRows, first: int, known: Mapping[int, str]) -> pa.Table:
    """The passages of a shard, whose first item is the item `first` of the source."""
    part, items = rows.part, rows.items
    files: Sequence[str | None] = [None] * len(items)
    pages: Sequence[int | None] = [None] * len(items)
    if is_of_documents(plan):
        kept = FILE in plan.kept
        files = part.column(FILE).to_pylist() if kept else [known.get(row) for row in (first + items).tolist()]
        if rows.stops is not None:
            middles = [(a + b) // 2 for a, b in zip(rows.starts, rows.stops, strict=True)]
            pages = _find_pages(items, files, rows.whole, middles)
    columns = [first + items, _ids(part, plan.work.id, first + items), rows.starts, rows.passages, files, pages]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def _find_pages(
    items: NDArray[np.int64], files: Sequence[str | None], texts: Sequence[str], middles: Sequence[int]
) -> list[int | None]:
    """The page that the middle of each window is on; None for documents without pages."""
    pages: list[int | None] = []
    for _, group in itertools.groupby(range(len(items)), key=items.__getitem__):
        rows = [*group]
        text = texts[rows[0]]
        paged = has_pages(files[rows[0]] or "", text)
        pages += find_pages(text, [middles[row] for row in rows]) if paged else [None] * len(rows)
    return pages


def _source_texts(source: Source, shard: Shard, commit: Commit) -> list[str | None]:
    texts = [text for batch in source.read(shard) for text in batch.texts.to_pylist()]
    if len(texts) != commit.rows:
        raise CorruptState(
            f"Shard {shard.index} has {len(texts):,} items in the source, and {commit.rows:,} in the run.",
            hint="The source has changed: embed it again, with --keep and its text column.",
        )
    return texts


def _ids(part: pa.Table, names: Sequence[str], rows: Any) -> list[str]:
    """The id of each passage as text: the values of its id columns, or the row of its item."""
    if not names:
        return [str(row) for row in rows]
    values = zip(*(part.column(name).to_pylist() for name in names), strict=True)
    return [",".join(map(str, each)) for each in values]
