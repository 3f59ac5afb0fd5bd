"""The augmentation parameters of every item; an item's text is its id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardmill.augment.config import AugmentationConfig, get_preset
from shardmill.augment.params import augmentation_table
from shardmill.core.devices import Device
from shardmill.core.errors import SpecError
from shardmill.core.random import check_counter
from shardmill.tasks.base import Output, Prepared, Task
from shardmill.tasks.params import read_params
from shardmill.verbs.augment.params import PRESET, AugmentParams

_LAST = 1 << 64


class AugmentTask(Task):
    """Made from a preset's name, or from a config as returned by `AugmentationConfig.to_dict`."""

    batch_budget = 1 << 16
    padded = False

    def __init__(self, **params: Any) -> None:
        given = read_params(AugmentParams, params, "augment")
        if given.preset is not None and given.config is not None:
            raise SpecError("Both a preset and a config are given.", hint="Give only one of them.")
        check_counter(given.epoch)
        config = given.config
        made = AugmentationConfig.from_dict(config) if config is not None else get_preset(given.preset or PRESET)
        self.config, self.epoch = made.with_seed(given.seed), given.epoch
        columns = augmentation_table(np.zeros(1, np.uint64), self.config)
        self.output = pa.schema([pa.field(name, pa.array(column).type) for name, column in columns.items()])

    def fingerprint(self) -> dict[str, str]:
        plain = json.dumps(self.config.to_dict(), sort_keys=True).encode()
        return {"generator": "philox4x32-10", "config": hashlib.sha256(plain).hexdigest()[:16]}

    def open(self, device: Device) -> None:
        pass

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        digits = pa.array(texts, pa.string())
        try:
            # Arrow would also accept 0x10.
            usual = pc.all(pc.utf8_is_decimal(digits), skip_nulls=True).as_py() is not False
            ids = digits.cast(pa.uint64()).fill_null(0).to_numpy() if usual else None
        except pa.ArrowInvalid:
            ids = None
        bad: dict[int, str] = {}
        if ids is None:
            ids, bad = _one_by_one(texts)
        return Prepared(ids, np.ones(len(ids), np.int64), bad)

    def run(self, inputs: Sequence[int]) -> Output:
        columns = augmentation_table(np.asarray(inputs, np.uint64), self.config, epoch=self.epoch)
        return Output(pa.RecordBatch.from_arrays([pa.array(c) for c in columns.values()], schema=self.output))


def _one_by_one(texts: Sequence[str | None]) -> tuple[NDArray[np.uint64], dict[int, str]]:
    ids, bad = np.zeros(len(texts), np.uint64), {}
    for i, text in enumerate(texts):
        if text is None:
            continue
        if text.isdecimal() and int(text) < _LAST:
            ids[i] = int(text)
        else:
            bad[i] = f"{text[:40]!r} is not an item id, a number from 0 to 2**64 - 1"
    return ids, bad
