"""Philox by its published vectors and by NumPy's own; the same numbers on every road; and how random they are."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.core import random as randoms
from shardmill.core.errors import UsageError
from shardmill.core.random import CHUNK, PhiloxKey, draw5, draw_fine, make_key, maths, permute, philox, words

LOW = 0xFFFFFFFF
# The known answers of Random123 for philox4x32-10: counter, key, block.
PUBLISHED = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((LOW,) * 4, (LOW, LOW), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

ids_strategy = st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=20).map(lambda i: np.array(i, np.uint64))
word = st.integers(0, LOW)


def unpack(rows: np.ndarray) -> list[tuple[int, ...]]:
    return [(int(a) >> 32, int(a) & LOW, int(b) >> 32, int(b) & LOW) for a, b in rows.T]


@pytest.mark.parametrize(("counter", "key", "block"), PUBLISHED)
def test_the_published_answers_of_philox(
    counter: tuple[int, ...], key: tuple[int, int], block: tuple[int, ...]
) -> None:
    assert philox(counter, PhiloxKey(*key)) == block  # type: ignore[arg-type]
    item = np.array([counter[1] << 32 | counter[0]], np.uint64)
    assert unpack(words(item, PhiloxKey(*key), counter[2], counter[3])) == [block]


def test_numpys_own_philox_takes_the_same_step() -> None:
    """NumPy has the 4x64 form. Its round is ours with wider words, so one written here in Python checks both."""

    def wide(counter: list[int], key: list[int]) -> list[int]:
        mask = (1 << 64) - 1
        c0, c1, c2, c3 = counter
        k0, k1 = key
        for _ in range(10):
            p0, p1 = c0 * 0xD2E7470EE14C6C93, c2 * 0xCA5A826395121157
            c0, c1, c2, c3 = (p1 >> 64) ^ c1 ^ k0, p1 & mask, (p0 >> 64) ^ c3 ^ k1, p0 & mask
            k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
        return [c0, c1, c2, c3]

    theirs = np.random.Philox(counter=[4, 5, 6, 7], key=[8, 9]).random_raw(4).tolist()
    assert wide([5, 5, 6, 7], [8, 9]) == theirs


@given(ids=ids_strategy, k0=word, k1=word, epoch=word, block=word)
def test_arrays_give_what_plain_integers_give(ids: np.ndarray, k0: int, k1: int, epoch: int, block: int) -> None:
    key = PhiloxKey(k0, k1)
    expected = [philox((i & LOW, i >> 32, epoch, block), key) for i in ids.tolist()]
    assert unpack(words(ids, key, epoch, block)) == expected
    near = ids[:1] & np.uint64(LOW << 32) | np.arange(3, dtype=np.uint64)
    assert unpack(words(near, key, epoch, block)) == [
        philox((i & LOW, i >> 32, epoch, block), key) for i in near.tolist()
    ]


@settings(max_examples=25, deadline=None)
@given(ids=ids_strategy, epoch=word, block=word)
def test_tensors_give_what_arrays_give(ids: np.ndarray, epoch: int, block: int) -> None:
    torch = pytest.importorskip("torch")
    from shardmill.core.random import tensors

    key = make_key(7, "x")
    where = torch.from_numpy(ids.view(np.int64))
    for ours, theirs in ((draw5, tensors.draw5), (draw_fine, tensors.draw_fine)):
        for a, t in zip(ours(ids, key, epoch, block), theirs(where, key, epoch, block), strict=True):
            assert a.tobytes() == t.numpy().tobytes()


@pytest.mark.gpu
def test_a_gpu_gives_what_arrays_give() -> None:
    torch = pytest.importorskip("torch")
    from shardmill.core.random import tensors

    key = make_key(7, "x")
    ids = np.array([*range(70_001), *range(1 << 63, (1 << 63) + 5), 2**64 - 1], np.uint64)
    where = torch.from_numpy(ids.view(np.int64)).cuda()
    for ours, theirs in ((draw5, tensors.draw5), (draw_fine, tensors.draw_fine)):
        for epoch, block in ((0, 0), (1, 3), (LOW, LOW)):
            for a, t in zip(ours(ids, key, epoch, block), theirs(where, key, epoch, block), strict=True):
                assert a.tobytes() == t.cpu().numpy().tobytes()


INTERPRETED = """
import numpy as np, torch
from shardmill.core.random import draw5, make_key
from shardmill.core.random import tensors
ids = np.array([*range(1500), *range(1 << 63, (1 << 63) + 5), 2**64 - 1], np.uint64)
key, kernel = make_key(7, "x"), tensors._kernel()
for epoch, block in ((0, 0), (1, 3), (2**32 - 1, 2**32 - 1)):
    found = kernel(torch.from_numpy(ids.view(np.int64)), key, epoch, block)
    assert all(a.tobytes() == t.numpy().tobytes() for a, t in zip(draw5(ids, key, epoch, block), found))
