"""Kernels that agreed with their reference on this machine, kept per user: the same trial would end the same way.

Only agreement is kept. A kernel that was refused is tried again, since it may have lacked memory.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from shardmill._version import __version__
from shardmill.core.cache import Cache
from shardmill.core.devices import cpu_features, cpu_model
from shardmill.models.fingerprint import digest_folder
from shardmill.models.folder import ModelFolder

_CACHE = Cache("agreed.json", "kernels", most=200)


def name_trial(folder: ModelFolder, **how: Any) -> str:
    """A name for a trial of a model: a digest of all that its outcome depends on, with this version and this CPU.

    `how` is the rest: the kernel and what it is compared with, the versions of the libraries, the rows of the trial.
    """
    on = {
        "model": digest_folder(folder.transformer),
        "options": folder.config_options,
        "pooling": asdict(folder.pooling),
        "version": __version__,
        "cpu": [cpu_model(), cpu_features()],
        **how,
    }
    return hashlib.sha256(json.dumps(on, sort_keys=True, default=str).encode()).hexdigest()


def has_agreed(trial: str) -> bool:
    """Whether a trial of this name has ended with agreement."""
    return trial in _CACHE.read()


def keep_agreement(trial: str, said: str) -> None:
    """Keep that a trial ended with agreement; `said` is for people who read the file."""
    _CACHE.put(trial, said)
