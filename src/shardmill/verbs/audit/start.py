"""Starts `audit`: finds the rows, scans them all, and recomputes a sample."""

from __future__ import annotations

import time
from typing import Any

from shardmill.core import permission
from shardmill.core.console import Bar
from shardmill.core.errors import SourceError, UsageError
from shardmill.models.embedder import TextEmbedder
from shardmill.run.request import Request
from shardmill.tasks import open_here
from shardmill.verbs.audit.diagnosis import Diagnosis, diagnose
from shardmill.verbs.audit.doubles import check_doubles
from shardmill.verbs.audit.report import Audit
from shardmill.verbs.audit.rows import Rows
from shardmill.verbs.audit.scan import scan
from shardmill.verbs.audit.stored import matrices
from shardmill.verbs.audit.subject import find_subject
from shardmill.verbs.audit.verdict import check_scan


def start(request: Request) -> Audit:
    """Audit the vectors of files, of a table or of a run."""
    began = time.monotonic()
    options = request.options
    quiet = request.quiet or options.as_json
    subject = find_subject(options)
    embedder, dims, device = None, 0, ""
    if subject.model and options.sample:
        embedder, dims = _find_model(subject.model, allow_code=options.allow_code)
        _refuse_width(subject.rows, embedder)
        device = open_here(embedder, precise=True).name
    with Bar("auditing", quiet=quiet) as bar:
        seen = scan(subject.rows, options.sample if embedder is not None else 0, bar.at)
        if not seen.rows:
            raise SourceError(f"{subject.place} has no rows.", hint="Give a source with vectors.")
        if not seen.widths:
            raise SourceError(
                f"None of the {seen.rows:,} rows has a vector.",
                hint="Name the column with the vectors: --column COLUMN",
            )
        checks = [*check_scan(seen, options.dims), check_doubles(seen, subject.rows, subject.has_texts, embedder)]
        found = Diagnosis()
        if embedder is not None:
            found = diagnose(subject.rows, seen, embedder, dims, device, bar.at)
    checks += found.checks
    return Audit(
        source=subject.place,
        right=all(check.ok for check in checks) and not found.causes,
        rows=seen.rows,
        dims=seen.dims,
        stored=seen.dtype,
        checks=tuple(checks),
        causes=tuple(found.causes),
        notes=tuple(found.notes),
        seconds=round(time.monotonic() - began, 2),
    )


def _find_model(params: dict[str, Any], *, allow_code: bool) -> tuple[TextEmbedder, int]:
    """The model, whose vectors are not cut, and the number of dimensions that right vectors have."""
    embedder = TextEmbedder(
        params["model"],
        prompt=params.get("prompt"),
        max_tokens=params.get("max_tokens"),
        precision=params.get("precision", ""),
        adapter=params.get("adapter"),
    )
    if allow_code:
        permission.allow(embedder.model_code)
    folder = embedder.folder
    dims = params.get("dims") or min(folder.truncate_width or folder.width, folder.width)
    return embedder.used_otherwise(truncate_width=None), dims


def _refuse_width(rows: Rows, embedder: TextEmbedder) -> None:
    """Refuse vectors that are too long for the model before all of them are read."""
    first = next(iter(rows.read()), None)
    widths = [] if first is None else [matrix.shape[1] for _, matrix in matrices(first.vectors)]
    if widths and min(widths) > embedder.folder.width:
        raise UsageError(
            f"The vectors have {min(widths):,} dimensions; {embedder.location.name} makes {embedder.folder.width:,}.",
            hint="Name the model that made them: --model MODEL",
        )