"""


def test_the_kernel_for_gpus_gives_what_arrays_give_under_tritons_interpreter() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def test_draws_split_a_block_as_they_say() -> None:
    w0, w1, w2, w3 = unpack(words(np.array([9], np.uint64), PhiloxKey(1, 2), 3))[0]
    bits = f"{w0:032b}{w1:032b}{w2:032b}{w3:032b}"
    pieces = [bits[:24], bits[24:48], bits[64:88], bits[88:112], bits[48:64] + bits[120:]]
    ids = np.array([9], np.uint64)
    assert [int(c[0]) for c in draw5(ids, PhiloxKey(1, 2), 3)] == [int(p, 2) for p in pieces]
    assert [int(c[0]) for c in draw_fine(ids, PhiloxKey(1, 2), 3)] == [int(bits[:53], 2), int(bits[64:117], 2)]


def test_chunks_leave_the_numbers_as_they_are() -> None:
    ids = np.arange(CHUNK * 2 + 17, dtype=np.uint64) + np.uint64((1 << 32) - CHUNK)
    whole = draw5(ids, PhiloxKey(1, 2))
    order = np.random.default_rng(0).permutation(len(ids))
    mixed = draw5(ids[order], PhiloxKey(1, 2))
    assert all((w[order] == m).all() for w, m in zip(whole, mixed, strict=True))


def test_a_key_tells_seeds_streams_and_views_apart() -> None:
    keys = [make_key(s, n, v) for s in (0, 1, 11) for n in ("", "a", "1a", "b") for v in (None, 0, 1, 11)]
    assert len(set(keys)) == len(keys)
    assert make_key(3, "augment") == PhiloxKey(351573369, 996764552), "a key that moves makes other data"


@given(start=st.integers(0, 2**64 - 1), stop=st.integers(0, 2**64 - 1), count=st.integers(1, 9))
def test_a_range_of_ids_is_its_numbers(start: int, stop: int, count: int) -> None:
    step = max(1, abs(stop - start) // count)
    numbers = range(start, stop, step if start <= stop else -step)
    assert randoms.check_ids(numbers).tolist() == list(numbers)


@pytest.mark.parametrize(
    "ids", [range(-1, 5), range(5, -2, -1), range(2**64 - 1, 2**64 + 2), [-1], [1 << 64], [0.5], ["a"], [None]]
)
def test_what_is_no_id_is_refused(ids: Sequence[object]) -> None:
    with pytest.raises(UsageError):
        randoms.check_ids(ids)


@pytest.mark.parametrize(("epoch", "block"), [(-1, 0), (1 << 32, 0), (0, -1), (0.5, 0), (True, 0)])
def test_what_is_no_epoch_is_refused(epoch: int, block: int) -> None:
    with pytest.raises(UsageError):
        words(np.zeros(1, np.uint64), PhiloxKey(0, 0), epoch, block)
    with pytest.raises(UsageError):
        make_key(-1, "x")


def chi_square(values: np.ndarray, bins: int) -> float:
    """How far counts are from even, in standard deviations of the chi-square."""
    counts = np.bincount(values, minlength=bins)
    expected = len(values) / bins
    return float(((counts - expected) ** 2).sum() / expected - (bins - 1)) / (2 * (bins - 1)) ** 0.5


N = 200_000


@pytest.fixture(scope="module")
def draws() -> list[np.ndarray]:
    return draw5(np.arange(N, dtype=np.uint64), make_key(0, "augment"))


def test_each_draw_is_uniform_in_its_high_and_low_bits(draws: list[np.ndarray]) -> None:
    for column in draws:
        whole = column.astype(np.int64)
        assert abs(chi_square(whole >> 16, 256)) < 5
        assert abs(chi_square(whole & 255, 256)) < 5


def test_pairs_of_neighbours_fill_the_square_evenly(draws: list[np.ndarray]) -> None:
    for column in draws:
        cells = column.astype(np.int64) >> 20
        assert abs(chi_square(cells[:-1] * 16 + cells[1:], 256)) < 5


def test_draws_do_not_follow_their_neighbours_epochs_views_or_streams(draws: list[np.ndarray]) -> None:
    ids = np.arange(N, dtype=np.uint64)
    others = [
        draw5(ids, make_key(0, "augment"), epoch=1),
        draw5(ids, make_key(0, "augment"), block=1),
        draw5(ids, make_key(0, "augment", view=0)),
        draw5(ids, make_key(0, "augmen")),
        draw5(ids, make_key(1, "augment")),
        draw5(ids + np.uint64(1), make_key(0, "augment")),
        draw5(ids + np.uint64(1 << 32), make_key(0, "augment")),
    ]
    ours = np.stack(draws)
    for other in others:
        both = np.corrcoef(ours, np.stack(other))
        assert np.abs(both - np.eye(10)).max() < 5 / N**0.5


def test_no_two_items_epochs_or_views_share_a_block() -> None:
    ids = np.arange(100_000, dtype=np.uint64)
    rows = [words(ids, make_key(0, "augment", view), epoch) for view in (0, 1) for epoch in (0, 1)]
    blocks = np.concatenate(rows, axis=1).T
    assert len(np.unique(np.ascontiguousarray(blocks).view("V16"))) == len(blocks)


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 700), epoch=st.integers(0, 5))
def test_a_permutation_has_everything_once_and_needs_only_the_positions_asked_for(size: int, epoch: int) -> None:
    key = make_key(5, "order")
    order = permute(np.arange(size), size, key, epoch)
    assert sorted(order.tolist()) == list(range(size))
    assert permute(np.array([size - 1]), size, key, epoch)[0] == order[-1]


def test_a_permutation_mixes_and_changes_with_the_epoch() -> None:
    first, second = (permute(np.arange(10_000), 10_000, make_key(5, "order"), e) for e in (0, 1))
    assert abs(np.corrcoef(first, np.arange(10_000))[0, 1]) < 0.05
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    with pytest.raises(UsageError):
        permute(np.array([10]), 10, PhiloxKey(0, 0))
    with pytest.raises(UsageError):
        permute(np.array([0]), 0, PhiloxKey(0, 0))


def test_logarithm_exponential_and_normal_are_right_and_the_same_in_torch() -> None:
    import statistics

    torch = pytest.importorskip("torch")
    u = np.concatenate([np.linspace(1e-12, 1 - 1e-12, 2001), [0.075, 0.925, 2.0**-54, 1e-300]])
    x = np.linspace(-60, 60, 2001)
    assert np.allclose(randoms.log(u), np.log(u), rtol=4e-16, atol=2e-16)
    assert np.allclose(randoms.exp(x), np.exp(x), rtol=8e-16, atol=0)
    exact = [statistics.NormalDist().inv_cdf(p) for p in u]
    assert np.allclose(randoms.normal(u), exact, rtol=1e-13, atol=1e-15)
    for function, values in ((randoms.log, u), (randoms.exp, x), (randoms.normal, u)):
        assert function(torch.from_numpy(values)).numpy().tobytes() == function(values).tobytes()


def _slip(ulps: int) -> Callable[[Any], Any]:
    """A square root that is off by this many units in the last place, as some of MKL's are by one."""
    torch = pytest.importorskip("torch")
    right = torch.sqrt

    def sqrt(x: Any) -> Any:
        return (right(x).view(torch.int64) + ulps).view(torch.float64)

    return sqrt


