"""MDS, the format of Mosaic's streaming datasets: shards of samples, and an index.json that names them."""

from __future__ import annotations

MDS = "mds"
