"""Fit a map to a source: read its vectors once, draw the anchors, place them, and write them to the map's folder."""

from __future__ import annotations

import numpy as np

from shardmill.core.console import Bar
from shardmill.plan import SourceStat
from shardmill.sources import Fields
from shardmill.verbs.map.layout.fitting import fit, versions
from shardmill.verbs.map.layout.saved import FitRecord, save_fit
from shardmill.verbs.map.layout.whole import Whole
from shardmill.verbs.map.params import FitOptions
from shardmill.verbs.map.vectors import draw_sample, read_vectors


def fit_source(
    place: str, stat: SourceStat, fields: Fields, vector: str, options: FitOptions, *, quiet: bool = True
) -> FitRecord:
    """Fit a map to the vectors of a source and write it to a folder."""
    with Bar("fitting the map", quiet=quiet) as bar:
        drawn = draw_sample(
            read_vectors(stat, fields, vector),
            options.sample,
            options.seed,
            lambda share, what: bar.at(0.3 * share, what),
        )
        vectors = drop_equal(drawn.whole)
        anchors = fit(vectors, options.method, options.seed, lambda share, what: bar.at(0.3 + 0.7 * share, what))
        return save_fit(place, anchors, options.method, drawn.seen, len(drawn.rows), versions(options.method))


def drop_equal(whole: Whole) -> Whole:
    """The vectors without those that equal an earlier one, in order: equal vectors have one place."""
    rows = np.ascontiguousarray(whole).view(f"V{whole.dtype.itemsize * whole.shape[1]}")
    _, firsts = np.unique(rows.ravel(), return_index=True)
    return whole[np.sort(firsts)]
