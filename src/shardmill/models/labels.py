"""The labels of a classifier, and how its logits become probabilities, as transformers' pipelines have it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardmill.core.errors import ModelError
from shardmill.models.folder import read_transformer_config
from shardmill.models.kinds import TAGGER, check_classifies
from shardmill.models.networks.arrays import sigmoid
from shardmill.models.networks.stored import Reals

# One label of several; any number of them; or no label at all, but a number.
Scale = Literal["softmax", "sigmoid", "number"]


@dataclass(frozen=True, slots=True)
class ModelLabels:
    """The names of what a classifier gives, in the order of its logits, by `id2label` of its config.json."""

    kind: str
    names: tuple[str, ...]
    scale: Scale

    @property
    def entailment(self) -> int | None:
        """Which label says that a hypothesis follows; None if the model was not trained for that."""
        return next((i for i, name in enumerate(self.names) if name.lower().startswith("entail")), None)

    @property
    def contradiction(self) -> int:
        """Which label says that it does not: as transformers takes it, the first or the last, unless one is named."""
        lower = [name.lower() for name in self.names]
        named = [i for i, name in enumerate(lower) if name.startswith(("contra", "not"))]
        return named[0] if named else len(lower) - 1 if self.entailment == 0 else 0


def read_labels(folder: Path) -> ModelLabels:
    """The labels of a model folder; a ModelError says what else it is, if it is no classifier."""
    kind = check_classifies(folder)
    config = read_transformer_config(folder)
    names = _read_names(folder, config)
    if kind == TAGGER:
        return ModelLabels(kind, names, "softmax")
    problem = config.get("problem_type")
    if problem == "regression":
        if len(names) > 1:
            raise ModelError(
                f"{folder.name} gives {len(names)} numbers for a text, which are no labels.",
                hint="Choose a model that gives one number, or one with labels.",
            )
        return ModelLabels(kind, names, "number")
    return ModelLabels(
        kind, names, "sigmoid" if problem == "multi_label_classification" or len(names) == 1 else "softmax"
    )


def _read_names(folder: Path, config: dict[str, Any]) -> tuple[str, ...]:
    said = config.get("id2label")
    if not said:
        # transformers writes no labels if there are two.
        return tuple(f"LABEL_{i}" for i in range(int(config.get("num_labels") or 2)))
    try:
        names = {int(i): str(name) for i, name in said.items()}
    except (AttributeError, ValueError):
        names = {}
    if sorted(names) != list(range(len(said))):
        raise ModelError(
            f"id2label in {folder.name}/config.json does not number its labels from 0 on.",
            hint="Fetch the model again.",
        )
    return tuple(names[i] for i in range(len(names)))


def to_probabilities(logits: Reals, scale: Scale) -> Reals:
    """Logits of any shape -> probabilities along the last axis; numbers stay as they are."""
    if scale == "number":
        return logits
    wide = logits.astype(np.float64)
    if scale == "sigmoid":
        return sigmoid(wide).astype(np.float32)  # type: ignore[no-any-return]
    powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
    made: Reals = (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)
    return made
