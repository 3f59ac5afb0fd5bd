"""What a training run keeps of itself between two steps, as safetensors and JSON."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from shardmill.core.errors import CorruptState, StoreFull

FORMAT = 1
_STATE, _WEIGHTS, _OPTIMIZER, _BEST = "state.json", "weights.safetensors", "optimizer.safetensors", "best.safetensors"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Saved(Protocol):
    """A checkpoint as a task's context gives it."""

    def fetch(self, folder: Path) -> None: ...


class LoopContext(Protocol):
    """What the loop needs of a task's context."""

    def report(self, step: int, figures: Mapping[str, float], *, steps: int | None = None) -> None: ...
    def checkpoint(self) -> Saved | None: ...
    def keep(self, step: int, files: Mapping[str, Path | bytes]) -> None: ...
    def should_stop(self) -> bool: ...


@dataclass(slots=True)
class LoopState:
    """How far a run is: `order` is the sampler's; `curve` has the loss since the last evaluation, and its figure.

    `digest` is of everything that the weights depend on: model, data and options.
    """

    digest: str
    step: int = 0
    order: dict[str, int] = field(default_factory=dict)
    loss_sum: float = 0.0
    loss_steps: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    best_step: int | None = None
    format: int = FORMAT

    @property
    def best(self) -> float | None:
        """The best figure after training began."""
        return max((each["figure"] for each in self.curve if each["step"] and "figure" in each), default=None)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for files on their way to or from a store. That its disk is full is no fault of the item."""
    try:
        with TemporaryDirectory(prefix="shardmill-") as made:
            yield Path(made)
    except (OSError, SafetensorError) as error:
        full = (errno.ENOSPC, errno.EDQUOT)
        # safetensors has the number of the system's error in its text alone.
        if getattr(error, "errno", None) not in full and not any(f"(os error {each})" in str(error) for each in full):
            raise
        raise StoreFull(
            f"{gettempdir()}: no space left on the disk for a model on its way.",
            hint="Free some space, or set TMPDIR to another folder, and run the same command again: it resumes.",
        ) from error


def save(
    context: LoopContext, state: LoopState, weights: Mapping[str, Tensor], optimizer: Any, best: Mapping[str, Tensor]
) -> None:
    """Make all of it the item's checkpoint."""
    moments = {
        f"{name}.{kind}": value
        for name, weight in weights.items()
        for kind, value in optimizer.state.get(weight, {}).items()
    }
    with scratch_folder() as folder:
        files: dict[str, Path | bytes] = {_STATE: json.dumps(asdict(state)).encode()}
        for name, tensors in ((_WEIGHTS, weights), (_OPTIMIZER, moments), (_BEST, best)):
            if tensors:
                save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, folder / name)
                files[name] = folder / name
        context.keep(state.step, files)


def restore(
    saved: Saved, digest: str, weights: Mapping[str, Tensor], optimizer: Any
) -> tuple[LoopState, dict[str, Tensor]]:
    """Put a checkpoint's weights and moments in place; returns its state and its best weights."""
    with scratch_folder() as folder:
        saved.fetch(folder)
        try:
            values = json.loads((folder / _STATE).read_text())
            if values.get("format") != FORMAT or values.get("digest") != digest:
                raise CorruptState(
                    "The checkpoint is of another model, other data or other options.",
                    hint="Start over with --fresh, or choose another --out.",
                )
            state = LoopState(**values)
            found = load_file(folder / _WEIGHTS)
            moments = load_file(folder / _OPTIMIZER) if state.step else {}
            if found.keys() != weights.keys():
                raise KeyError("weights")
            # A fused step counts on the GPU, any other on the CPU.
            fused = bool(optimizer.defaults.get("fused"))
            with torch.no_grad():
                for name, weight in weights.items():
                    weight.copy_(found[name])
                    if f"{name}.step" in moments:
                        places = {"step": weight.device if fused else "cpu"}
                        optimizer.state[weight] = {
                            kind: moments[f"{name}.{kind}"].to(places.get(kind, weight.device)) for kind in _MOMENTS
                        }
            best = load_file(folder / _BEST) if (folder / _BEST).exists() else {}
        except (OSError, ValueError, TypeError, LookupError, RuntimeError, SafetensorError) as error:
            raise CorruptState(f"The checkpoint is damaged: {error}.", hint="Start over with --fresh.") from error
    return state, best
