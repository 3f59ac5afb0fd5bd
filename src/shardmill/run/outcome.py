"""What the command line says when a run ends: counts, notes, the next commands."""

from __future__ import annotations

from shardmill.core.console import count, print_json, say
from shardmill.core.dialect import shell_command
from shardmill.plugins import find_verb
from shardmill.run.request import Request
from shardmill.run.result import Run
from shardmill.run.status.state import Status


def show_run(request: Request, run: Run) -> None:
    """Print the outcome of a run and the next commands; as JSON if that was asked for."""
    show_outcome(run, as_json=request.options.as_json)


def show_outcome(run: Run, *, as_json: bool) -> None:
    state = run.status()
    below = _below(run)
    if as_json:
        of = {"of_items": {"run": below.run, "rows": below.rows, "errors": below.errors}} if below else {}
        print_json({**state.to_json(), **of})
        return
    if is_detached(run, state):
        return
    for note in dict.fromkeys(note for worker in state.workers for note in worker["notes"]):
        say(note)
    say(f"{_counts(run, state, below)}, {state.times.describe()}.")
    look = [shell_command("show", below.run, "--errors")] if below and below.errors else []
    say(f"Next: {'   '.join([*look, *next_commands(run)])}")


def is_detached(run: Run, state: Status) -> bool:
    """Say where to watch a run that goes on without this command."""
    if state.shards_done >= state.shards:
        return False
    live = sum(worker["live"] for worker in state.workers)
    what = state.placement or count(live, "worker")
    say(f"Detached: {what}. Watch: {shell_command('status', run.ledger.url, '--watch')}")
    return True


def _below(run: Run) -> Status | None:
    """The state of the run whose rows are the items of this one, if a verb makes two of them."""
    find = find_verb(run.plan.work.task).part("items_below")
    items = None if find is None else find(run)
    found: Status | None = None if items is None else items.status()
    return found


def _counts(run: Run, state: Status, below: Status | None) -> str:
    cut = f", {state.truncated:,} cut at the model's limit" if state.truncated else ""
    source = f", from {count(below.rows, 'item')} with {count(below.errors, 'error')}" if below else ""
    if find_verb(run.plan.work.task).rows_vary:
        none = f", {count(state.dropped, 'item')} gave none" if state.dropped else ""
        gave = f"{count(state.rows, 'item')} in {count(state.shards, 'shard')} gave {count(state.made, 'row')}"
        return f"{gave}{none}, {count(state.errors, 'error')}{source}{cut}"
    if run.plan.work.takes_part:
        taken = f"{count(state.rows - state.dropped, 'item')} of {state.rows:,} taken"
        return f"{taken}, in {count(state.shards, 'shard')}, {count(state.errors, 'error')}{source}{cut}"
    windows = f" of {count(state.windows, 'window')}" if state.windows else ""
    counts = f"{count(state.rows, 'row')}{windows} in {count(state.shards, 'shard')}, {count(state.errors, 'error')}"
    return f"{counts}{source}{cut}"


def next_commands(run: Run) -> list[str]:
    """What people usually do next with a finished run."""
    url, verb = run.ledger.url, find_verb(run.plan.work.task)
    if run.plan.work.to is not None:
        from shardmill.postgres.places import is_table
        from shardmill.run.loading import place_of

        table = place_of(run)
        search = [shell_command("search", table, "…")] if verb.makes_vectors else []
        own = [*search, shell_command("verify", url), shell_command("verify", table)]
        return own if is_table(table) else [shell_command("verify", url)]
    search = [shell_command("search", url, "…")] if verb.makes_vectors else []
    code = ["--allow-code"] if run.plan.work.calls else []
    return [shell_command("verify", url, *code), *search, shell_command("merge", url, "--out", "FILE.parquet")]
