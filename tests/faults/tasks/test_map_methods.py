"""Maps by the real methods: UMAP and PaCMAP place clusters apart, and HDBSCAN finds them again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from shardmill.testing import InProcessEngine
from tests.support.libraries import needed
from tests.support.vectors import clusters, write_vectors

needed("umap")
needed("fast_hdbscan")

from shardmill.verbs.map.layout.fitting import fit  # noqa: E402
from shardmill.verbs.map.layout.whole import to_whole  # noqa: E402
from shardmill.verbs.map.making import make_map  # noqa: E402


def test_umap_places_clusters_apart_and_their_words_name_them(tmp_path: Path) -> None:
    source = write_vectors(tmp_path / "in.parquet", clusters(400), rows_in_group=50)
    wanted = {"source": str(source), "text": "body", "id": "id", "sample": 200}
    make_map(wanted, {}, tmp_path / "map", engine=InProcessEngine())
    table = pq.read_table(tmp_path / "map" / "coordinates.parquet")
    found = table.column("cluster_1").to_pylist()
    topics = [{found[i] for i in range(topic, 400, 4)} - {None} for topic in range(4)]
    assert all(len(each) == 1 for each in topics)
    assert len(set.union(*topics)) == 4
    names = table.column("cluster_name_1").to_pylist()
    assert set(names[0].split()) == {"battery", "charger", "cable"}
    assert [name for name in table.column_names if name in ("anchors", "text_digest")] == []


@pytest.mark.parametrize("method", ["umap", "pacmap"])
def test_a_method_gives_the_same_places_for_the_same_seed(method: str) -> None:
    needed(method)
    whole, _ = to_whole(clusters(120))
    one, again = (fit(whole, method, seed=3) for _ in range(2))  # type: ignore[arg-type]
    assert np.array_equal(one.places, again.places)
    middles = np.stack([one.places[topic::4].mean(axis=0) for topic in range(4)])
    spread = max(float(one.places[topic::4].std(axis=0).max()) for topic in range(4))
    apart = np.linalg.norm(middles[:, None] - middles[None], axis=2)[~np.eye(4, dtype=bool)].min()
    assert apart > spread
