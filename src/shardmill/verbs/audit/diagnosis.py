"""Recomputes a sample of the rows, and finds what explains those that differ: causes are tried one by one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.models.embedder import TextEmbedder
from shardmill.results.report import Check
from shardmill.verbs.audit.agreement import Agreement, Storage, alike, find_storage, rounded_to
from shardmill.verbs.audit.borders import find_borders
from shardmill.verbs.audit.displaced import find_vectors, usual_shift
from shardmill.verbs.audit.report import AuditCause
from shardmill.verbs.audit.rows import Rows
from shardmill.verbs.audit.scan import Scanned
from shardmill.verbs.audit.stored import matrices
from shardmill.verbs.audit.ways import Way, embed, find_ways

# Rows that each cause is tried on first, and rows that are looked for among all vectors.
_TRIED, _SOUGHT = 12, 64
# A cause explains something if it explains this many of the rows that it is tried on, and this share of them.
_LEAST_ROWS, _LEAST_SHARE = 2, 0.1
# The share of moved rows that must have moved alike, or be found elsewhere, to speak of all.
_MOSTLY = 0.5
# Correlation of similarities from which vectors are those of the same texts, and cosine of another revision.
_SAME_TEXTS, _SAME_SPACE = 0.4, 0.5

Progress = Callable[[float, str], None]


@dataclass(slots=True)
class Diagnosis:
    """What the sample showed."""

    checks: list[Check] = field(default_factory=list)
    causes: list[AuditCause] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Sample:
    """The rows that were drawn, what the model makes of their texts, and which of them are explained by what."""

    def __init__(self, scanned: Scanned, embedder: TextEmbedder, dims: int) -> None:
        self.rows = np.array([each.row for each in scanned.sample], np.int64)
        self.stored: NDArray[Any] = np.stack([each.vector for each in scanned.sample])
        self.texts = [each.text or "" for each in scanned.sample]
        began = time.monotonic()
        self.made = embed(embedder, self.texts)
        self.row_s = (time.monotonic() - began) / len(self.texts)
        there: NDArray[np.bool_] = np.asarray(np.isfinite(self.made).all(axis=1))
        self.rows, self.stored, self.made = self.rows[there], self.stored[there], self.made[there]
        self.texts = [text for text, own in zip(self.texts, there, strict=True) if own]
        self.storage: Storage = find_storage(self.stored, dims)
        self.agreement = Agreement.learn(self.storage, self.stored, self.made, embedder.rounded)
        self.left = ~self.agreement.fits(self.stored, self.made)

    def __len__(self) -> int:
        return len(self.rows)


def diagnose(
    rows: Rows, scanned: Scanned, embedder: TextEmbedder, dims: int, device: str, on_progress: Progress
) -> Diagnosis:
    """Compare a sample with what the model makes of its texts, and explain what differs."""
    sample = Sample(scanned, embedder, dims)
    found = Diagnosis()
    differ = sample.left.copy()
    if len(sample) and differ.any():
        _try_ways(sample, scanned, rows, embedder, found, on_progress)
        _seek_rows(sample, scanned, rows, found, embedder, on_progress)
        _name_the_rest(sample, scanned, rows, found, embedder)
    found.checks.append(_check_sample(sample, differ, scanned, device))
    _compare_dims(sample, differ, scanned, embedder, dims, found)
    _compare_lengths(sample, differ, scanned, embedder, found)
    if rounded := rounded_to(sample.stored):
        found.notes.append(f"the numbers are float32, but were rounded to {rounded}")
    return found


def _check_sample(sample: Sample, differ: NDArray[np.bool_], scanned: Scanned, device: str) -> Check:
    if not len(sample):
        return Check("sample", False, "none: no row has both a vector and a text")
    said = f"{len(sample):,} of {scanned.rows:,} rows recomputed in float32 on {device}"
    far = sample.agreement.distances(sample.stored, sample.made)
    measure = "most wrong signs" if sample.storage == "bits" else "worst cosine"
    worst = far.max() if sample.storage == "bits" else 1 - far.max()
    said += f", {measure} {worst:.6f}; " if not differ.any() else f", {int(differ.sum()):,} differ; "
    return Check("sample", not differ.any(), said + say_power(len(sample)))


def say_power(rows: int) -> str:
    """How often a sample would miss a fault.

    >>> say_power(256)
    'a fault in 1% of the rows would be missed once in 13 times'
    """
    share = 1 if rows >= 200 else 5 if rows >= 40 else 20
    return f"a fault in {share}% of the rows would be missed once in {1 / (1 - share / 100) ** rows:,.0f} times"


def _try_ways(
    sample: Sample, scanned: Scanned, rows: Rows, embedder: TextEmbedder, found: Diagnosis, on_progress: Progress
) -> None:
    """Find uses of the model that explain rows, the one that explains most first."""
    ways = list(find_ways(embedder))
    while sample.left.any():
        left = np.flatnonzero(sample.left)
        tried = left[np.linspace(0, len(left) - 1, min(_TRIED, len(left))).astype(int)]
        texts = [sample.texts[i] for i in tried]
        best: tuple[int, Way] | None = None
        for number, way in enumerate(ways):
            on_progress(number / len(ways), f"trying: {way.seen}")
            explained = int(_explains(way, sample, embedder, tried, texts).sum())
            if explained >= max(min(_LEAST_ROWS, len(left)), _LEAST_SHARE * len(tried)) and (
                best is None or explained > best[0]
            ):
                best = explained, way
            if explained == len(tried):
                break
        if best is None:
            return
        way = best[1]
        own = left[_explains(way, sample, embedder, left, [sample.texts[i] for i in left])]
        sample.left[own] = False
        ways.remove(way)
        remedy = "Embed these rows again"
        found.causes.append(_cause(way.name, way.seen, own, sample, scanned, rows, embedder, remedy))


def _explains(
    way: Way, sample: Sample, embedder: TextEmbedder, which: NDArray[np.int64], texts: list[str]
) -> NDArray[np.bool_]:
    if not way.matters(embedder, texts):
        return np.zeros(len(which), bool)
    made, stored = way.make(embedder, texts), sample.stored[which]
    if made.shape[1] < stored.shape[1]:
        return np.zeros(len(which), bool)
    there = np.isfinite(made).all(axis=1)
    explained = np.zeros(len(which), bool)
    if there.any():
        learnt = Agreement.learn(sample.storage, stored[there], made[there], embedder.rounded)
        explained[there] = learnt.fits(stored[there], made[there])
    return explained


def _seek_rows(
    sample: Sample, scanned: Scanned, rows: Rows, found: Diagnosis, embedder: TextEmbedder, on_progress: Progress
) -> None:
    """Look for the vectors of texts in other rows: all shifted by as many, or shuffled."""
    left = np.flatnonzero(sample.left)
    if not len(left):
        return
    sought = left[np.linspace(0, len(left) - 1, min(_SOUGHT, len(left))).astype(int)]
    agreement = sample.agreement
    if sample.left.mean() > 0.5:
        agreement = Agreement.by_moments(sample.storage, sample.stored, sample.made, embedder.rounded)
    there, far = find_vectors(rows, sample.made[sought], sample.rows[sought], agreement, on_progress)
    moved = far <= agreement.limit
    if moved.sum() < min(_LEAST_ROWS, len(sought)):
        return
    shift = usual_shift((there - sample.rows[sought])[moved])
    if shift:
        target = sample.rows[left] + shift
        # A row whose vector would be beyond the ends has lost it by the shift.
        lost = (target < 0) | (target >= scanned.rows)
        fits = _fits_at(sample, rows, left[~lost], shift, agreement)
        if fits.sum() >= min(_LEAST_ROWS, len(left)) and fits.mean() > _MOSTLY:
            row = int(sample.rows[left[~lost][fits][0]])
            own = np.sort(np.concatenate([left[lost], left[~lost][fits]]))
            sample.left[own] = False
            seen = f"rows are shifted by {abs(shift):,}: the vector of row {row:,} is in row {row + shift:,}"
            remedy = "Move the vectors back; no model is needed"
            found.causes.append(_cause("shifted", seen, own, sample, scanned, rows, embedder, remedy, again=False))
            moved &= sample.left[sought]
    if moved.sum() >= min(_LEAST_ROWS, len(sought)):
        # Those that were not sought are as those that were.
        whole = moved[sample.left[sought]].mean() > 0.9
        own = left[sample.left[left]] if whole else sought[moved]
        count = len(own) if whole else round(len(left) * float(moved.mean()))
        sample.left[own] = False
        example = int(np.flatnonzero(moved)[0])
        pair = f"the vector of row {sample.rows[sought[example]]:,} is in row {there[example]:,}"
        seen, remedy = f"rows are shuffled: {pair}", "Put the vectors into the order of the texts, or embed them again"
        found.causes.append(_cause("shuffled", seen, own, sample, scanned, rows, embedder, remedy, count=count))


def _fits_at(
    sample: Sample, rows: Rows, which: NDArray[np.int64], shift: int, agreement: Agreement
) -> NDArray[np.bool_]:
    """Which rows have their vector `shift` rows further on."""
    fits = np.zeros(len(which), bool)
    done = 0
    for block in rows.pick(sample.rows[which] + shift):
        for places, matrix in matrices(block.vectors):
            if matrix.shape[1] == sample.stored.shape[1]:
                own = done + places
                fits[own] = agreement.fits(matrix, sample.made[which[own]])
        done += len(block)
    return fits


def _name_the_rest(sample: Sample, scanned: Scanned, rows: Rows, found: Diagnosis, embedder: TextEmbedder) -> None:
    """What nothing explains: another model, another revision, or vectors of other texts."""
    left = np.flatnonzero(sample.left)
    if not len(left):
        return
    stored, made = sample.agreement.numbers(sample.stored[left]), sample.made[left]
    likeness = alike(stored, made)
    nearness = 1 - float(np.median(sample.agreement.distances(sample.stored[left], made)))
    if sample.storage != "bits" and nearness >= _SAME_SPACE:
        name, seen = "revision", f"another revision of the model, or other weights (median cosine {nearness:.3f})"
    elif likeness >= _SAME_TEXTS:
        name, seen = "model", f"another model made these vectors of these texts (similarities agree by {likeness:.2f})"
    else:
        name = "other"
        seen = f"not vectors of these texts by this model, nor known of another (similarities agree by {likeness:.2f})"
    remedy = "Check --text and --model, or embed these rows again" if name == "other" else "Embed these rows again"
    found.causes.append(_cause(name, seen, left, sample, scanned, rows, embedder, remedy))


def _cause(
    name: str,
    seen: str,
    own: NDArray[np.int64],
    sample: Sample,
    scanned: Scanned,
    rows: Rows,
    embedder: TextEmbedder,
    remedy: str,
    *,
    again: bool = True,
    count: int | None = None,
) -> AuditCause:
    """A cause with its share and its rows: exactly, where they are all between two rows, else by the sample."""
    share = (len(own) if count is None else count) / len(sample)
    first = last = None
    number = round(share * scanned.usable)
    if count is None and (ends := find_borders(sample.rows, own, rows, scanned.rows, sample.agreement, embedder)):
        first, last = ends
        number = last - first + 1
        share = number / scanned.rows
    took = number * sample.row_s if again else None
    return AuditCause(name, seen, share, number, first, last, remedy, took)


def _compare_dims(
    sample: Sample, differ: NDArray[np.bool_], scanned: Scanned, embedder: TextEmbedder, dims: int, found: Diagnosis
) -> None:
    width = scanned.dims * (8 if sample.storage == "bits" else 1)
    if width == dims or not len(sample) or differ.all():
        return
    seen = f"the vectors are the first {width:,} of {embedder.folder.width:,} dimensions, not {dims:,}"
    remedy = f"If that is meant, say --dims {width}; else embed them again"
    found.causes.append(
        AuditCause("dims", seen, 1.0, scanned.rows, 0, scanned.rows - 1, remedy, scanned.rows * sample.row_s)
    )


def _compare_lengths(
    sample: Sample, differ: NDArray[np.bool_], scanned: Scanned, embedder: TextEmbedder, found: Diagnosis
) -> None:
    """Whether the vectors have the lengths that the model gives them, if their directions are right."""
    if sample.storage != "floats" or not len(sample):
        return
    off = scanned.far
    unit = np.abs(np.linalg.norm(sample.stored.astype(np.float64), axis=1) - 1) < 0.05
    if embedder.normalizes and off.count and (~unit & ~differ).any():
        low, high = scanned.lengths
        seen = f"not normalized (lengths {low:.3g} to {high:.3g})"
        first, last = (off.first, off.last) if off.together else (None, None)
        remedy = "Divide each vector by its length; no model is needed"
        found.causes.append(AuditCause("normalization", seen, off.count / scanned.rows, off.count, first, last, remedy))
    made_unit = np.abs(np.linalg.norm(sample.made, axis=1) - 1) < 0.05
    if not embedder.normalizes and unit.all() and not made_unit.all() and not differ.all():
        found.notes.append("the vectors are normalized, which the model does not do; cosines stay the same")
