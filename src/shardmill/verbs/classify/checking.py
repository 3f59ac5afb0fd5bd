"""Options of `classify` that do not fit its model: each is refused with what does."""

from __future__ import annotations

from shardmill.core.errors import SpecError
from shardmill.models.classifier import Classifier
from shardmill.models.kinds import TAGGER
from shardmill.verbs.classify.params import ClassifyParams

_SHOWN = 8


def check_options(given: ClassifyParams, model: Classifier) -> None:
    """Refuse options that this model does not obey."""
    name, labels = model.location.name, model.labels
    if given.all_labels and given.top_k is not None:
        raise SpecError("Both --all-labels and --top-k are given.", hint="Give one of them.")
    if given.labels:
        _check_zero_shot(given, model)
        return
    for option in ("hypothesis", "multi_label"):
        if getattr(given, option):
            flag = option.replace("_", "-")
            raise SpecError(f"--{flag} is given without --labels.", hint='Name them: --labels "invoice,complaint"')
    if labels.entailment is not None and len(labels.names) > 1:
        raise SpecError(
            f"{name} was trained for entailment: it reads a text and a sentence about it.",
            hint='Name the labels to choose from: --labels "invoice,complaint,other"',
        )
    if labels.kind == TAGGER or labels.scale == "number":
        made = "spans" if labels.kind == TAGGER else "a number"
        for flag, is_given in (("all-labels", given.all_labels), ("top-k", given.top_k is not None)):
            if is_given:
                raise SpecError(f"--{flag} is given, and {name} gives {made}.", hint="Leave it out.")
    several = labels.scale == "sigmoid" and len(labels.names) > 1 and labels.kind != TAGGER
    if given.threshold is not None and not several:
        raise SpecError(
            f"--threshold is for models whose texts may have several labels, and {name} is none.",
            hint='Every row has a score: take rows by it later, as with --where "score >= 0.8".',
        )


def _check_zero_shot(given: ClassifyParams, model: Classifier) -> None:
    name, labels = model.location.name, model.labels
    if labels.entailment is None or labels.kind == TAGGER or len(labels.names) < 2:
        own = ", ".join(labels.names[:_SHOWN]) + (" …" if len(labels.names) > _SHOWN else "")
        missing = [label for label in given.labels if label not in labels.names]
        said = f"has no label {missing[0]!r}" if missing else "has labels of its own, of which each text gets its own"
        raise SpecError(
            f"{name} {said}: its labels are {own}.",
            hint="Leave --labels out, or choose a model trained for entailment (NLI), which takes any labels.",
        )
    if len(set(given.labels)) < len(given.labels):
        twice = next(label for i, label in enumerate(given.labels) if label in given.labels[:i])
        raise SpecError(f"--labels names {twice!r} twice.", hint="Name each label once.")
    if given.hypothesis is not None and "{}" not in given.hypothesis:
        raise SpecError(
            "--hypothesis has no place for the label.", hint='Mark it: --hypothesis "This text is about {}."'
        )
    if given.threshold is not None and not (given.multi_label):
        raise SpecError(
            "--threshold is given, and each text gets one of the labels.",
            hint="Say --multi-label if a text may have several, or none.",
        )
