"""Parameters per second on one core, compared with other libraries in one process; missing ones are skipped and named.

python -m benchmarks.augment_peers [--samples 200000]

Only drawing parameters is timed, which every library exposes as a call of its own. The order of an epoch is measured
separately: MosaicML streaming reproduces it on any number of GPUs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine, print_table
from shardmill.augment import augmentation_table, gen_augmentation_params, get_preset, stream_augmentation_chain
from shardmill.bench import measure_time
from shardmill.core.random import make_key, permute

CONFIG = get_preset("moderate")
ROUNDS = 5
Draw = Callable[[int], Any]


def shardmill() -> Iterator[tuple[str, Draw, int]]:
    def columns(samples: int) -> None:
        for start in range(0, samples, 1 << 13):
            augmentation_table(np.arange(start, min(samples, start + (1 << 13)), dtype=np.uint64), CONFIG)

    def dicts(samples: int) -> None:
        for _ in stream_augmentation_chain(samples, CONFIG):
            pass

    def alone(samples: int) -> None:
        for i in range(samples):
            gen_augmentation_params(i, CONFIG)

    yield "shardmill, columns of five parameters", columns, 16
    yield "shardmill, a stream of dicts of five", dicts, 1
    yield "shardmill, item by item, a dict of five", alone, 1


def grain() -> Iterator[tuple[str, Draw, int]]:
    import grain as library

    ranges = [(name, p.a, p.b) for name, p in CONFIG.parameters.items()]

    def draw(_: int, rng: np.random.Generator) -> dict[str, float]:
        return {name: rng.uniform(low, high) for name, low, high in ranges}

    def items(samples: int) -> None:
        data = library.MapDataset.range(samples).seed(0).random_map(draw)
        for i in range(samples):
            data[i]

    yield f"grain {version('grain')}, random_map of five by index", items, 1


def torchvision() -> Iterator[tuple[str, Draw, int]]:
    import torch
    from torchvision.transforms import v2

    affine, jitter = v2.RandomAffine(30, scale=(0.8, 1.2)), v2.ColorJitter(brightness=0.2, contrast=0.3)
    image = [torch.zeros((3, 8, 8))]

    def draw(samples: int) -> None:
        for _ in range(samples):
            affine.make_params(image)
            jitter.make_params(image)

    yield f"torchvision {version('torchvision')}, make_params of RandomAffine and ColorJitter: four", draw, 1


def albumentations() -> Iterator[tuple[str, Draw, int]]:
    import albumentations as library

    affine = library.Affine(rotate=(-30, 30), scale=(0.8, 1.2))
    jitter = library.ColorJitter(brightness=(0.8, 1.2), contrast=(0.7, 1.3), saturation=(1, 1), hue=(0, 0))
    library.Compose([affine, jitter], seed=0)
    image = {"image": np.zeros((8, 8, 3), np.uint8)}
    shape = {"shape": (8, 8, 3)}

    def draw(samples: int) -> None:
        for _ in range(samples):
            for each in (affine, jitter):
                each.get_params()
                each.get_params_dependent_on_data(shape, image)

    name = f"albumentations {version('albumentations')}, get_params of Affine (and its matrix) and ColorJitter: four"
    yield name, draw, 1


def orders() -> Iterator[tuple[str, Draw, int]]:
    key = make_key(0, "augment/order")

    def ours(samples: int) -> None:
        for start in range(0, samples, 4096):
            permute(np.arange(start, min(samples, start + 4096)), samples, key, 0)

    yield "order of an epoch: shardmill, any part of it", ours, 4
    from streaming.base.shuffle import get_shuffle

    def theirs(samples: int) -> None:
        get_shuffle("py1e", np.full(samples // 1000, 1000, np.int64), 2, 9176, 0)

    yield f"order of an epoch: MosaicML streaming {version('mosaicml-streaming')}, py1e, the whole", theirs, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=200_000)
    samples = parser.parse_args().samples
    describe_machine()
    table, missing = [], []
    for peer in (shardmill, grain, torchvision, albumentations, orders):
        try:
            for name, draw, times in peer():
                draw(1000)
                found = []
                for _ in range(ROUNDS):
                    with measure_time() as timer:
                        draw(samples * times)
                    found.append((timer["cpu_seconds"], timer["elapsed_seconds"]))
                cpu, elapsed = (sorted(column)[ROUNDS // 2] for column in zip(*found, strict=True))
                table.append([name, *(f"{samples * times / seconds:,.0f}" for seconds in (cpu, elapsed))])
        except (ImportError, PackageNotFoundError) as error:
            missing.append(f"{peer.__name__}: {error}")
    print_table(["what", "samples / CPU s", "samples / s"], table)
    for each in missing:
        print(f"skipped: {each}")


if __name__ == "__main__":
    main()