EDGES = [0.0, -0.0, math.inf, 5e-324, 4e-320, 2.0**-1022, math.nextafter(2.0**-1022, 0), sys.float_info.max, 1.0, 4.0]
EDGES += [math.nextafter(2.0**n, to) for n in (-1021, -2, -1, 0, 1, 2, 3, 52, 53, 1023) for to in (0, math.inf)]


@pytest.mark.parametrize("ulps", [-3, -2, -1, 0, 1, 2, 3])
def test_square_roots_in_torch_are_numpys_whatever_torchs_own_are(monkeypatch: pytest.MonkeyPatch, ulps: int) -> None:
    torch = pytest.importorskip("torch")
    numbers = np.random.default_rng(ulps % 7)
    bits = numbers.integers(1, 0x7FF << 52, 200_000)
    roots = numbers.integers(1 << 52, 1 << 53, 20_000).astype(np.float64)
    near = [bits.view(np.float64), numbers.uniform(0.6, 40, 200_000), roots * roots, np.nextafter(roots * roots, 0)]
    # Numbers below the normal ones, and whole squares.
    near += [numbers.integers(1, 1 << 52, 20_000).view(np.float64), np.arange(2000.0) ** 2, np.array(EDGES)]
    x = np.concatenate(near)
    slipped = _slip(ulps)
    monkeypatch.setattr(torch, "sqrt", slipped)
    monkeypatch.setattr(torch.Tensor, "sqrt", slipped)
    assert maths._sqrt(torch.from_numpy(x)).numpy().tobytes() == np.sqrt(x).tobytes()
    assert maths._sqrt(torch.tensor([math.nan, -1.0, -math.inf], dtype=torch.float64)).isnan().all()
    u = np.concatenate([np.linspace(1e-12, 1 - 1e-12, 20_001), [2.0**-54, 1 - 2.0**-53]])
    assert randoms.normal(torch.from_numpy(u)).numpy().tobytes() == randoms.normal(u).tobytes()
