"""The parameters of the `augment` task, which are options of its verb."""

from __future__ import annotations

from typing import Any

from shardmill.plan.options import FUNCTION, Params, option

PRESET, SEED, EPOCH = "moderate", 0, 0


class PresetParams(Params):
    """The parameters that people give."""

    preset: str | None = option(
        None, "mild, moderate or aggressive.", group=FUNCTION, metavar="PRESET", shown=PRESET, common=True
    )
    seed: int | None = option(None, "Random seed.", group=FUNCTION, metavar="SEED", shown=str(SEED), common=True)
    epoch: int = option(EPOCH, "Epoch number.", group=FUNCTION, metavar="N", shown=str(EPOCH), common=True)


class AugmentParams(PresetParams):
    """The parameters of the task. A `config`, as returned by `AugmentationConfig.to_dict`, takes the preset's place."""

    config: dict[str, Any] | None = None
