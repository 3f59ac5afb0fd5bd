"""Which libraries that run models are installed here: torch with what belongs to it, or OpenVINO. Imports neither."""

from __future__ import annotations

from importlib.util import find_spec

from shardmill.core.extras import missing_package

_TORCH = ("torch", "transformers", "safetensors")
_LIGHT = ("openvino", "tokenizers")


def has_torch() -> bool:
    """Whether torch is installed, with the libraries that models need beside it."""
    return all(map(find_spec, _TORCH))


def check_torch(extra: str = "embed") -> None:
    """Refuse what only torch can run, where it is not installed."""
    _check(_TORCH, extra)


def check_light() -> None:
    """Refuse what runs without torch, where OpenVINO is not installed either."""
    _check(_LIGHT, "light")


def _check(libraries: tuple[str, ...], extra: str) -> None:
    for library in libraries:
        if find_spec(library) is None:
            raise missing_package(library, extra)
