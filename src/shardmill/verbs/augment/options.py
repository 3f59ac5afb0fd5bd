"""The options of `augment`."""

from __future__ import annotations

from shardmill.plan.execution import Detaching, Following, NamedEngineOptions, PlacingOnCpu
from shardmill.plan.options import SOURCE, CallOptions, option
from shardmill.plan.shared import Starting
from shardmill.verbs.augment.params import PresetParams


class Samples(CallOptions):
    """The items, which are numbers."""

    num_samples: str = option(
        ...,
        "Number of items: 250000, 250k, 100M.",
        group=SOURCE,
        metavar="N",
        common=True,
    )
    start_id: int = option(0, "The first item's id.", group=SOURCE, metavar="N", shown="0", common=True, ge=0)


class AugmentOptions(Samples, PresetParams, PlacingOnCpu, NamedEngineOptions, Detaching, Following, Starting):
    """What `augment` takes."""
