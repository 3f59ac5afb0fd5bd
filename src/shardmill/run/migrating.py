"""A run is moved to another model: a new edition is computed beside the old one, compared with it, and then read.

Design: docs/design/editions.md
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from shardmill.core import permission
from shardmill.core.console import count, duration, is_quiet, say
from shardmill.core.devices import Device
from shardmill.core.dialect import shell_command
from shardmill.core.errors import UsageError
from shardmill.engines import find_kind
from shardmill.engines.base import Engine
from shardmill.ledger import MIGRATE, Editions, Ledger
from shardmill.plan import Plan
from shardmill.plan.salt import make_salt, salt_of
from shardmill.plan.spec import Spec, make_execution
from shardmill.plugins import check_packages, find_verb
from shardmill.results.comparison import Comparison, Side, compare
from shardmill.results.queries import QUERY, Query, check_gold, draw_queries, read_queries
from shardmill.run.comparing import count_changes, differs, pace
from shardmill.run.costs.forecast import make_forecast
from shardmill.run.migrated import Migrated
from shardmill.run.planner import make_plan
from shardmill.run.planning import (
    check_installed,
    open_placer,
    permit,
    refuse_another_model,
    settle_by_task,
    write_plan,
)
from shardmill.run.refreshing import LEAST_LEFT, refuse_unfit, settle_base, shrunk
from shardmill.run.reports.migration import write_comparison
from shardmill.run.running import finish_run
from shardmill.sinks.items_index import delete_index
from shardmill.tasks import open_task
from shardmill.tasks.by_adapter import names_field

COMPARISON, PAGE = "comparison.json", "comparison.html"
# Those belong to a model, so another one does not inherit them.
_OF_MODEL = ("prompt", "max_tokens", "dims", "adapter")
# What planning measures on the vectors.
_MEASURED = ("ranges",)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a migration is asked for: parameters of the task that change, and queries to compare with.

    `queries` is a file with the columns `text` and `gold`; without it, `sample` texts of the run are queries. With
    `compare_only`, the edition before stays the one that is read.
    """

    params: Mapping[str, Any]
    queries: str = ""
    text: str = QUERY
    gold: str = ""
    sample: int = 200
    compare_only: bool = False


def migrate(
    place: str | os.PathLike[str],
    asked: Asked,
    changes: Mapping[str, Any] | None = None,
    *,
    dry_run: bool = False,
    allow_code: bool = False,
    quiet: bool | None = None,
    engine: Engine | None = None,
) -> Migrated:
    """Compute the run with other parameters of its task, compare both results, and let the new one be read.

    Until then the old one is read, and it stays until it is pruned. A killed migration goes on when it is started
    again. If the run is refreshed meanwhile, what is new is computed before the switch. With `dry_run`, nothing is
    written.
    """
    quiet, began = is_quiet(quiet), time.time()
    editions = Editions(place)
    queries = read_queries(asked.queries, asked.text, asked.gold) if asked.queries else []
    while True:
        migration = _Migration(editions, asked, queries, changes, engine, allow_code=allow_code, quiet=quiet)
        if dry_run:
            return migration.estimate()
        made = migration.compute(began)
        comparison, page = migration.compare(made)
        number = migration.number
        if not asked.compare_only:
            ledger = Ledger(editions.open(made))
            ledger.seal(ledger.plan())
        switched = not asked.compare_only and editions.switch(number, made)
        if asked.compare_only or switched or editions.current() == made:
            return migration.tell(made, began, comparison, page, switched=not asked.compare_only)
        if not quiet:
            say(f"Edition {editions.current()} was made meanwhile: what is new in it is computed.")


