"""The automatic batch budget: a memory model from a few probes, and the file that caches it."""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardmill.core.batching import plan_batches
from shardmill.core.errors import DeviceLost, DeviceOutOfMemory
from shardmill.models.memory import (
    MemoryKey,
    MemoryModel,
    Probe,
    find_model,
    fit,
    free_cuda_bytes,
    learn_model,
    measure_cuda,
    recall,
    remember,
)

MIB, GIB = 1 << 20, 1 << 30
KEY = MemoryKey("NVIDIA H200", "float16", "torch float16, packed", "9f3a", "torch 2.13.0, transformers 5.1.0", 512)
MODEL = MemoryModel(1.5e6, 8192.25, 3.0)

whole_models = st.builds(MemoryModel, st.integers(0, 500), st.integers(1, 50), st.integers(0, 5))
texts = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(lambda c: np.array(c, np.int64))


def _packed_bytes(model: MemoryModel, lengths: np.ndarray) -> float:
    pairs = model.pair_bytes * (lengths**2).sum()
    return float(model.fixed_bytes + model.token_bytes * lengths.sum() + pairs)


@given(model=whole_models, costs=texts, free=st.integers(0, 20_000), most=st.integers(1, 2_000), padded=st.booleans())
def test_no_batch_that_is_planned_takes_more_than_is_free_unless_it_is_one_text(
    model: MemoryModel, costs: np.ndarray, free: int, most: int, padded: bool
) -> None:
    budget = model.budget(free, longest=40, most=most, padded=padded)
    assert 1 <= budget <= most
    for batch in plan_batches(costs, budget, padded=padded):
        lengths = costs[batch]
        takes = model.bytes(len(batch), int(lengths.max())) if padded else _packed_bytes(model, lengths)
        assert len(batch) == 1 or takes <= free


