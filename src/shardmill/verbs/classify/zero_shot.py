"""Labels that the model was not trained for: does the sentence `This example is LABEL.` follow from the text?

As transformers' zero-shot-classification has it: a text and each sentence are one pair; one label of several is chosen
by the logits of entailment, and labels that do not exclude each other by entailment against contradiction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import ModelError
from shardmill.models.classifier import Classifier
from shardmill.models.labels import to_probabilities
from shardmill.models.networks.stored import Reals
from shardmill.models.pair_tokens import PairTokens

Ids = NDArray[np.int32]


class Hypotheses:
    """The sentences of all labels, tokenized."""

    def __init__(self, model: Classifier, labels: Sequence[str], sentence: str, *, several: bool) -> None:
        self._model, self._several = model, several
        made = model.tokenizer.encode([sentence.replace("{}", label) for label in labels])
        if made.bad:
            place, why = next(iter(made.bad.items()))
            raise ModelError(f"The label {labels[place]!r} cannot be read: {why}.", hint="Choose other --labels.")
        self._sentences = [model.tokenizer.strip(row) for row in made.rows]
        self._around = sum(map(len, model.frame.parts))
        limit = model.tokenizer.limit
        self._rooms = [None if limit is None else limit - self._around - len(each) for each in self._sentences]
        for label, room in zip(labels, self._rooms, strict=True):
            if room is not None and room < 1:
                raise ModelError(
                    f"The label {label!r} and its sentence leave no room for a text: the model takes {limit} tokens.",
                    hint="Shorten it, or --hypothesis.",
                )

    def bare(self, row: Ids) -> Ids:
        """A text's own ids."""
        return self._model.tokenizer.strip(row)

    def cost(self, length: int) -> int:
        """The tokens of all pairs of a text."""
        rooms = (length if room is None else min(length, room) for room in self._rooms)
        return sum(rooms) + sum(map(len, self._sentences)) + self._around * len(self._sentences)

    def cuts(self, length: int) -> bool:
        """Whether the text of some pair is cut."""
        return any(room is not None and length > room for room in self._rooms)

    def probabilities(self, texts: Sequence[Ids]) -> Reals:
        """A row per text, with the probability of each label."""
        logits = self._model.logits([pair for text in texts for pair in self._pairs(text)])
        logits = logits.reshape(len(texts), len(self._sentences), -1)
        labels = self._model.labels
        assert labels.entailment is not None
        if self._several or len(self._sentences) == 1:
            return to_probabilities(logits[:, :, [labels.contradiction, labels.entailment]], "softmax")[:, :, 1]
        return to_probabilities(logits[:, :, labels.entailment], "softmax")

    def _pairs(self, text: Ids) -> list[PairTokens]:
        pairs = self._model.pairs
        assert pairs is not None
        (before, between, after), (first, second) = self._model.frame.parts, self._model.frame.types
        made = []
        for sentence, room in zip(self._sentences, self._rooms, strict=True):
            head = [*before, *text[:room].tolist(), *between]
            tail = [*sentence.tolist(), *after]
            made.append(pairs.pair([*head, *tail], [first] * len(head) + [second] * len(tail)))
        return made
