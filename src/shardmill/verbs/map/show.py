"""What the command line says when a map is made."""

from __future__ import annotations

from shardmill.core.console import count, print_json, say
from shardmill.run.outcome import is_detached
from shardmill.run.request import Request
from shardmill.run.result import Run


def show_map(request: Request, run: Run) -> None:
    """Print the number of points, how far the map can be trusted, and where its page is."""
    from shardmill.verbs.map.drawing import read_figures

    state = run.status()
    if is_detached(run, state):
        return
    figures = read_figures(run.ledger.store)
    if request.options.as_json:
        print_json({"map": run.ledger.url, **figures})
        return
    say(f"{count(figures['points'], 'point')}, {state.times.describe()}.")
    if figures["quality"] is not None:
        say(figures["quality"]["verdict"])
    for note in figures["notes"]:
        say(note)
    say(f"Open: {run.ledger.url}/map.html")