@given(model=whole_models, free=st.integers(0, 20_000), most=st.integers(1, 2_000), longest=st.integers(1, 40))
@example(MemoryModel(0, 1, 0), 0, 2_000, 40)
def test_a_padded_budget_is_the_largest(model: MemoryModel, free: int, most: int, longest: int) -> None:
    budget = model.budget(free, longest=longest, most=most, padded=True)
    lengths = [s for s in range(1, longest + 1) if (budget + 1) % s == 0 and (budget + 1) // s >= 2]
    assert budget == most or any(model.bytes((budget + 1) // s, s) > free for s in lengths)


@given(fixed=st.integers(0, 500), token=st.integers(1, 50), free=st.integers(0, 20_000), most=st.integers(1, 2_000))
def test_a_packed_budget_is_the_largest(fixed: int, token: int, free: int, most: int) -> None:
    budget = MemoryModel(fixed, token, 0).budget(free, longest=40, most=most, padded=False)
    assert budget == most or fixed + token * (budget + 1) > free


@given(
    model=st.builds(MemoryModel, st.floats(0, 1e9), st.floats(0, 1e6), st.floats(0, 1e3)),
    free=st.floats(0, 1e12),
    more=st.floats(1, 10),
    padded=st.booleans(),
)
def test_more_memory_never_makes_a_smaller_budget(model: MemoryModel, free: float, more: float, padded: bool) -> None:
    sizes = {"longest": 512, "most": 65536, "padded": padded}
    budget = model.budget(free, **sizes)
    assert budget <= model.budget(free * more, **sizes)
    for length in (1, 7, 64, 511, 512):
        rows = budget // length
        assert rows < 2 or model.bytes(rows, length if padded else 1) <= free * (1 + 1e-9)


def test_a_text_alone_is_always_allowed() -> None:
    greedy = MemoryModel(10 * GIB, MIB, 1)
    assert greedy.budget(GIB, longest=512, most=4096, padded=True) == 1
    assert greedy.budget(GIB, longest=512, most=4096, padded=False) == 1
    assert [len(b) for b in plan_batches(np.array([512, 512, 3]), 1)] == [1, 1, 1]


def test_a_limit_beyond_all_reason_costs_nothing() -> None:
    assert MemoryModel(0, 1000, 0).budget(10**9, longest=1 << 40, most=65536, padded=True) == 65536


@pytest.mark.parametrize("wrong", [(-1.0, 0.0, 0.0), (0.0, float("nan"), 0.0), (0.0, 0.0, float("inf"))])
def test_a_model_is_checked_at_birth(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="not a memory model"):
        MemoryModel(*wrong)


shapes = st.tuples(st.integers(1, 256), st.integers(1, 2048))
probe_lists = st.lists(st.builds(lambda s, b: Probe(*s, b), shapes, st.integers(0, 10 * GIB)), min_size=1, max_size=6)


@given(probes=probe_lists, padded=st.booleans())
def test_the_fit_is_the_least_squares_one_with_nothing_below_nought(probes: list[Probe], padded: bool) -> None:
    """By what holds at the optimum: no step up helps, and none down from what is above nought."""
    model = fit(probes, padded=padded)
    values = np.array([model.fixed_bytes, model.token_bytes, model.pair_bytes])
    columns = np.array([[1.0, p.rows * p.length, p.rows * p.length**2] for p in probes])
    scale = columns.max(axis=0)
    peak = np.array([p.peak_bytes for p in probes], float)
    slope = (columns / scale).T @ (columns @ values - peak)
    free = np.array([True, True, padded])
    near = 1e-4 * (np.linalg.norm(peak) + 1)
    assert (values >= 0).all()
    assert padded or model.pair_bytes == 0
    assert (slope[free] >= -near).all()
    assert (np.abs(slope[values > 0]) <= near).all()


def test_the_fit_of_exact_probes_is_exact() -> None:
    true = MemoryModel(3 * MIB, 20_000, 48)
    probes = [Probe(b, s, int(true.bytes(b, s))) for b, s in [(1, 64), (128, 64), (1, 512), (16, 512)]]
    assert fit(probes).bytes(64, 4096) == pytest.approx(true.bytes(64, 4096), rel=1e-6)
    assert fit(probes).pair_bytes == pytest.approx(48, rel=1e-6)


def test_one_probe_is_laid_to_its_tokens() -> None:
    model = fit([Probe(2, 50, 1000)])
    assert model == MemoryModel(0, model.token_bytes, 0)
    assert model.token_bytes == pytest.approx(10)


def test_no_probe_is_no_model() -> None:
    with pytest.raises(ValueError, match="unpack"):
        fit([])


def _device(true: MemoryModel, free: float = float("inf")) -> tuple[Callable[[int, int], int], list[tuple[int, int]]]:
    """A device with so much memory, whose allocator rounds up; and the shapes it was asked for."""
    asked: list[tuple[int, int]] = []

    def measure(rows: int, length: int) -> int:
        asked.append((rows, length))
        if true.bytes(rows, length) > free:
            raise DeviceOutOfMemory("full")
        return -int(-true.bytes(rows, length) // 65536) * 65536

    return measure, asked


real_models = st.builds(MemoryModel, st.floats(0, 64 * MIB), st.floats(2_000, 500_000), st.floats(0, 1_000))


@given(true=real_models, longest=st.integers(1, 32_768), padded=st.booleans())
def test_a_model_that_is_found_is_above_the_truth_but_not_far(true: MemoryModel, longest: int, padded: bool) -> None:
    true = true if padded else replace(true, pair_bytes=0.0)
    measure, asked = _device(true)
    model = find_model(measure, padded=padded, longest=longest)
    for tokens, length in ((4096, 1), (65536, max(1, longest // 2)), (65536, longest)):
        rows = max(1, tokens // length)
        assert true.bytes(rows, length) <= model.bytes(rows, length) <= 1.6 * true.bytes(rows, length) + 4 * MIB
    assert len(asked) <= 4
    assert all(length <= min(longest, 2048) and rows * length <= 8192 for rows, length in asked)


@given(true=real_models, free=st.floats(1e5, 2e10), longest=st.integers(1, 32_768), padded=st.booleans())
def test_a_device_that_is_nearly_full_is_probed_by_less(
    true: MemoryModel, free: float, longest: int, padded: bool
) -> None:
    true = true if padded else replace(true, pair_bytes=0.0)
    measure, asked = _device(true, free)
    try:
        model = find_model(measure, padded=padded, longest=longest)
    except DeviceOutOfMemory:
        assert len(asked) == 1
        return
    assert len(asked) == len(set(asked))
    for rows, length in asked:
        if true.bytes(rows, length) <= free:
            assert true.bytes(rows, length) <= model.bytes(rows, length)


def test_kernels_without_pairs_are_not_given_any_at_32768_tokens() -> None:
    measure, _ = _device(MemoryModel(32 * MIB, 60_000, 0))
    model = find_model(measure, padded=True, longest=32_768)
    assert model.pair_bytes * 32_768 < 0.1 * model.token_bytes


@given(peaks=st.lists(st.integers(0, 10 * GIB), min_size=4, max_size=4), padded=st.booleans())
def test_a_model_is_above_every_probe_whatever_they_say(peaks: list[int], padded: bool) -> None:
    seen: dict[tuple[int, int], int] = {}

    def measure(rows: int, length: int) -> int:
        return seen.setdefault((rows, length), peaks[len(seen)])

    model = find_model(measure, padded=padded, longest=512)
    assert all(model.bytes(*shape) >= 1.2 * peak * (1 - 1e-9) for shape, peak in seen.items())


def test_a_device_that_is_lost_while_it_is_probed_is_not_taken_for_full() -> None:
    def measure(rows: int, length: int) -> int:
        raise DeviceLost("gone")

    with pytest.raises(DeviceLost):
        find_model(measure, padded=True, longest=512)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shardmill" / "memory.json"


def test_what_is_remembered_is_recalled_exactly_and_for_its_key_alone(file: Path) -> None:
    assert recall(KEY) is None
    remember(KEY, MODEL)
    assert recall(KEY) == MODEL
    for name, value in [("device", "L4"), ("dtype", "float32"), ("kernel", "x"), ("model", "x"), ("longest", 8)]:
        assert recall(replace(KEY, **{name: value})) is None
    remember(KEY, replace(MODEL, pair_bytes=0.0))
    assert recall(KEY) == replace(MODEL, pair_bytes=0.0)
    assert json.loads(file.read_text())["version"] == 1


def test_without_a_setting_it_lies_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    remember(KEY, MODEL)
    assert (tmp_path / ".cache/shardmill/memory.json").exists()
    assert recall(KEY) == MODEL


BROKEN = [
    b"",
    b"\xff\xfe\x00",
    b'{"version": 1, "mod',
    b"[" * 100_000,
    b"[1, 2]",
    b"null",
    b'{"version": 1}',
    b'{"version": 1, "models": [1]}',
    b'{"version": 1, "models": 7}',
    b'{"version": 2, "models": {}}',
]


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_file_holds_nothing_and_is_written_anew(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    assert recall(KEY) is None
    remember(KEY, MODEL)
    assert recall(KEY) == MODEL


@pytest.mark.parametrize(
    "entry", ["null", "[]", "[1, 2]", "[1, 2, -3]", "[1, 2, NaN]", '"abc"', '{"a": 1, "b": 2, "c": 3}', "[1, 2, 1e999]"]
)
def test_a_broken_entry_is_not_recalled_and_harms_no_other(file: Path, entry: str) -> None:
    other = replace(KEY, device="L4")
    remember(KEY, MODEL)
    held = json.loads(file.read_text())
    held["models"] = dict.fromkeys(held["models"], json.loads(entry))
    file.write_text(json.dumps(held))
    remember(other, MODEL)
    assert recall(KEY) is None
    assert recall(other) == MODEL


def test_a_number_too_large_for_a_float_is_not_recalled(file: Path) -> None:
    remember(KEY, MODEL)
    file.write_text(file.read_text().replace("1500000.0", "1" * 400))
    assert recall(KEY) is None


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    remember(KEY, MODEL)
    assert recall(KEY) is None


def _remember_many(writer: int) -> None:
    for i in range(40):
        remember(replace(KEY, device=f"gpu {writer}", longest=i), MemoryModel(writer, i, 0))
        assert recall(replace(KEY, device=f"gpu {writer}", longest=i)) == MemoryModel(writer, i, 0)


def test_of_several_workers_that_write_at_once_none_loses_anything(file: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        pool.map(_remember_many, range(3), chunksize=1)
    for writer in range(3):
        for i in range(40):
            assert recall(replace(KEY, device=f"gpu {writer}", longest=i)) == MemoryModel(writer, i, 0)
    assert {path.name for path in file.parent.iterdir()} == {"memory.json", "memory.lock"}


def test_a_model_is_found_once_and_then_recalled(file: Path) -> None:
    measure, asked = _device(MemoryModel(MIB, 20_000, 0))
    first = learn_model(KEY, measure, padded=False, longest=512)
    probes = len(asked)
    assert learn_model(KEY, measure, padded=False, longest=512) == first
    assert len(asked) == probes == 3


class _FakeCuda:
    """The few calls of torch.cuda that are used, over invented numbers: `held` is allocated, in `blocks` of its own."""

    def __init__(self, *, free: int, held: int, blocks: int) -> None:
        self.free, self.held, self.blocks, self.peak = free, held, blocks, 10**15

    def mem_get_info(self) -> tuple[int, int]:
        return self.free, 10**12

    def memory_allocated(self) -> int:
        return self.held

    def memory_reserved(self) -> int:
        return self.blocks

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.held

    def max_memory_allocated(self) -> int:
        return self.peak


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> _FakeCuda:
    fake = _FakeCuda(free=40 * GIB, held=2 * GIB, blocks=12 * GIB)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=fake))
    return fake


def test_a_peak_is_what_a_batch_takes_beyond_the_weights_and_beyond_the_first_run(cuda: _FakeCuda) -> None:
    runs: list[tuple[int, ...]] = []

    def run(rows: list[Any]) -> None:
        runs.append((len(rows), len(rows[0]), int(rows[0][0])))
        cuda.held += 0 if len(runs) > 1 else 32 * MIB
        cuda.peak = max(cuda.peak, cuda.held + sum(map(len, rows)) * 1000)

    assert measure_cuda(run, token_id=7)(3, 50) == 150_000
    assert runs == [(3, 50, 7)] * 2


def test_free_is_what_others_leave_and_is_shared(cuda: _FakeCuda) -> None:
    assert free_cuda_bytes(1) == int(0.85 * 50 * GIB)
    assert free_cuda_bytes(4) == int(0.85 * 50 * GIB / 4)
