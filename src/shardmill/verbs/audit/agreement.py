"""Whether stored vectors are those that a model makes, as closely as what they are stored in allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardmill.models.golden import lowest_rounded

Storage = Literal["floats", "integers", "bits"]
Reals = NDArray[np.float64]

# The distance (1 - cosine) of a right vector, as a share of the distance of two texts: models differ in how far apart
# they put texts. Rounding and half precision on a GPU stay far below it; another prompt does not.
_SHARE_OF_SPREAD = 0.02
_UNORDERED_SHARE = 0.1
_LEAST_DISTANCE = 1e-5
# Of the signs of right vectors, those of numbers near zero may differ.
_WRONG_SIGNS = 0.02
_FITTED_ROWS = 8
_FITS = 4


def find_storage(vectors: NDArray[Any], dims: int) -> Storage:
    """How numbers stand for those of the model: as they are, scaled to integers, or one bit each, eight to a byte."""
    if vectors.dtype.kind in "iu" and vectors.dtype.itemsize == 1 and vectors.shape[1] * 8 == dims:
        return "bits"
    whole = vectors.dtype.kind in "iu" or bool((np.abs(vectors) <= 255).all() and (vectors == np.rint(vectors)).all())
    return "integers" if whole else "floats"


def rounded_to(vectors: NDArray[Any]) -> str:
    """The type that float32 numbers have been in: float16 or bfloat16 if all of them fit it, else nothing."""
    if vectors.dtype != np.float32:
        return ""
    bits = np.ascontiguousarray(vectors).view(np.uint32)
    return "bfloat16" if not (bits & 0xFFFF).any() else "float16" if not (bits & 0x1FFF).any() else ""


@dataclass(frozen=True, slots=True)
class Agreement:
    """A storage, how integers are turned into numbers again, and how far right vectors may be from those made."""

    storage: Storage
    limit: float
    scale: Reals | None = None
    shift: Reals | None = None

    @classmethod
    def learn(cls, storage: Storage, stored: NDArray[Any], made: Reals, precision: str = "") -> Agreement:
        """From rows of which at least half are right. Integers may be scaled and shifted in each dimension.

        `precision` is the one that a run asked for.
        """
        if storage == "bits":
            return cls(storage, _WRONG_SIGNS)
        wanted = made[:, : stored.shape[1]]
        spread = _spread(wanted)
        limit = min(1 - lowest_rounded(precision), max(_SHARE_OF_SPREAD * spread, _LEAST_DISTANCE))
        if storage == "floats":
            return cls(storage, limit)
        numbers = stored.astype(np.float64)
        # The variance of rounding to a whole number is 1/12.
        noise = 1 / 12 / max(float(numbers.var(axis=0).mean()), 1e-9) if len(numbers) > 1 else 0.0
        limit = (_SHARE_OF_SPREAD + 3 * noise) * spread
        if len(numbers) < _FITTED_ROWS or np.median(_distances(numbers, wanted)) <= limit:
            return cls(storage, limit)
        good = np.ones(len(numbers), bool)
        for _ in range(_FITS):
            scale, shift = _fit_lines(numbers[good], wanted[good])
            far = _distances(numbers * scale + shift, wanted)
            good = far <= np.median(far)
        return cls(storage, limit, scale, shift)

    @classmethod
    def by_moments(cls, storage: Storage, stored: NDArray[Any], made: Reals, precision: str = "") -> Agreement:
        """From rows that may be in another order: integers are scaled so that their means and variances agree."""
        if storage != "integers":
            return cls.learn(storage, stored, made, precision)
        numbers, wanted = stored.astype(np.float64), made[:, : stored.shape[1]]
        scale = wanted.std(axis=0) / np.maximum(numbers.std(axis=0), 1e-9)
        return cls(
            storage, _UNORDERED_SHARE * _spread(wanted), scale, wanted.mean(axis=0) - scale * numbers.mean(axis=0)
        )

    def distances(self, stored: NDArray[Any], made: Reals) -> Reals:
        """How far each stored vector is from the one made: 1 - cosine, or the share of wrong signs."""
        wanted = made[:, : stored.shape[1] * (8 if self.storage == "bits" else 1)]
        if self.storage == "bits":
            return np.asarray((self.numbers(stored) * wanted <= 0).mean(axis=1))
        return _distances(self.numbers(stored), wanted)

    def fits(self, stored: NDArray[Any], made: Reals) -> NDArray[np.bool_]:
        """Which stored vectors are those made."""
        right: NDArray[np.bool_] = self.distances(stored, made) <= self.limit
        return right

    def numbers(self, stored: NDArray[Any]) -> Reals:
        """Stored vectors as numbers of the model, up to their length."""
        if self.storage == "bits":
            plain = stored if stored.dtype == np.uint8 else (stored.astype(np.int16) + 128).astype(np.uint8)
            return np.unpackbits(plain, axis=1).astype(np.float64) * 2 - 1
        found = stored.astype(np.float64)
        return found if self.scale is None or self.shift is None else found * self.scale + self.shift


def _distances(a: Reals, b: Reals) -> Reals:
    with np.errstate(invalid="ignore"):
        found: Reals = 1 - (a * b).sum(axis=1) / np.maximum(
            np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-30
        )
    return np.nan_to_num(found, nan=1.0)


def _spread(made: Reals) -> float:
    """The mean distance between the vectors of two texts."""
    if len(made) < _FITTED_ROWS:
        return 1.0
    unit = made / np.maximum(np.linalg.norm(made, axis=1, keepdims=True), 1e-30)
    return max(0.0, 1 - float((unit.mean(axis=0) ** 2).sum()))


def _fit_lines(x: Reals, y: Reals) -> tuple[Reals, Reals]:
    """The line of each dimension that is nearest to its points."""
    mean_x, mean_y = x.mean(axis=0), y.mean(axis=0)
    scale = ((x - mean_x) * (y - mean_y)).sum(axis=0) / np.maximum(((x - mean_x) ** 2).sum(axis=0), 1e-12)
    return scale, mean_y - scale * mean_x


def alike(a: Reals, b: Reals) -> float:
    """How alike two sets of vectors order the same texts: the correlation of the cosines of all pairs."""
    if len(a) < 4:
        return 0.0
    upper = np.triu_indices(len(a), 1)
    pairs = [_cosines(each)[upper] for each in (a, b)]
    if min(float(p.std()) for p in pairs) < 1e-9:
        return 0.0
    one, other = (pair - pair.mean() for pair in pairs)
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def _cosines(vectors: Reals) -> Reals:
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    found: Reals = unit @ unit.T
    return found
