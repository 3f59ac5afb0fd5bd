"""The parts of a map: samples, clusters, names, columns, figures, lists."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import numpy as np
import pyarrow as pa
import pytest

from shardmill.core.errors import SourceError
from tests.support.libraries import needed

needed("numba")
needed("sklearn")

from shardmill.verbs.map.clusters import Clusters  # noqa: E402
from shardmill.verbs.map.columns import MOST_CATEGORIES, ColumnCodes  # noqa: E402
from shardmill.verbs.map.fitting import drop_equal  # noqa: E402
from shardmill.verbs.map.layout.whole import to_whole  # noqa: E402
from shardmill.verbs.map.likeness import find_alike  # noqa: E402
from shardmill.verbs.map.lists import find_twins, list_duplicates, list_outliers  # noqa: E402
from shardmill.verbs.map.naming import ClusterWords  # noqa: E402
from shardmill.verbs.map.page_data import NULL, OTHER, MapColumn, MapFigures, pack, unpack  # noqa: E402
from shardmill.verbs.map.quality import judge, measure_quality  # noqa: E402
from shardmill.verbs.map.vectors import VectorBatch, draw_sample  # noqa: E402


def _batches(whole: np.ndarray, size: int, usable: np.ndarray | None = None) -> Iterator[VectorBatch]:
    there = np.ones(len(whole), bool) if usable is None else usable
    for at in range(0, len(whole), size):
        yield VectorBatch(at, whole[at : at + size], there[at : at + size], min(1.0, (at + size) / len(whole)))


def _whole(count: int, dims: int = 16, seed: int = 0) -> np.ndarray:
    return to_whole(np.random.default_rng(seed).normal(size=(count, dims)).astype(np.float32))[0]


def test_a_sample_depends_on_the_seed_and_not_on_batches() -> None:
    whole = _whole(500)
    drawn = [draw_sample(_batches(whole, size), 60, 5, lambda *_: None) for size in (7, 100, 500)]
    assert all(np.array_equal(each.rows, drawn[0].rows) for each in drawn)
    assert np.array_equal(drawn[0].whole, whole[drawn[0].rows])
    assert len(drawn[0].rows) == 60
    other = draw_sample(_batches(whole, 50), 60, 6, lambda *_: None)
    assert not np.array_equal(other.rows, drawn[0].rows)


def test_rows_without_a_vector_are_not_drawn() -> None:
    usable = np.arange(40) % 2 == 0
    drawn = draw_sample(_batches(_whole(40), 9, usable), 100, 0, lambda *_: None)
    assert (drawn.seen, drawn.usable) == (40, 20)
    assert drawn.rows.tolist() == list(range(0, 40, 2))
    with pytest.raises(SourceError, match="None of the 40 rows has a vector"):
        draw_sample(_batches(_whole(40), 9, np.zeros(40, bool)), 100, 0, lambda *_: None)


def test_equal_vectors_are_one_anchor() -> None:
    whole = _whole(10)
    assert np.array_equal(drop_equal(np.concatenate([whole, whole[::-1]])), whole)
    assert len(drop_equal(np.repeat(whole[:1], 30, axis=0))) == 1


def test_words_that_all_clusters_have_name_none() -> None:
    words, cells = ClusterWords(), [0, 1] * 100
    words.add(cells, ["the red wine was good" if cell else "the battery was good" for cell in cells])
    clusters = Clusters((), np.array(cells, np.uint16), np.array([[0, 1]], np.int32))
    assert words.name(clusters) == [[("battery",), ("red", "wine")]]


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (
            ["手机电池不耐用", "泡一杯咖啡", "电池充电很慢", "这种咖啡很香", "换了新电池", "咖啡豆不错"],
            ["电池", "咖啡"],
        ),
        (
            ["แบตเตอรี่หมดเร็ว", "กาแฟหอมมาก", "ชาร์จแบตเตอรี่นาน", "ชอบกาแฟนี้", "เปลี่ยนแบตเตอรี่แล้ว", "เมล็ดกาแฟดี"],
            ["เตอรี่", "กาแฟ"],
        ),
        (["बैटरी अच्छी है", "कॉफ़ी अच्छी है", "नई बैटरी", "काली कॉफ़ी", "बैटरी खराब", "कॉफ़ी गर्म"], ["बैटरी", "कॉफ़ी"]),
        (
            ["Größe stimmt", "Der Kaffee", "Die Größe", "Kaffee ist da", "Andere Größe", "Mehr Kaffee"],
            ["größe", "kaffee"],
        ),
    ],
)
def test_names_are_of_any_script(texts: list[str], names: list[str]) -> None:
    words, cells = ClusterWords(), [0, 1] * 102
    words.add(cells, texts * 34)
    clusters = Clusters((), np.array(cells, np.uint16), np.array([[0, 1]], np.int32))
    for found, name in zip(words.name(clusters)[0], names, strict=True):
        assert name in found[0], found


def _column(values: pa.Array) -> ColumnCodes:
    codes = ColumnCodes("c", values.type)
    codes.add(values.slice(0, len(values) // 2))
    codes.add(values.slice(len(values) // 2))
    return codes


def told(column: MapColumn) -> list[str | None]:
    """The values that a page shows of a column."""
    return [value for block in column.values for value in unpack(block)]


def test_numbers_are_quantised_between_their_ends() -> None:
    made = _column(pa.array([0.0, None, 5.0, float("nan"), 10.0])).finish()
    assert made is not None
    assert (made.kind, made.low, made.high) == ("number", 0.0, 10.0)
    assert made.codes.tolist() == [0, NULL, 126, NULL, 253]
    assert made.counts[NULL] == 2
    assert told(made) == ["0", None, "5", "nan", "10"]
    large = _column(pa.array([2**60 + 1, -3, None])).finish()
    assert large is not None
    assert told(large) == [str(2**60 + 1), "-3", None]


def test_times_are_seconds_since_1970() -> None:
    made = _column(pa.array([datetime(1970, 1, 2), None, datetime(1970, 1, 3)], pa.timestamp("us"))).finish()
    assert made is not None
    assert (made.kind, made.low, made.high) == ("time", 86_400.0, 172_800.0)
    assert told(made) == ["1970-01-02 00:00:00", None, "1970-01-03 00:00:00"]


def test_many_categories_are_the_most_frequent_and_others() -> None:
    values = [f"v{i % 300}" for i in range(900)] + ["often"] * 50 + [None]
    made = _column(pa.array(values)).finish()
    assert made is not None
    assert (made.kind, made.labels[0], len(made.labels), made.categories) == ("category", "often", 254, 301)
    assert made.codes[-1] == NULL
    assert made.counts[OTHER] == 3 * (301 - 254)
    assert told(made) == values, "codes are for colours; the page shows the data"


def test_a_category_that_its_labels_tell_is_not_told_again() -> None:
    made = _column(pa.array(["a", "b", None, "a"])).finish()
    assert made is not None
    assert made.values == ()
    long = _column(pa.array(["x" * 61, "b", None, "y" * 500])).finish()
    assert long is not None
    assert told(long) == ["x" * 61, "b", None, "y" * 399 + "…"]


def test_a_column_of_100_000_categories_has_no_colour() -> None:
    assert MOST_CATEGORIES < 100_000
    assert _column(pa.array([f"v{i}" for i in range(100_000)])).finish() is None
    assert _column(pa.array([f"v{i}" for i in range(1000)])).finish() is None
    assert _column(pa.array([None, None], pa.string())).finish() is None
    assert _column(pa.array([None, None], pa.float64())).finish() is None


def test_trustworthiness_is_that_of_scikit_learn() -> None:
    from sklearn.manifold import trustworthiness

    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(300, 12)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    whole = to_whole(vectors)[0]
    places, thrown = vectors[:, :2].copy(), rng.normal(size=(300, 2)).astype(np.float32)
    found = measure_quality(lambda what: _batches(whole, 64), places, thrown, seed=0)
    assert found is not None
    assert (found.rows, found.k) == (300, 15)
    assert found.map.trust == pytest.approx(trustworthiness(vectors, places, n_neighbors=15), abs=2e-3)
    assert found.pca.trust == pytest.approx(trustworthiness(vectors, thrown, n_neighbors=15), abs=2e-3)
    assert found.chance.trust == pytest.approx(0.5, abs=0.02)
    assert found.pca.kept == pytest.approx(found.chance.kept, abs=0.03)
    assert not found.warns


def test_a_map_that_is_no_better_than_pca_says_so() -> None:
    whole, places = _whole(100), np.random.default_rng(1).normal(size=(100, 2)).astype(np.float32)
    found = measure_quality(lambda what: _batches(whole, 64), places, places, seed=0)
    assert found is not None
    assert found.warns
    assert "means little" in found.verdict
    assert measure_quality(lambda what: _batches(whole[:20], 64), places[:20], places[:20], seed=0) is None


def test_points_that_are_alike_share_an_anchor() -> None:
    codes = np.array([[100, 0], [0, 100], [99, 5], [5, 99], [98, 9]], np.int8)
    near = np.array([[0, 1, 1], [2, 2, 2], [0, 0, 1], [2, 2, 2], [1, 1, 1]], np.int32)
    found = find_alike(codes, near, 3)
    assert found.shape == (5, 5)
    assert found[0].tolist() == [2, 4, 0, 0, 0]
    assert found[1].tolist() == [3, 1, 1, 1, 1]


def test_outliers_and_duplicates_are_listed() -> None:
    names = [f"text {i}" for i in range(100)]
    distances = np.full(100, 0.2, np.float32) + np.linspace(0, 0.01, 100, dtype=np.float32)
    distances[[3, 50]] = 0.6, 0.9
    outliers = list_outliers(distances, names)
    assert (outliers.total, [entry.points for entry in outliers.entries]) == (2, [(50,), (3,)])
    twins = find_twins(np.array([5, 1, 5, 2, 1, 5]))
    assert [group.tolist() for group in twins] == [[0, 2, 5], [1, 4]]
    listed = list_duplicates(twins, names)
    assert (listed.total, listed.entries[0].text, listed.entries[0].note) == (3, "text 0", "3 times")


def test_blocks_are_read_back_as_they_were() -> None:
    texts = ["</script>", "é\u2028", ""]
    assert unpack(pack(texts)) == texts


def test_a_map_that_keeps_fewer_neighbours_but_is_less_far_off_says_both() -> None:
    found = judge(2000, 15, MapFigures(0.976, 0.008), MapFigures(0.909, 0.021), MapFigures(0.5, 0.0))
    assert not found.warns
    assert "1% are its neighbours here (PCA: 2%)" in found.verdict
    assert "0.98 (PCA: 0.91)" in found.verdict