class _Migration:
    """The edition that is read now, and the plan of the one that is to replace it."""

    def __init__(
        self,
        editions: Editions,
        asked: Asked,
        queries: Sequence[Query],
        changes: Mapping[str, Any] | None,
        engine: Engine | None,
        *,
        allow_code: bool,
        quiet: bool,
    ) -> None:
        self._editions, self._asked, self._quiet = editions, asked, quiet
        self.number = editions.current()
        self._base = Ledger(editions.open(self.number))
        self._plan, self._settings = settle_base(editions, self.number)
        plan = self._plan
        _refuse_without_vectors(self._base, plan, asked.params)
        if allow_code:
            permission.allow(plan.code)
        permission.check(plan.code)
        check_packages(plan.packages)
        refuse_unfit(self._base, plan, "migrated")
        refuse_another_model(self._base, plan)
        self._missing_gold = check_gold(self._base, plan, queries)

        own = {name: v for name, v in self._settings.items() if name not in ("places", "to_url", "into")}
        execution = make_execution({**own, "detach": False, **(changes or {})})
        if not find_kind(execution.engine).sees_editions:
            raise UsageError(
                f"The engine {execution.engine!r} cannot migrate a run: its workers do not see the edition before.",
                hint="Choose another: --engine local",
            )
        params = _change(plan.work.params, asked.params)
        # What the number of the edition will be is not known yet.
        work = plan.work.model_copy(update={"params": params, "edition": self.number + 1})
        self._spec = Spec(work=work, execution=execution)
        permit(self._spec, of_model=allow_code)
        self._placer, self._devices = open_placer(self._spec, engine, quiet)
        if self._placer is None:
            check_installed(work, self._spec.execution, self._devices)
        self._spec = settle_by_task(self._spec)
        self._settle(quiet)
        self._new = make_plan(self._spec, self._devices, quiet=quiet)
        self._goal = _goal(self._new)
        if _without_name(self._new) == _without_name(plan):
            raise UsageError(
                f"{editions.run} is made with this model and these parameters already.",
                hint=f"To bring it up to its source: {shell_command('refresh', editions.run)}",
            )
        if self._new.stat.size_bytes < LEAST_LEFT * plan.stat.size_bytes:
            raise shrunk(f"{plan.stat.size_bytes:,} bytes", f"{self._new.stat.size_bytes:,}", self._base)
        self._like, self._made_before = self._find_like(), False
        self._is_comparable = bool(plan.work.id) or not differs(plan, _with_params(self._new, plan))
        self._queries = queries or (draw_queries(self._new, asked.sample) if asked.sample else [])

    def _settle(self, quiet: bool) -> None:
        """Let planning settle what the new parameters leave open, unless an edition has these parameters already."""
        work = self._spec.work
        left = set(open_task(work.task, work.params).settles) - work.params.keys()
        if not left:
            return
        for number in range(self._editions.highest(), 0, -1):
            made = Ledger(self._editions.open(number)).find_plan()
            if made is not None and {n: v for n, v in made.work.params.items() if n not in left} == work.params:
                params = made.work.params
                break
        else:
            first = self._spec.model_copy(update={"work": work.model_copy(update={"edition": 0})})
            params = make_plan(first, self._devices, quiet=quiet).work.params
        self._spec = self._spec.model_copy(update={"work": work.model_copy(update={"params": dict(params)})})

    def estimate(self) -> Migrated:
        """What it would compute, with its time and price; nothing is written."""
        upcoming = self._find_begun() or self._editions.highest() + 1
        seconds, usd = self._price()
        if self._like is not None:
            ledger = Ledger(self._editions.open(self._like))
            found = count_changes(ledger, self._new, upcoming, 0, self._quiet)
            items, reused = found.items, found.reused
            share = found.computed / max(1, items)
            seconds, usd = (None if each is None else each * share for each in (seconds, usd))
        else:
            items, reused = self._count(self._base, self._plan), 0
        return Migrated(
            *(self._editions.run, self.number, upcoming, False, items, reused, items - reused),
            dry_run=True,
            seconds=seconds,
            usd=usd,
        )

    def compute(self, asked_at: float) -> int:
        """The number of a complete edition of the source as it is, with the new parameters."""
        editions, like = self._editions, self._like
        if like is not None and not self._new.work.query:
            plan = Ledger(editions.open(like)).plan()
            if not differs(plan, self._new):
                self._made_before = True
                return like
        if not self._quiet:
            self._say_price()
        Ledger(editions.open(1)).mark_editions()
        begun = self._find_begun() or editions.begin(like or self.number, MIGRATE, self._goal)
        spec = self._spec.model_copy(update={"work": self._spec.work.model_copy(update={"edition": begun})})
        ledger = Ledger(editions.open(begun))
        # One that was begun for a source that has changed since is begun again.
        found = ledger.find_plan()
        fresh = found is not None and differs(found, self._new)
        before = None if like is None else Ledger(editions.open(like)).plan()
        made = write_plan(ledger, spec, self._devices, fresh=fresh, edition_before=before, quiet=self._quiet)
        finish_run(ledger, made, spec, self._placer, self._devices, asked_at, self._quiet)
        delete_index(ledger)
        return begun

    def compare(self, made: int) -> tuple[Comparison | None, str]:
        """Compare both editions, and keep that in the folder of the new one."""
        if not self._queries:
            return None, ""
        if not self._is_comparable:
            say("Not compared: the run has no ids, and its source has changed, so items cannot be found again.")
            return None, ""
        ledger = Ledger(self._editions.open(made))
        sides = Side(self.number, self._base, self._plan), Side(made, ledger, ledger.plan())
        found = compare(*sides, self._queries, missing_gold=self._missing_gold, quiet=self._quiet)
        ledger.store.put(COMPARISON, (json.dumps(found.to_json(), indent=2, ensure_ascii=False) + "\n").encode())
        ledger.store.put(PAGE, write_comparison(self._editions.run, found).encode("utf-8", "replace"))
        return found, f"{ledger.url}/{PAGE}"

    def tell(self, made: int, began: float, comparison: Comparison | None, page: str, *, switched: bool) -> Migrated:
        ledger = Ledger(self._editions.open(made))
        plan = ledger.plan()
        items = self._count(ledger, plan)
        commits = ledger.commits.read_complete(plan)
        reused = sum(commit.reused for commit in commits)
        return Migrated(
            *(self._editions.run, self.number, made, switched, items, reused, items - reused),
            seconds=time.time() - began,
            comparison=comparison,
            report=page,
            made_before=self._made_before,
            errors=sum(commit.errors for commit in commits),
            errors_before=sum(commit.errors for commit in self._base.commits.read_complete(self._plan)),
        )

    def _find_like(self) -> int | None:
        """The newest complete edition that was made with the new parameters and model; None if there is none."""
        for edition in reversed(self._editions.all()):
            if edition.complete and not edition.pruned and edition.number != self.number:
                plan = Ledger(self._editions.open(edition.number)).plan()
                if _goal(plan) == self._goal:
                    return edition.number
        return None

    def _find_begun(self) -> int | None:
        """The newest edition that was begun for the same, from whichever edition and the same source."""
        for edition in reversed(self._editions.all()):
            is_same = (edition.kind, edition.goal) == (MIGRATE, self._goal)
            if is_same and not (edition.complete or edition.was_read or edition.pruned):
                plan = Ledger(self._editions.open(edition.number)).find_plan()
                if plan is None or not differs(plan, self._new):
                    return edition.number
        return None

    def _price(self) -> tuple[float | None, float | None]:
        """Seconds and dollars of computing all items here: by the model's size and speed, else as the base took."""
        with suppress(UsageError):
            found = make_forecast(self._spec, gpus=_name_devices(self._devices)).asked
            return found.seconds.likely, None if found.usd is None else found.usd.high
        items = self._count(self._base, self._plan)
        return tuple(None if each is None else each * items for each in pace(self._base, self._plan))  # type: ignore[return-value]

    def _say_price(self) -> None:
        seconds, usd = self._price()
        took = "" if seconds is None else f": about {duration(seconds)}"
        paid = "" if usd is None else f" (${usd:,.2f})"
        say(f"At most {count(self._count(self._base, self._plan), 'item')} to compute{took}{paid}.")

    @staticmethod
    def _count(ledger: Ledger, plan: Plan) -> int:
        commits = ledger.commits.read_complete(plan)
        return sum(commit.rows - commit.dropped * plan.work.takes_part for commit in commits)


