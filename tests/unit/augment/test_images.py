"""Parameters applied to images; datasets and the sampler that feed a training loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from shardmill.augment import (  # noqa: E402
    augmentation_tensors,
    gen_augmentation_params,
    get_preset,
    stream_augmentation_chain,
)
from shardmill.augment.adapters import apply_with_kornia  # noqa: E402
from shardmill.augment.images import apply, pixel_noise  # noqa: E402
from shardmill.augment.loading import AugmentedDataset, AugmentedIterable, ElasticSampler, collate  # noqa: E402
from shardmill.core.errors import CorruptState, UsageError  # noqa: E402

ROOT = Path(__file__).parents[3]
CONFIG = get_preset("moderate")


@pytest.fixture
def images() -> Any:
    return torch.rand((4, 3, 12, 12), generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_neutral_parameters_change_nothing(images: Any) -> None:
    assert torch.allclose(apply(images, {}), images, atol=1e-12)


def test_turns_are_turns_and_scales_are_scales(images: Any) -> None:
    assert torch.allclose(apply(images, {"rotation": 90.0}), torch.rot90(images, 1, (2, 3)), atol=1e-9)
    assert torch.allclose(apply(images, {"rotation": [180.0] * 4}), torch.rot90(images, 2, (2, 3)), atol=1e-9)
    square = torch.zeros((1, 1, 20, 20))
    square[:, :, 8:12, 8:12] = 1
    assert apply(square, {"scale": 2.0}).sum() == pytest.approx(64, rel=0.15)


def test_a_wide_image_is_turned_without_being_bent() -> None:
    wide = torch.zeros((1, 1, 16, 32))
    wide[:, :, 7:9, 12:20] = 1
    turned = apply(wide, {"rotation": 90.0})[0, 0]
    assert turned.sum() == pytest.approx(16, rel=0.02)
    assert turned[4:12, 15:17].sum() == pytest.approx(16, rel=0.02)


def test_brightness_and_contrast(images: Any) -> None:
    assert torch.allclose(apply(images, {"brightness": 1.5}), images * 1.5, atol=1e-12)
    flat = apply(images, {"contrast": 0.0})
    assert torch.allclose(flat, images.mean((1, 2, 3), keepdim=True).expand_as(flat))


def test_noise_is_of_the_item_and_not_of_its_batch(images: Any) -> None:
    ids = torch.tensor([9, 2**40, 3, 0])
    together = pixel_noise(ids, images, seed=1, epoch=2)
    assert torch.equal(pixel_noise(ids[1:2], images[1:2], seed=1, epoch=2), together[1:2])
    assert not torch.equal(pixel_noise(ids, images, seed=1, epoch=3), together)
    many = pixel_noise(torch.arange(64), torch.zeros(64, 3, 32, 32, dtype=torch.float64))
    assert abs(many.mean()) < 0.01
    assert abs(many.std() - 1) < 0.01
    assert abs(np.corrcoef(many[0].flatten(), many[1].flatten())[0, 1]) < 0.1
    noisy = apply(images, {"noise": [0.1] * 4}, ids=ids, seed=1, epoch=2)
    assert torch.allclose(noisy - images, together * 0.1, atol=1e-9)


def test_rows_columns_and_single_images_give_the_same(images: Any) -> None:
    ids = torch.arange(4)
    columns = apply(images, augmentation_tensors(ids, CONFIG), ids=ids)
    rows = apply(images, list(stream_augmentation_chain(4, CONFIG)), ids=ids)
    assert torch.equal(columns, rows)
    alone = apply(images[2:3], [gen_augmentation_params(2, CONFIG)], ids=ids[2:3])
    assert torch.allclose(alone, columns[2:3], atol=1e-12)


def test_gradients_flow_to_images_and_parameters() -> None:
    image = torch.rand((1, 1, 5, 5), dtype=torch.float64, requires_grad=True)
    values = [torch.tensor([v], dtype=torch.float64, requires_grad=True) for v in (7.0, 1.1, 0.05, 0.93, 1.2)]

    def run(image: Any, *values: Any) -> Any:
        names = ("rotation", "brightness", "noise", "scale", "contrast")
        return apply(image, dict(zip(names, values, strict=True)), ids=torch.tensor([3]))

    assert torch.autograd.gradcheck(run, (image, *values))


def test_what_cannot_be_applied_is_refused(images: Any) -> None:
    with pytest.raises(UsageError, match="shape"):
        apply(images[0], {})
    with pytest.raises(UsageError, match="floats"):
        apply((images * 255).byte(), {})
    with pytest.raises(UsageError, match="3 values for 4"):
        apply(images, {"scale": [1.0, 1.0, 1.0]})
    with pytest.raises(UsageError, match="ids of the items"):
        apply(images, {"noise": 0.1})
    with pytest.raises(UsageError, match="no parameters"):
        apply(images, 3)


def test_kornia_turns_the_same_way(images: Any) -> None:
    pytest.importorskip("kornia")
    params = {"rotation": [0.0, 90.0, 180.0, -90.0]}
    assert torch.allclose(apply_with_kornia(images, params), apply(images, params), atol=1e-6)


def test_a_dataset_carries_its_parameters_through_loader_processes() -> None:
    data = AugmentedDataset([i * 10 for i in range(9)], CONFIG, epoch=1)
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, collate_fn=collate)
    seen = [
        (item, int(number), rotation)
        for items, ids, params in loader
        for item, number, rotation in zip(items, ids, params["rotation"], strict=True)
    ]
    assert seen == [(i * 10, i, gen_augmentation_params(i, CONFIG, epoch=1)["rotation"]) for i in range(9)]


def test_an_iterable_is_read_once_over_ranks_and_loader_processes() -> None:
    seen = []
    for rank in range(2):
        data = AugmentedIterable("abcdefghijk", CONFIG, rank=rank, world_size=2, start_id=100)
        for batch in torch.utils.data.DataLoader(data, batch_size=None, num_workers=2 * rank):
            seen.append(batch)
    assert sorted((number, item) for item, number, _ in seen) == [(100 + i, c) for i, c in enumerate("abcdefghijk")]
    assert all(params == gen_augmentation_params(number, CONFIG) for _, number, params in seen)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_sampler_gives_every_item_once_whatever_happens_to_the_ranks(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 90))
    state = ElasticSampler(size, seed=3).state_dict()
    seen: list[int] = []
    while state["next_id"] < size:
        ranks, batch, steps = (data.draw(st.integers(1, 5)) for _ in range(3))
        samplers = [ElasticSampler(size, rank=r, world_size=ranks, seed=3) for r in range(ranks)]
        for sampler in samplers:
            sampler.load_state_dict(json.loads(json.dumps(state)))
            seen.extend(list(sampler)[: batch * steps])
            sampler.advance(ranks * batch * steps)
        state = samplers[-1].state_dict()
    assert seen == [] or sorted(seen) == list(range(size))
    assert len(seen) == size


def test_the_sampler_shuffles_by_epoch_and_refuses_a_foreign_state() -> None:
    sampler = ElasticSampler(100, seed=3)
    first = list(sampler)
    sampler.set_epoch(1)
    assert sorted(first) == sorted(sampler) == list(range(100))
    assert first != list(sampler) != list(range(100))
    assert list(ElasticSampler(5, shuffle=False, rank=1, world_size=2)) == [1, 3]
    for state in ({**sampler.state_dict(), "seed": 4}, {**sampler.state_dict(), "size": 99}, {"next_id": 1}, None):
        with pytest.raises(CorruptState):
            sampler.load_state_dict(state)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        ElasticSampler(5, rank=2, world_size=2)
