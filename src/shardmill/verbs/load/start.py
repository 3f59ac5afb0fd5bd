"""Starts `load`: a run whose result goes into a table, or the delivery of one that is there."""

from __future__ import annotations

from shardmill.core.errors import SpecError, UsageError
from shardmill.core.quantised import QUANTISED
from shardmill.run.request import Request
from shardmill.run.result import Run


def start(request: Request) -> Run:
    """Embed every item of a source and load it into a table; or deliver a finished run."""
    options = request.options
    if options.from_run:
        if options.source:
            raise UsageError("Both a source and --from are given.", hint="--from delivers a run that is finished.")
        if not options.to:
            raise SpecError("No --to was given.", hint="Name a store: --to lance:reviews.lance")
        run = Run(options.from_run)
        run.deliver(options.to, repair=options.repair, shown_as=options.shown_as, quiet=request.quiet)
        return run
    if options.repair or options.shown_as:
        given = "--repair" if options.repair else "--as"
        raise UsageError(f"{given} without --from.", hint="Name the run whose rows were delivered: --from RUN")
    if options.dtype in QUANTISED:
        raise SpecError(
            f"A table of vectors has no {options.dtype}.",
            hint="Choose float16 with --vector halfvec; or embed into a folder and deliver bytes: embed … --into URL",
        )
    return request.with_work(to=request.work.get("to") or {"url": ""}).carry_out()
