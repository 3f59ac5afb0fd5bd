"""Augmentation parameters that depend only on the item and the epoch: the same on any number of GPUs.

config = get_preset("moderate")
gen_augmentation_params(42, config, epoch=3)  # {"rotation": -1.7, "brightness": 1.1, "noise": 0.02, …}

Design: docs/design/augmentation.md
"""

from shardmill.augment.config import PRESETS, AugmentationConfig, Parameter, choice, get_preset, log_uniform, uniform
from shardmill.augment.config import normal_ as normal
from shardmill.augment.files import load_augmentation_stream, resume_augmentation_stream, save_augmentation_stream
from shardmill.augment.params import (
    augmentation_table,
    augmentation_tensors,
    gen_augmentation_params,
    gen_distributed_augmentation_params,
)
from shardmill.augment.statistics import compute_statistics
from shardmill.augment.streams import (
    AugmentationStream,
    stream_augmentation_chain,
    stream_distributed_augmentation_chain,
)

__all__ = [
    "PRESETS",
    "AugmentationConfig",
    "AugmentationStream",
    "Parameter",
    "augmentation_table",
    "augmentation_tensors",
    "choice",
    "compute_statistics",
    "gen_augmentation_params",
    "gen_distributed_augmentation_params",
    "get_preset",
    "load_augmentation_stream",
    "log_uniform",
    "normal",
    "resume_augmentation_stream",
    "save_augmentation_stream",
    "stream_augmentation_chain",
    "stream_distributed_augmentation_chain",
    "uniform",
]
