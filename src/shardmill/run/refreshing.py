"""A run is brought up to its source: what is new or changed is computed, the rest is taken over from the last edition.

Design: docs/design/editions.md
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from shardmill.core import permission
from shardmill.core.console import is_quiet, say
from shardmill.core.devices import Device
from shardmill.core.dialect import shell_command
from shardmill.core.errors import NotComplete, RunExists, SourceError, StaleResume, UsageError
from shardmill.engines import find_kind
from shardmill.engines.base import Engine
from shardmill.ledger import DONE, REFRESH, Editions, Ledger
from shardmill.plan import Plan
from shardmill.plan.salt import salt_of
from shardmill.plan.spec import Spec, Work, check_telling, make_execution
from shardmill.plugins import check_packages, find_verb
from shardmill.results.delivery import deliveries_of, shipment_of
from shardmill.results.recovery import recover_lineage
from shardmill.run.changes import differences, differences_of_work
from shardmill.run.comparing import count_changes, is_unchanged, pace
from shardmill.run.costs.cost import read_cost
from shardmill.run.planner import make_plan, settle_like
from shardmill.run.planning import open_placer, permit, refuse_another_model, settle_by_task, write_plan
from shardmill.run.refreshed import Refreshed
from shardmill.run.refreshes import note_behind, note_summary, recorded
from shardmill.run.running import finish_run
from shardmill.run.status.state import read_status
from shardmill.sinks.items_index import count_known, delete_index
from shardmill.sinks.lineage import Lineages
from shardmill.sinks.seen import find_newest
from shardmill.tasks import open_task
from shardmill.worker.steps import DELIVER

# A source with less than this share of what it had is believed only with `allow_shrink`.
LEAST_LEFT = 0.5


@recorded
def refresh(
    place: str | os.PathLike[str],
    changes: Mapping[str, Any] | None = None,
    *,
    work: Work | None = None,
    telling: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    allow_shrink: bool = False,
    allow_code: bool = False,
    quiet: bool | None = None,
    engine: Engine | None = None,
) -> Refreshed:
    """Compare the source as it is now with the run, and make the next edition of the run from both.

    New and changed items are computed, the rows of all others are taken over; items that are gone leave the result.
    A killed refresh goes on when it is started again. With `dry_run`, nothing is written. `work` is what is asked for
    now, if that may be something else than what the run did: items whose rows depend on what differs are computed.
    `telling` is what tells of changes from now on: `changed_since` or `follow`.
    """
    quiet, began = is_quiet(quiet), time.time()
    editions = Editions(place)
    number = editions.current()
    base = Ledger(editions.open(number))
    plan, settings = settle_base(editions, number)
    if work is None:
        if allow_code:
            permission.allow(plan.code)
        permission.check(plan.code)
    check_packages(plan.packages)
    refuse_unfit(base, plan)
    if work is None:
        _refuse_another_model(base, plan)
    commits = base.commits.read_complete(plan)
    before = sum(commit.rows - commit.dropped * plan.work.takes_part for commit in commits)

    own = {name: value for name, value in settings.items() if name not in ("places", "to_url", "into")}
    changes = {"detach": False, **(changes or {})}
    if changes.get("engine", own.get("engine")) != own.get("engine"):
        own |= {"engine_options": {}, "workers": None}
    execution = make_execution({**own, **changes})
    if not find_kind(execution.engine).sees_editions:
        raise UsageError(
            f"The engine {execution.engine!r} cannot refresh a run: its workers do not see the edition before.",
            hint="Choose another: --engine local",
        )
    upcoming = editions.find_begun(number, REFRESH) or editions.highest() + 1
    asked = plan.work if work is None else work.model_copy(update={"format": work.format or plan.work.format})
    if telling:
        asked = asked.model_copy(update=telling)
        check_telling(asked)
    spec = Spec(work=asked.model_copy(update={"edition": upcoming}), execution=execution)
    permit(spec, of_model=allow_code)
    placer, devices = open_placer(spec, engine, quiet)
    spec = settle_by_task(spec)
    if work is not None:
        spec = _settle_again(spec, plan, devices, quiet)
    new = make_plan(spec, devices, before=plan, quiet=quiet)
    into = deliveries_of(settings)
    if work is not None:
        check_work(base, plan, new, into, quiet)
    if is_unchanged(base, plan, new, quiet, writes=not dry_run):
        if not dry_run:
            deliver_edition(base, plan, spec, into, devices, quiet)
        return Refreshed(editions.run, number, False, before, before, before, 0, dry_run)
    if not allow_shrink and new.stat.size_bytes < LEAST_LEFT * plan.stat.size_bytes:
        raise shrunk(f"{plan.stat.size_bytes:,} bytes", f"{new.stat.size_bytes:,}", base)
    if new.work.changed_since and not find_newest(plan, new) and not quiet:
        say(f"Edition {number} does not know {new.work.changed_since!r} of its rows: all are read, this once.")
    if dry_run:
        return count_changes(base, new, upcoming, before, quiet)

    note_behind(editions)
    Ledger(editions.open(1)).mark_editions()
    begun = editions.begin(number, REFRESH) if editions.current() == number else 0
    ledger = Ledger(editions.open(begun or 1))
    # One that was begun for a source that has changed since is begun again.
    found = ledger.find_plan() if begun == upcoming else None
    is_stale = found is not None and bool(differences(found, new))
    is_left = is_stale and ledger.is_sealed()
    if is_left:
        # Its maker died between its last step and the switch.
        editions.switch(number, begun)
    if is_left or begun != upcoming:
        # Another process has begun or finished an edition meanwhile.
        return refresh(
            editions.run,
            changes,
            work=work,
            telling=telling,
            allow_shrink=allow_shrink,
            allow_code=allow_code,
            quiet=quiet,
            engine=engine,
        )
    if is_stale and (live := [w["id"] for w in read_status(ledger, found).workers if w["live"]]):
        raise RunExists(
            f"{ledger.url}: {len(live)} workers make this edition of the source as it was ({live[0]}).",
            hint=f"What has changed since serves the next one. Wait for this one: {shell_command('status', base.url)}",
        )
    made = write_plan(ledger, spec, devices, fresh=is_stale, edition_before=plan, quiet=quiet)
    finish_run(ledger, made, spec, placer, devices, began, quiet)
    done = ledger.commits.read_complete(made)
    items = sum(commit.rows - commit.dropped * made.work.takes_part for commit in done)
    if not allow_shrink and items < LEAST_LEFT * before:
        raise shrunk(f"{before:,} items", f"{items:,}", base)
    # Workers would have delivered it before it is read.
    if into and (kept := ledger.execution()):
        ledger.put_execution({**kept, "into": into})
    ledger.seal(made)
    if not editions.switch(number, begun) and not editions.is_read(begun):
        raise UsageError(f"{base.url}: another edition was chosen meanwhile.", hint="Run the same command again.")
    reused = sum(commit.reused for commit in done)
    if not quiet and reused < before:
        known = count_known(Lineages(ledger.store, base, recover_lineage), commits)
        if known < before:
            why = "they failed, or are of an earlier version"
            say(f"{before - known:,} of {before:,} items cannot be taken over: {why}.")
    delete_index(ledger)
    seconds, usd = pace(base, plan)
    refreshed = Refreshed(
        *(editions.run, begun, True, before, items, reused, items - reused),
        seconds=time.time() - began,
        seconds_saved=None if seconds is None else seconds * reused,
        usd=read_cost(ledger, made).usd,
        usd_saved=None if usd is None else usd * reused,
        errors=sum(commit.errors for commit in done),
    )
    note_summary(ledger, refreshed)
    deliver_edition(ledger, made, spec, into, devices, quiet)
    return refreshed


def _settle_again(spec: Spec, plan: Plan, devices: list[Device], quiet: bool) -> Spec:
    """The spec of a command with what planning settles: as the run has it, or anew if its rows are made otherwise."""
    work = settle_like(spec.work.model_copy(update={"edition": 0}), plan)
    if work.params != plan.work.params or open_task(work.task, work.params).fingerprint() != plan.fingerprint:
        anew = spec.work.model_copy(update={"edition": 0})
        work = make_plan(Spec(work=anew, execution=spec.execution), devices, quiet=quiet).work
    return Spec(work=work.model_copy(update={"edition": spec.work.edition}), execution=spec.execution)


def _refuse_another_model(base: Ledger, plan: Plan) -> None:
    try:
        refuse_another_model(base, plan)
    except StaleResume as error:
        hint = (
            "Refresh it where the planned one is, or repeat its whole command with --refresh: all rows are made again."
        )
        if find_verb(plan.work.task).embeds_texts:
            hint = "Refresh it where the planned one is, or run its command again into another --out."
        raise StaleResume(error.message, hint=hint) from error


def check_work(base: Ledger, plan: Plan, new: Plan, into: Sequence[str], quiet: bool) -> None:
    """Refuse another work than that of the run, unless its rows alone are made from something else; say what differs.

    Vectors of another model have to be compared first, and stores hold those of one.
    """
    made, other = differences_of_work(plan, new)
    if other:
        raise other_work(base, [*other, *made], "Repeat the options of the run, or choose another --out.")
    if made and find_verb(plan.work.task).embeds_texts:
        how = shell_command("migrate", base.url, "--model", "MODEL")
        raise other_work(base, made, f"{how} changes the model. Else repeat the options of the run.")
    if into and salt_of(plan) != salt_of(new):
        how = f"{', '.join(into)} has rows that were made as before. Choose another --out, and another place for it."
        raise other_work(base, made, how)
    if made and not quiet:
        say(f"{'; '.join(made)}: what depends on it is computed again.")


def other_work(ledger: Ledger, changes: Sequence[str], hint: str) -> UsageError:
    return UsageError(f"{ledger.url} was made by another command: {'; '.join(changes)}.", hint=hint)


def deliver_edition(
    ledger: Ledger, plan: Plan, spec: Spec, into: Sequence[str], devices: list[Device], quiet: bool
) -> None:
    """Bring the stores that a run was delivered to up to the edition that is read, unless that is done."""
    if into and not shipment_of(ledger, plan).key:
        say(f"Not delivered to {', '.join(into)}: nothing identifies the rows. A new table takes them (load --from).")
        return
    steps = (ledger.steps.find(f"{DELIVER}:{address}") for address in into)
    if all(step is not None and step.state == DONE for step in steps):
        return
    execution = spec.execution.model_copy(update={"into": tuple(into)})
    finish_run(ledger, plan, Spec(work=plan.work, execution=execution), None, devices, time.time(), quiet)


def settle_base(editions: Editions, number: int) -> tuple[Plan, dict[str, Any]]:
    """The plan of a complete edition, and its settings.

    A write of a killed process that arrives late may have replaced these by those of a plan that was begun again. Then
    those of the edition that it is made from will do.
    """
    base = Ledger(editions.open(number))
    plan, earlier = base.plan(), base
    while not (settings := earlier.execution()) and number > 1:
        number = editions.origin(number).base
        earlier = Ledger(editions.open(number))
        earlier.find_plan()
    return (plan, settings) if settings else base.settle()


def refuse_unfit(base: Ledger, plan: Plan, done: str = "refreshed") -> None:
    """Refuse a run whose rows depend on more than their own items; `done` is what cannot be done to it."""
    if plan.work.to is not None:
        raise UsageError(
            f"{base.url} is a load: its rows are in a table, which another load (--changed-only) adds to and updates. "
            "It deletes none.",
            hint=f"Rows that are gone are deleted from what a run is delivered to: {_deliver_instead(base, plan)}",
        )
    if why := beyond_item(plan.work):
        raise UsageError(
            f"{base.url} cannot be {done}: {why}.", hint="Run its command again with another --out, or with --fresh."
        )
    if base.url.startswith("memory:"):
        raise UsageError(f"{base.url} cannot be {done}: it is in memory.", hint="Give the run a folder with --out.")
    if missing := len(plan.shards) - len(base.commits.shards()):
        raise NotComplete(
            f"{base.url}: {missing} of {len(plan.shards)} shards are not done.",
            hint=f"Complete it first: {shell_command('resume', base.url)}",
        )


def _deliver_instead(base: Ledger, plan: Plan) -> str:
    """The command that has the rows of a load delivered, and refreshes them ever after."""
    work, to = plan.work, plan.work.to
    verb = ["run", *work.source, "--task", work.task] if ":" in work.task else [work.task, *work.source]
    given = {"query": work.query, "text": work.text, "id": ",".join(work.id), "keep": ",".join(work.keep)}
    given |= {"where": work.where, "model": str(work.params.get("model") or "")}
    options = [word for name, value in given.items() if value for word in (f"--{name}", value)]
    server = str(base.execution().get("to_url") or "")
    place = server if "://" in server else "postgresql://USER@HOST/DATABASE"
    return shell_command(
        *verb, *options, "--out", "RUN", "--into", f"{place}#{to.table if to else ''}_rows", "--refresh"
    )


def beyond_item(work: Work) -> str:
    """Why a row of such a run depends on more than its own item; empty if it does not."""
    task = open_task(work.task, work.params)
    if work.group_by:
        return "an item is a group of rows"
    if work.counts_alone:
        return "it has no source"
    if work.limit:
        return "--limit takes the first items"
    if task.numbers_items:
        return "the task gets numbers that grow along the items"
    return find_verb(work.task).beyond_item or ("an item is a whole training" if task.one_shard else "")


def shrunk(was: str, now: str, base: Ledger) -> UsageError:
    return SourceError(
        f"The source had {was} and has {now}: less than half is left.",
        hint=f"If that is right: {shell_command('refresh', Editions(base.url).run, '--allow-shrink')}",
    )
