"""The options of the Ray engine. From the command line all values are text."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardmill.core.errors import SpecError
from shardmill.engines.base import check_options

_PLACEMENTS = ("DEFAULT", "SPREAD")
_NAMES = ("address", "num_gpus", "num_cpus", "resources", "placement", "placement_group", "runtime_env", "wait_s")


@dataclass(frozen=True, slots=True)
class RayOptions:
    """`num_gpus`, `num_cpus` and `resources` are per worker; None derives them from the cluster.

    `wait_s` is how long to wait for a node that can hold a worker, while none exists and no worker runs.
    """

    address: str = ""
    num_gpus: float | None = None
    num_cpus: float | None = None
    resources: dict[str, float] = field(default_factory=dict)
    placement: str = ""
    placement_group: str = ""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    wait_s: float | None = None


def read_options(given: Mapping[str, Any]) -> RayOptions:
    check_options("ray", given, _NAMES)
    num_gpus = _number("num_gpus", given.get("num_gpus"))
    if num_gpus is not None and num_gpus > 1:
        raise SpecError(f"num_gpus={num_gpus:g}: a worker runs on one GPU.", hint="Ask for more --workers instead.")
    placement = str(given.get("placement") or "").upper()
    if placement and placement not in _PLACEMENTS:
        raise SpecError(f"placement={placement}: Ray has no such strategy for actors.", hint="Use DEFAULT or SPREAD.")
    return RayOptions(
        address=str(given.get("address") or ""),
        num_gpus=num_gpus,
        num_cpus=_number("num_cpus", given.get("num_cpus")),
        resources=_resources(given.get("resources")),
        placement=placement,
        placement_group=str(given.get("placement_group") or ""),
        runtime_env=_runtime_env(given.get("runtime_env")),
        wait_s=_number("wait_s", given.get("wait_s")),
    )


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < float("inf"):
        raise SpecError(f"{name}={value}: this is not a number of 0 or more.")
    return number


def _resources(value: Any) -> dict[str, float]:
    """Read "tpu=1,disk=0.5", or a mapping."""
    if not value:
        return {}
    pairs = dict(part.partition("=")[::2] for part in value.split(",")) if isinstance(value, str) else dict(value)
    found = {str(name).strip(): _number(f"resources: {name}", amount) or 0.0 for name, amount in pairs.items()}
    for name in found:
        if name in ("", "CPU", "GPU"):
            raise SpecError(f"resources={value}: {name or 'a part without a name'}.", hint="Use num_cpus and num_gpus.")
    return found


def _runtime_env(value: Any) -> dict[str, Any]:
    """Read JSON, a JSON or TOML file, or a mapping."""
    if not value or isinstance(value, Mapping):
        return dict(value or {})
    text, toml, where = str(value), False, "runtime_env"
    try:
        if not text.lstrip().startswith("{"):
            where, toml = text, text.endswith(".toml")
            text = Path(text).read_text()
        found = tomllib.loads(text) if toml else json.loads(text)
    except OSError as error:
        raise SpecError(f"runtime_env={value}: {error.strerror}.", hint="Give JSON, or a JSON or TOML file.") from error
    except ValueError as error:
        raise SpecError(f"{where}: {error}.", hint='For example: {"env_vars": {"HF_HOME": "/data/hf"}}') from error
    if not isinstance(found, dict):
        raise SpecError(f"{where}: this is not a JSON object or TOML table.")
    return found
