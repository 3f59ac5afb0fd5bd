"""Augmentation parameters for every item of a range."""

from __future__ import annotations

from shardmill.plugins.base import Verb

VERB = Verb(
    name="augment",
    summary="Write augmentation parameters, which depend only on seed, id and epoch.",
    resumes=True,
    examples=("shardmill augment --num-samples 100M --preset moderate --out runs/parameters",),
    options="shardmill.verbs.augment.options:AugmentOptions",
    start="shardmill.verbs.augment.start:start",
    task="shardmill.verbs.augment.task:AugmentTask",
    extras=("augment",),
)
