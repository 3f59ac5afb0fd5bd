"""Parameters that depend on the item and the epoch alone; streams that go on where they ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.augment import (
    PRESETS,
    AugmentationConfig,
    augmentation_table,
    choice,
    compute_statistics,
    gen_augmentation_params,
    gen_distributed_augmentation_params,
    get_preset,
    load_augmentation_stream,
    log_uniform,
    normal,
    resume_augmentation_stream,
    save_augmentation_stream,
    stream_augmentation_chain,
    stream_distributed_augmentation_chain,
    uniform,
)
from shardmill.core.errors import CorruptState, SpecError, UsageError

RICH = AugmentationConfig(
    rotation=normal(0, 10),
    scale=log_uniform(0.5, 2),
    noise=uniform(0, 0.1, probability=0.25),
    seed=9,
    extra={
        "hue": uniform(-0.1, 0.1),
        "blur": log_uniform(0.1, 3, probability=0.5, otherwise=0),
        "flip": choice([0, 1]),
        "mode": choice(["crop", "pad", "squash"], probability=0.5, otherwise="none"),
        "jitter": normal(1, 0.2),
    },
)


def test_the_numbers_are_the_same_for_ever() -> None:
    assert gen_augmentation_params(42, get_preset("moderate")) == {
        "rotation": -19.045021533966064,
        "brightness": 1.0792438745498658,
        "noise": 0.08960959911346436,
        "scale": 0.8487693548202515,
        "contrast": 0.9499667882919312,
    }


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_within_their_ranges_and_fill_them(name: str) -> None:
    config = get_preset(name)
    for column, p in zip(augmentation_table(range(50_000), config).values(), config.parameters.values(), strict=True):
        assert p.a <= column.min() < p.a + 0.001 * (p.b - p.a)
        assert p.b - 0.001 * (p.b - p.a) < column.max() <= p.b


def test_distributions_are_what_they_say() -> None:
    table = augmentation_table(range(100_000), RICH)
    assert abs(table["rotation"].mean()) < 0.2
    assert 9.9 < table["rotation"].std() < 10.1
    assert abs(np.log(table["scale"]).mean()) < 0.01
    assert table["scale"].min() >= 0.5
    assert table["scale"].max() <= 2
    assert 0.74 < (table["noise"] == 0).mean() < 0.76
    assert 0.49 < (table["blur"] == 0).mean() < 0.51
    assert sorted(set(table["flip"].tolist())) == [0, 1]
    shares = {name: times / 100_000 for name, times in compute_statistics(table)["mode"].counts.items()}
    assert shares == pytest.approx({"crop": 1 / 6, "pad": 1 / 6, "squash": 1 / 6, "none": 1 / 2}, abs=0.01)


def test_an_extra_parameter_leaves_the_others_as_they_are() -> None:
    more = AugmentationConfig(extra={"a": (0, 1), "b": (0, 1)})
    other = AugmentationConfig(extra={"b": (0, 1)})
    plain = augmentation_table(range(100), AugmentationConfig())
    gated = augmentation_table(range(100), AugmentationConfig(contrast=uniform(0.7, 1.3, probability=0.5)))
    for name, column in plain.items():
        assert (augmentation_table(range(100), more)[name] == column).all()
        if name != "contrast":
            assert (gated[name] == column).all()
    assert (augmentation_table(range(100), more)["b"] == augmentation_table(range(100), other)["b"]).all()


@pytest.mark.parametrize("config", [get_preset("aggressive"), RICH], ids=["five", "rich"])
def test_tensors_are_the_table_to_the_bit(config: AugmentationConfig) -> None:
    torch = pytest.importorskip("torch")
    from shardmill.augment import augmentation_tensors

    table = augmentation_table(range(3000), config, epoch=3)
    tensors = augmentation_tensors(torch.arange(3000), config, epoch=3)
    modes = ("crop", "pad", "squash", "none")
    for name, column in table.items():
        found = tensors[name].numpy()
        if name == "mode":
            assert [modes[i] for i in found] == column.tolist()
        else:
            assert found.dtype == column.dtype
            assert found.tobytes() == column.tobytes()


def test_a_rank_has_a_view_of_its_own_whatever_the_world_size() -> None:
    config = get_preset("mild")
    views = [gen_distributed_augmentation_params(7, rank, 8, config) for rank in range(8)]
    assert len({tuple(v.values()) for v in views}) == 8
    assert gen_distributed_augmentation_params(7, 3, 100, config) == views[3]
    assert gen_augmentation_params(7, config) not in views


def test_epochs_and_seeds_give_others() -> None:
    config = get_preset("mild")
    rows = [gen_augmentation_params(7, config, seed=s, epoch=e) for s in (0, 1) for e in (0, 1)]
    assert len({tuple(r.values()) for r in rows}) == 4
    assert gen_augmentation_params(7, AugmentationConfig.from_dict({**config.to_dict(), "seed": 1})) == rows[2]


def test_one_item_is_the_tables_row_and_the_streams() -> None:
    table = augmentation_table([5, 6, 7], RICH, epoch=2)
    stream = list(stream_augmentation_chain(3, RICH, start_id=5, chunk_size=2, epoch=2))
    for i in range(3):
        one = gen_augmentation_params(5 + i, RICH, epoch=2)
        assert one == {name: column[i].item() for name, column in table.items()} == stream[i]


@given(sample_id=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**32 - 1), view=st.none() | st.integers(0, 9))
def test_one_item_alone_is_the_item_among_many(sample_id: int, epoch: int, view: int | None) -> None:
    config = get_preset("aggressive")
    table = augmentation_table([sample_id], config, seed=5, epoch=epoch, view=view)
    alone = gen_augmentation_params(sample_id, config, seed=5, epoch=epoch, view=view)
    assert alone == {name: column[0] for name, column in table.items()}


def test_an_endless_stream_goes_on_and_holds_one_chunk() -> None:
    stream = stream_augmentation_chain(float("inf"), get_preset("mild"), start_id=10**18, chunk_size=10)
    rows = [next(stream) for _ in range(25)]
    assert rows[24] == gen_augmentation_params(10**18 + 24, get_preset("mild"))
    assert stream.state == 10**18 + 25


def test_the_last_ids_there_are() -> None:
    stream = stream_augmentation_chain(float("inf"), get_preset("mild"), start_id=2**64 - 3)
    assert len(list(stream)) == 3
    assert list(stream_augmentation_chain(0, get_preset("mild"))) == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_elastic_any_world_sizes_kills_and_resumes_give_every_item_once(data: st.DataObject) -> None:
    """Ranks take steps together, all die, and others, more or fewer, go on from a state that one of them had saved."""
    config = get_preset("moderate")
    total = data.draw(st.integers(0, 200))
    state, seen = 0, []
    while state < total:
        size = data.draw(st.integers(1, 9))
        steps = data.draw(st.integers(1, 40))
        chunk = data.draw(st.integers(1, 30))
        states = set()
        for rank in range(size):
            stream = stream_distributed_augmentation_chain(total, rank, size, config, 0, chunk)
            stream.load_state_dict({"next_id": state, "epoch": 0, "seed": 0})
            for i in range(steps):
                params = next(stream, None)
                if params is not None:
                    seen.append((state + i * size + rank, tuple(params.values())))
            states.add(stream.state)
        assert len(states) == 1
        state = states.pop()
    expected = augmentation_table(range(total), config)
    assert sorted(seen) == list(enumerate(zip(*(c.tolist() for c in expected.values()), strict=True)))


def test_progress_is_told_chunk_by_chunk() -> None:
    told: list[tuple[int, int | None]] = []
    stream = stream_augmentation_chain(25, get_preset("mild"), 100, 10, on_progress=lambda *at: told.append(at))
    list(stream)
    assert told == [(10, 25), (20, 25), (25, 25)]


def test_a_state_goes_through_json_and_resumes_in_the_middle_of_a_chunk() -> None:
    config = get_preset("mild")
    whole = list(stream_augmentation_chain(100, config, chunk_size=16))
    first = stream_augmentation_chain(100, config, chunk_size=16)
    taken = [next(first) for _ in range(37)]
    second = stream_augmentation_chain(100, config, chunk_size=7)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert taken + list(second) == whole
    assert list(stream_augmentation_chain(63, config, start_id=first.state)) == whole[37:]


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"next_id": 1},
        {"next_id": -1, "epoch": 0, "seed": 0},
        {"next_id": "1", "epoch": 0, "seed": 0},
        {"next_id": 101, "epoch": 0, "seed": 0},
        {"next_id": 1, "epoch": 0, "seed": 5},
    ],
)
def test_a_corrupt_state_is_refused(state: Any) -> None:
    with pytest.raises(CorruptState):
        stream_augmentation_chain(100, get_preset("mild")).load_state_dict(state)


def test_a_stream_is_saved_loaded_and_resumed(tmp_path: Path) -> None:
    def whole() -> Any:
        return stream_augmentation_chain(1000, RICH, chunk_size=64)

    stopped = whole()
    stopped.stop = 500
    assert save_augmentation_stream(stopped, tmp_path, samples_per_file=250) == 500
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    (tmp_path / "params-000002.part").write_bytes(b"torn by a kill")
    resumed = resume_augmentation_stream(tmp_path, whole())
    assert resumed.state == 500
    assert save_augmentation_stream(resumed, tmp_path, samples_per_file=250) == 500
    assert all(p.read_bytes() == data for p, data in before.items())
    assert list(load_augmentation_stream(tmp_path)) == list(enumerate(whole()))
    assert save_augmentation_stream(resume_augmentation_stream(tmp_path, whole()), tmp_path) == 0


def test_a_stream_read_in_part_is_saved_from_there_and_tells_how_far_it_is(tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    stream = stream_augmentation_chain(50, RICH, chunk_size=20, on_progress=lambda *at: told.append(at))
    first = [next(stream) for _ in range(7)]
    assert save_augmentation_stream(stream, tmp_path, samples_per_file=30) == 43
    saved = list(load_augmentation_stream(tmp_path))
    assert [number for number, _ in saved] == list(range(7, 50))
    assert [*first, *(params for _, params in saved)] == list(stream_augmentation_chain(50, RICH))
    assert told == [(27, 50), (37, 50), (50, 50)]
    assert next(stream, None) is None


def test_torn_foreign_and_missing_files_are_found(tmp_path: Path) -> None:
    stream = stream_augmentation_chain(300, get_preset("mild"))
    save_augmentation_stream(stream, tmp_path, samples_per_file=100)
    with pytest.raises(CorruptState, match="another stream"):
        resume_augmentation_stream(tmp_path, stream_augmentation_chain(300, get_preset("moderate")))
    middle = tmp_path / "params-000001.parquet"
    data = middle.read_bytes()
    middle.write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptState, match="damaged"):
        resume_augmentation_stream(tmp_path, stream_augmentation_chain(300, get_preset("mild")))
    with pytest.raises(CorruptState, match="damaged"):
        list(load_augmentation_stream(tmp_path))
    middle.unlink()
    with pytest.raises(CorruptState, match="missing"):
        resume_augmentation_stream(tmp_path, stream_augmentation_chain(300, get_preset("mild")))
    (tmp_path / "params-000002.parquet").unlink()
    stream = resume_augmentation_stream(tmp_path, stream_augmentation_chain(300, get_preset("mild")))
    assert stream.state == 100


def test_statistics_of_a_stream_are_those_of_its_table() -> None:
    config = get_preset("moderate")
    table = augmentation_table(range(20_000), config)
    found = compute_statistics(stream_augmentation_chain(20_000, config))
    for name, column in table.items():
        assert found[name].mean == pytest.approx(column.mean())
        assert found[name].deviation == pytest.approx(column.std())
        assert (found[name].low, found[name].high) == (column.min(), column.max())
    with pytest.raises(UsageError, match="no parameters"):
        compute_statistics(stream_augmentation_chain(0, config))


NAN = float("nan")


@pytest.mark.parametrize(
    "wrong",
    [
        {"rotation": (10, -10)},
        {"rotation": (NAN, 1)},
        {"scale": (0, float("inf"))},
        {"scale": "wide"},
        {"scale": (1, 2, 3)},
        {"scale": ("a", "b")},
        {"noise": (-0.1, 0.1)},
        {"seed": -1},
        {"seed": 1 << 64},
        {"seed": 0.5},
        {"extra": {"rotation": (0, 1)}},
        {"extra": {"x": log_uniform(0, 1)}},
        {"extra": {"x": normal(0, -1)}},
        {"extra": {"x": choice([])}},
        {"extra": {"x": choice([1, "a"])}},
        {"extra": {"x": choice([NAN])}},
        {"extra": {"x": uniform(0, 1, probability=1.5, otherwise=0)}},
        {"extra": {"x": uniform(0, 1, probability=NAN, otherwise=0)}},
        {"extra": {"x": uniform(0, 1, probability=0.5)}},
        {"extra": {"x": {"kind": "uniform", "from": 1}}},
        {"extra": {"x": {"kind": "unform", "a": 0.0, "b": 1.0}}},
    ],
)
def test_a_config_that_cannot_be_is_refused_at_birth(wrong: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as error:
        AugmentationConfig(**wrong)
    assert error.value.hint


def test_a_config_is_frozen_hashable_and_plain() -> None:
    with pytest.raises(AttributeError):
        RICH.rotation = (0, 1)  # type: ignore[misc]
    copy = AugmentationConfig.from_dict(json.loads(json.dumps(RICH.to_dict())))
    assert copy == RICH
    assert hash(copy) == hash(RICH)
    with pytest.raises(SpecError, match="not a field"):
        AugmentationConfig.from_dict({"rotatoin": (0, 1)})


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(SpecError, match="Did you mean 'moderate'"):
        get_preset("modrate")


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0), (0, -1), (0.5, 2), (0, True)])
def test_a_rank_outside_the_world_is_refused(rank: Any, world: Any) -> None:
    with pytest.raises(UsageError):
        gen_distributed_augmentation_params(1, rank, world, get_preset("mild"))
    with pytest.raises(UsageError):
        stream_distributed_augmentation_chain(10, rank, world, get_preset("mild"))


@pytest.mark.parametrize("sample_id", [-1, 1 << 64, 0.5, "a", True, None])
def test_an_id_that_is_none_is_refused(sample_id: Any) -> None:
    with pytest.raises(UsageError):
        gen_augmentation_params(sample_id, get_preset("mild"))
    with pytest.raises(UsageError):
        stream_augmentation_chain(5, get_preset("mild"), start_id=sample_id)


@pytest.mark.parametrize("samples", [-1, float("nan"), 0.5, "many", None, 2**64 + 1])
def test_a_number_of_samples_that_is_none_is_refused(samples: Any) -> None:
    with pytest.raises(UsageError):
        stream_augmentation_chain(samples, get_preset("mild"))
    with pytest.raises(UsageError):
        stream_augmentation_chain(5, get_preset("mild"), chunk_size=0)
