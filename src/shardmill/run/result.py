"""A run folder as an object: its status, its verification and its result."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardmill.core import permission
from shardmill.core.console import card, say
from shardmill.core.errors import ShardmillError, UsageError
from shardmill.core.telemetry import timed_step
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.plan.execution import absolute_address
from shardmill.plugins import find_verb, load_part, names
from shardmill.run.status.screen import to_card
from shardmill.run.status.state import Status

if TYPE_CHECKING:
    import datasets
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from numpy.typing import NDArray

    from shardmill.models.retrieval.passages import PassageRecord
    from shardmill.results.files.chosen import Merged
    from shardmill.results.search import Hit
    from shardmill.results.torch_rows import TorchRows
    from shardmill.results.verify import Report
    from shardmill.run.costs.cost import Cost
    from shardmill.run.editions import EditionLine
    from shardmill.run.migrated import Migrated
    from shardmill.run.refreshed import Refreshed
    from shardmill.run.searching import Searches
    from shardmill.verbs.answer.evaluation import Evaluation
    from shardmill.verbs.tune.study import StudyResult


class Run:
    """A run folder: its status, its verification and its result. `allow_code` lets it name code that runs here.

    `len(run)` is the number of rows of a complete result. Like `table()`, it refuses a run that is not complete and one
    whose rows are in a table of a database; `status()` counts these.
    """

    def __init__(self, place: str | os.PathLike[str], *, allow_code: bool = False) -> None:
        self.ledger = Ledger(place)
        self.plan: Plan = self.ledger.plan()
        self._searches: Searches | None = None
        if allow_code:
            permission.allow(self.plan.code)

    def __len__(self) -> int:
        """The rows of the result, by its commits; an item may have several. NotComplete while shards are missing."""
        from shardmill.results.frames import count_rows

        return count_rows(self.ledger, self.plan)

    def __bool__(self) -> bool:
        """A run is there whatever its length, also while it is not complete."""
        return True

    def __repr__(self) -> str:
        return f"Run({self.ledger.url!r})"

    def _repr_html_(self) -> str:
        """The run in a notebook: a card with its state, or with what cannot be read."""
        try:
            return to_card(self.status())
        except ShardmillError as error:
            return card(self.ledger.url, 0.0, [("cannot be read", error.message)])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the folder's URL; another process opens the folder itself, with the same permission."""
        return functools.partial(Run, allow_code=all(map(permission.is_allowed, self.plan.code))), (self.ledger.url,)

    def status(self) -> Status:
        """The state of the run, from its folder and, for a load, from the batch records in the database.

        A run of a thousand shards or more is shown by the view that its workers write now and then.
        """
        from shardmill.run.costs.outlook import look

        return look(self.ledger, self.plan)

    def deliver(self, address: str, *, repair: bool = False, shown_as: str = "", quiet: bool = True) -> int:
        """Deliver the finished rows to a store, such as "lance:reviews.lance", and return how many it then has.

        A table gets what it lacks of this run, a vector database every row; of another edition, what differs. `repair`
        replaces rows that a table has lost, or that were changed or doubled there. `shown_as` is a view of the table,
        or an alias of the collection, that shows it from then on. `verify` compares it with the run.
        """
        from shardmill.results.delivery import deliver_run, remember_delivery, show_delivery, tell_delivery
        from shardmill.results.repair import repair_run

        with timed_step(self.plan.id, self.plan.generation, "deliver"):
            address = absolute_address(address)
            how: Any = repair_run if repair else functools.partial(deliver_run, again=True)
            found = how(self.ledger, self.plan, address, quiet=quiet)
            if shown_as:
                show_delivery(self.ledger, self.plan, address, shown_as)
        if not quiet:
            tell_delivery(address, found)
        remember_delivery(self.ledger, address)
        return int(found["rows"])

    def refresh(self, *, dry_run: bool = False, allow_shrink: bool = False, quiet: bool = True) -> Refreshed:
        """Bring the run up to its source: compute what is new or changed, and take the other rows over.

        The result is the next edition of the run, which this object and all commands read afterwards.
        """
        # Refreshing ends with a run, so that it imports this module.
        refresh = load_part("shardmill.run.refreshing:refresh")
        how = {"dry_run": dry_run, "allow_shrink": allow_shrink, "quiet": quiet}
        done: Refreshed = refresh(self.ledger.url, allow_code=all(map(permission.is_allowed, self.plan.code)), **how)
        if done.changed and not dry_run:
            self._read_again(done.run)
        return done

    def migrate(
        self,
        *,
        queries: str | os.PathLike[str] = "",
        query_text: str = "query",
        gold: str = "",
        sample: int = 200,
        compare_only: bool = False,
        dry_run: bool = False,
        quiet: bool = True,
        **params: Any,
    ) -> Migrated:
        """Move the run to other parameters of its task, such as `model` or `dims`: compute, compare, switch.

        The result is the next edition of the run, which this object and all commands read afterwards. Both are compared
        on a file of queries, or on texts of the run; with `compare_only`, the old one stays the one that is read.
        """
        # Migrating ends with a run, so that it imports this module.
        migrating = load_part("shardmill.run.migrating")
        asked = migrating.Asked(params, os.fspath(queries), query_text, gold, sample, compare_only)
        allowed = all(map(permission.is_allowed, self.plan.code))
        done: Migrated = migrating.migrate(self.ledger.url, asked, dry_run=dry_run, allow_code=allowed, quiet=quiet)
        if done.switched:
            self._read_again(done.run)
        return done

    def rollback(self, edition: int | None = None) -> int:
        """Go back to the edition that was read before, or to the one with this number; returns its number."""
        from shardmill.run.rollback import roll_back

        done = roll_back(self.ledger.url, edition)
        self._read_again(done.run)
        return done.edition

    def _read_again(self, run: str) -> None:
        self.ledger = Ledger(run)
        self.plan, self._searches = self.ledger.plan(), None

    def editions(self) -> list[EditionLine]:
        """The editions of the run, the oldest first, and what each refresh did."""
        from shardmill.run.editions import list_editions

        return list_editions(self.ledger.url)

    def verify(
        self,
        *,
        sample: int | str = 64,
        rows: int | None = None,
        dims: int | None = None,
        to: str | Sequence[str] = (),
        source: bool = True,
        report: bool = True,
        quiet: bool = True,
    ) -> Report:
        """Check the result against plan and source, and optionally against expected rows and dimensions.

        `sample` rows are computed again: a number, a share such as "1%", or "all". Without `source`, the whole source
        is not read again, and its items are not compared. Stores that the run was delivered to are compared with it row
        by row, and those that `to` names. The `report` is kept in the run folder, if that can be
        written.
        """
        from shardmill.results.verify import Expected, verify

        with timed_step(self.plan.id, self.plan.generation, "verify"):
            asked = Expected(rows, dims)
            stores = [absolute_address(each) for each in ([to] if isinstance(to, str) else to)]
            found = verify(self.ledger, self.plan, sample=sample, source=source, expected=asked, to=stores, quiet=quiet)
        if report:
            self.keep_report(found)
        return found

    def keep_report(self, report: Report) -> None:
        """Keep the report of a verification in the run folder; a folder that cannot be written is told in a line."""
        from shardmill.results.verify import save_report

        if why := save_report(self.ledger, report):
            say(why)

    def cost(self, usd_per_hour: float | None = None) -> Cost:
        """What the run has cost so far, at `usd_per_hour` or the catalogue's price."""
        from shardmill.run.costs.cost import read_cost

        return read_cost(self.ledger, self.plan, usd_per_hour)

    def report(self, out: str | os.PathLike[str] = "", format: str = "") -> str:
        """Write one page about the run: as "html", "md" or "json", by the name of `out` if it is not said.

        Without `out` it is report.html, or what the format is called, in the run's folder. Returns its place.
        """
        from shardmill.run.reports import write_report

        return write_report(self.ledger, self.plan, self.status(), os.fspath(out), format)

    def merge(
        self,
        out: str | os.PathLike[str],
        *,
        format: str = "",
        where: str = "",
        columns: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        rows_per_file: int | None = None,
        partition_by: str = "",
        quiet: bool = True,
    ) -> Merged:
        """Write the result in source order, in the format that the name of `out` or `format` says.

        `out` is a .parquet, .npy, .faiss, .jsonl, .csv, .tsv, .arrow or .lance file, or "-" for standard output. Beside
        .npy and .faiss, the other columns are in a file that ends in .ids.parquet. Only rows for which the condition
        `where` holds and only some `columns` are written, if they are given; `rename` has new names by the old ones.
        With `rows_per_file` or `partition_by`, a column, `out` is a folder of files.
        """
        from shardmill.results.merge import merge

        with timed_step(self.plan.id, self.plan.generation, "merge"):
            return merge(
                self.ledger,
                self.plan,
                os.fspath(out),
                format=format,
                where=where,
                columns=columns,
                rename=rename,
                rows_per_file=rows_per_file,
                partition_by=partition_by,
                quiet=quiet,
            )

    def batches(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The result in source order, batch by batch. The first column is always `row`."""
        from shardmill.results.frames import result_batches

        return result_batches(self.ledger, self.plan, columns)

    def table(self, columns: list[str] | None = None) -> pa.Table:
        """The whole result as one Arrow table, in memory."""
        from shardmill.results.frames import result_table

        return result_table(self.ledger, self.plan, columns)

    def to_pandas(self, columns: list[str] | None = None) -> pd.DataFrame:
        """The result as a pandas DataFrame, whose columns have Arrow's types and share the table's memory.

        A null among integers leaves them integers. A vector is a NumPy array, None if it is missing.
        """
        from shardmill.results.frames import to_pandas

        return to_pandas(self.ledger, self.plan, columns)

    def to_polars(self, columns: list[str] | None = None) -> pl.DataFrame:
        """The result as a Polars DataFrame, with vectors as arrays. Numbers and vectors share the table's memory."""
        from shardmill.results.frames import to_polars

        found: pl.DataFrame = to_polars(self.ledger, self.plan, columns)
        return found

    def to_datasets(self, columns: list[str] | None = None) -> datasets.Dataset:
        """The result as a Dataset of Hugging Face's `datasets`, in memory."""
        from shardmill.results.frames import to_datasets

        return to_datasets(self.ledger, self.plan, columns)

    def to_torch(self, columns: list[str] | None = None) -> TorchRows:
        """The result as a map-style torch Dataset, for a DataLoader: each row is a dict, with vectors as tensors.

        A missing vector is a tensor of NaN. Any other null is None, which torch's default collate refuses: leave its
        column out, or give the DataLoader a `collate_fn`. Tensors share the memory of the result: clone one before you
        write into it.
        """
        from shardmill.results.frames import to_torch

        found: TorchRows = to_torch(self.ledger, self.plan, columns)
        return found

    def vectors(self) -> NDArray[Any]:
        """All vectors in source order as one array, (rows, dimensions), with NaN for missing ones.

        It is memory-mapped and cannot be written. The first call, or the first search, writes the file: into the run
        folder, or into the cache for a run in a store. A run in memory gives an array in memory.
        """
        from shardmill.results.frames import read_matrix

        return read_matrix(self.ledger, self.plan)

    def search(
        self,
        text: str,
        k: int = 5,
        *,
        where: str = "",
        words: bool = False,
        hybrid: bool = False,
        language: str = "",
        beside: str | os.PathLike[str] | None = None,
        rerank: str | os.PathLike[str] | None = None,
        quiet: bool = True,
    ) -> list[Hit]:
        """The best items for a text, best first: nearest in meaning, by `words` alone, or by both (`hybrid`).

        Only items whose id and kept columns meet `where` are found: "overall <= 2". Words are those of a `language`. Of
        other runs over the same items, what is found `beside` is fused by rank, and `rerank` ranks the best 100 anew.
        """
        how: dict[str, Any] = {"words": words, "hybrid": hybrid, "language": language, "quiet": quiet}
        return self.search_many([text], k, where=where, beside=beside, rerank=rerank, **how)[0]

    def search_many(
        self,
        texts: Sequence[str],
        k: int = 5,
        *,
        where: str = "",
        words: bool = False,
        hybrid: bool = False,
        language: str = "",
        beside: str | os.PathLike[str] | None = None,
        rerank: str | os.PathLike[str] | None = None,
        quiet: bool = True,
    ) -> list[list[Hit]]:
        """Several searches. The model stays loaded for the next ones, until `close`; by `words` none is needed."""
        from shardmill.run.searching import Searches

        self._searches = self._searches or Searches()
        how: dict[str, Any] = {"words": words, "hybrid": hybrid, "language": language, "quiet": quiet}
        return self._searches.search(self.ledger, self.plan, texts, k, where=where, beside=beside, rerank=rerank, **how)

    def search_pictures(self, files: Sequence[str | os.PathLike[str]], k: int = 5, where: str = "") -> list[list[Hit]]:
        """The best items of a run over pictures for the picture in each file, best first."""
        found: list[list[Hit]] = self._own("search_pictures")(self.ledger, self.plan, files, k, where)
        return found

    def close(self) -> None:
        """Free the model and the index of words that searches and questions have left open in this process."""
        from shardmill.tasks.kept import KEPT

        KEPT.close()
        self._searches = None

    def index(self, *, graph: bool = True, language: str = "", quiet: bool = True) -> PassageRecord:
        """Write the passages of an embed run for `answer` and `ask`, in a `language`, with graphs to search fast."""
        from shardmill.results.passages import write_passages

        return write_passages(self.ledger, self.plan, graph=graph, language=language, quiet=quiet)

    def study(self) -> StudyResult:
        """The trials of a study that have ended, the best ones, and which parameters matter."""
        found: StudyResult = self._own("study")(self.ledger, self.plan)
        return found

    def write_journal(self, out: str | os.PathLike[str]) -> None:
        """Write the ended trials of a study as a journal of Optuna, for optuna-dashboard. It is named as the folder."""
        self._own("write_journal")(self.study(), os.fspath(out), self.ledger.url.rpartition("/")[2])

    def evaluate(
        self,
        gold: str | os.PathLike[str],
        *,
        answers: str = "answers",
        passages: str = "passage_id",
        impossible: str = "is_impossible",
    ) -> Evaluation:
        """Compare a run of the answer task with a gold file, whose columns have these names."""
        columns = {"answers": answers, "passages": passages, "impossible": impossible}
        found: Evaluation = self._own("evaluate")(self.ledger, self.plan, os.fspath(gold), **columns)
        return found

    def _own(self, method: str) -> Callable[..., Any]:
        """The function behind a method that only runs of some verbs have."""
        task = self.plan.work.task
        if place := find_verb(task).methods.get(method):
            found: Callable[..., Any] = load_part(place)
            return found
        having = [name for name in names("verbs") if method in find_verb(name).methods]
        raise UsageError(
            f"{self.ledger.url} is a run of the task {task!r}, not of {' or '.join(having)}.",
            hint="".join(f"See: shardmill {name} --help" for name in having[:1]),
        )

    def errors(self) -> Iterator[dict[str, Any]]:
        """The rows that failed, with their line in the file and row in the source where known."""
        commits = self.ledger.commits.read()
        row: int | None = 0
        lines: dict[int, int | None] = {}
        for shard in self.plan.shards:
            commit = commits.get(shard.index)
            # A shard of several files has all of each, and counts their lines from 1.
            before = lines.get(shard.file, 0)
            if commit is None:
                row, lines[shard.file] = None, None
                continue
            for record in self.ledger.errors.read(commit):
                yield {
                    **record,
                    "line": None if before is None else before + record["line_in_shard"],
                    "row": None if row is None else row + record["row_in_shard"],
                }
            lines[shard.file] = None if before is None else before + commit.lines
            row = None if row is None else row + commit.rows