def _refuse_without_vectors(base: Ledger, plan: Plan, given: Mapping[str, Any]) -> None:
    if plan.work.to is not None:
        raise UsageError(
            f"{base.url} is a load: its vectors are in the table {plan.work.to.table}, which holds one model.",
            hint="Load the source into a new table: shardmill load … --model MODEL --table NEW",
        )
    if names_field(plan.work.params.get("adapter")) or names_field(given.get("adapter")):
        raise UsageError(
            f"{base.url} cannot be migrated: each of its items has an adapter of its own, before or after.",
            hint="Run it with the other model, into another --out.",
        )
    if not find_verb(plan.work.task).embeds_texts:
        raise UsageError(
            f"{base.url} cannot be migrated: its task {plan.work.task!r} makes no vectors of texts.",
            hint="Run it with the new model, into another --out.",
        )


def _change(params: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a run with those that were given; another model brings its own prompt and dimensions."""
    if not given:
        raise UsageError("Nothing to migrate to was given.", hint="Name a model: --model MODEL; or --dims N.")
    stale = (*_MEASURED, *(_OF_MODEL if "model" in given else ()))
    return {**{name: value for name, value in params.items() if name not in stale}, **given}


def _goal(plan: Plan) -> str:
    """A name for what the rows of a plan are made by: the parameters and the model."""
    return salt_of(plan).hex()[:32]


def _without_name(plan: Plan) -> bytes:
    """What the rows of a plan are made by, wherever the folder of the model is and whatever its name."""
    fingerprint = dict(plan.fingerprint)
    if "weights" in fingerprint:
        fingerprint.pop("model", None)
    return make_salt(plan.work.task, plan.work.params, fingerprint)


def _with_params(new: Plan, plan: Plan) -> Plan:
    """The new plan as it would be with the parameters and the model of another, to compare their sources."""
    work = new.work.model_copy(update={"params": plan.work.params})
    return Plan.of(work, new.stat, plan.fingerprint, new.shards)


def _name_devices(devices: Sequence[Device]) -> str | None:
    """The devices of the workers, as `--gpus` names them; None for those of this machine."""
    first = devices[0]
    return None if first.kind == "cpu" else f"{len({device.visible for device in devices})}x{first.name}"
