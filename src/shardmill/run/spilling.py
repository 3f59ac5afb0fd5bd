"""Sources that can be read only here, or once: data in memory and pipes. They are copied into the run folder.

The copy is named by a digest, so the same call finds it again; with other data it is refused.

Design: docs/design/documents-memory-and-parts.md
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from functools import partial
from typing import IO, Any

from shardmill.core.errors import SourceError, StaleResume
from shardmill.ledger import Ledger
from shardmill.plan import SPILLED
from shardmill.sources.held import HeldData
from shardmill.sources.pipe import copy_pipe, find_pipe
from shardmill.store.staging import staging

_BUFFER_BYTES = 1 << 20

# Writes a source into a file, or reads it without one, and returns the name that its content gives it.
Copy = Callable[[IO[bytes] | None], str]


def keep_source(work: dict[str, Any], out: str | os.PathLike[str], *, fresh: bool = False) -> dict[str, Any]:
    """The work with a source that workers can read: data in memory, or a pipe, as a file in the run folder."""
    source = work.get("source")
    if isinstance(source, HeldData):
        for name in ("format", "query"):
            if work.get(name):
                raise SourceError(f"--{name} has no meaning for data in memory.", hint="Leave it out.")
        return {**work, "source": _keep(partial(_copy_data, source), out, "the data", fresh)}
    if work.get("query") or not (pipe := find_pipe(source)):
        return work
    return {**work, "source": _keep(partial(_copy_pipe, pipe, work.get("format")), out, "the pipe", fresh)}


def _keep(copy: Copy, out: str | os.PathLike[str], what: str, fresh: bool) -> str:
    ledger = Ledger(out)
    plan = None if fresh else ledger.find_plan()
    if plan is None:
        with staging(ledger.store, SPILLED) as staged:
            staged.key = SPILLED + copy(staged.file)
        return f"{ledger.url}/{staged.key}"
    name, kept = copy(None), ", ".join(file.name for file in plan.stat.files[:3])
    if name != kept:
        raise StaleResume(
            f"{ledger.url} holds a different run: it read {kept}, and {what} given now is {name}.",
            hint="Choose another --out, or start over with --fresh, which deletes the existing run.",
        )
    return plan.stat.files[0].place


def _copy_data(data: HeldData, file: IO[bytes] | None) -> str:
    import pyarrow as pa

    from shardmill.sources.held import ValueDigest

    batches = data.batches()
    first = next(batches)
    digest = ValueDigest(first.schema)
    digest.add(first)
    if file is None:
        for batch in batches:
            digest.add(batch)
        return f"memory-{digest}.arrow"
    buffered = io.BufferedWriter(file, _BUFFER_BYTES)
    with pa.ipc.new_file(buffered, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            digest.add(batch)
            writer.write_batch(batch)
    buffered.flush()
    buffered.detach()
    return f"memory-{digest}.arrow"


def _copy_pipe(pipe: str, format: str | None, file: IO[bytes] | None) -> str:
    return f"pipe-{copy_pipe(pipe, format, file)}"
