"""Classifiers of texts and of tokens: rows of ids in, logits out.

A classifier of texts whose head is described runs as `embed` runs: the fastest kernel of its encoder that agrees with
float32, and the head in float32. All other ones, classifiers of tokens, and pairs run in float32 as readers and
re-rankers do. Design: docs/design/kinds-of-models.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError
from shardmill.models import pair_networks
from shardmill.models.embedder import TextEmbedder
from shardmill.models.folder import ModelFolder, Pooling, read_transformer_config
from shardmill.models.kinds import TAGGER
from shardmill.models.labels import ModelLabels, read_labels
from shardmill.models.location import Location
from shardmill.models.networks.arrays import ArrayHead
from shardmill.models.networks.description import Head
from shardmill.models.networks.stored import Reals, StoredWeights
from shardmill.models.networks.unknown import NotDescribed
from shardmill.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from shardmill.models.pair_tokens import PairFrame, PairTokens
    from shardmill.models.pairs import PairModel

Rows = Sequence[NDArray[np.int32]]
# Tokens that a worker hands over at a time; the model cuts them into batches itself.
_TOGETHER = {"cpu": 8_192, "cuda": 131_072}
_POOLINGS = {"first": "cls", "mean": "mean"}


class Classifier:
    """A model with labels, opened once in each worker. `reads_pairs` is for pairs of texts, whatever its head is.

    Nothing is read before it is asked for. `batch_budget`, `padded` and `pairs` are known after `open`.
    """

    def __init__(
        self, model: str, *, max_tokens: int | None = None, reads_pairs: bool = False, adapter: str | None = None
    ) -> None:
        self._embedder = TextEmbedder(model, max_tokens=max_tokens, adapter=adapter)
        self._reads_pairs = reads_pairs
        self._head: ArrayHead | None = None
        self.pairs: PairModel | None = None
        self._pairs_budget = _TOGETHER["cpu"]

    @property
    def location(self) -> Location:
        """Where the model is."""
        return self._embedder.location

    @cached_property
    def labels(self) -> ModelLabels:
        """What its logits mean."""
        return read_labels(self.location.path)

    @cached_property
    def _described(self) -> tuple[Head, StoredWeights] | None:
        """The head that is computed here, after the encoder; None if the whole model is run."""
        if self._reads_pairs or self.labels.kind == TAGGER:
            return None
        try:
            network, weights = pair_networks.read_network(self.location.path, self.labels.kind)
        except NotDescribed:
            return None
        assert network.head is not None
        return network.head, weights

    @cached_property
    def _encoder(self) -> TextEmbedder:
        """The encoder, whose vectors are what the head is given."""
        path, pooling, width = self.location.path, "cls", 0
        if self._described is not None:
            head, weights = self._described
            pooling, width = _POOLINGS[head.of], weights.shape(head.steps[0][0].weight)[1]
        self._embedder.folder = ModelFolder(path, read_transformer_config(path), Pooling((pooling,)), (), width)
        return self._embedder

    @property
    def folder(self) -> ModelFolder:
        """The model's folder."""
        return self._encoder.folder

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, which cuts texts at the maximum length."""
        return self._encoder.tokenizer

    @cached_property
    def frame(self) -> PairFrame:
        """What the tokenizer puts around two texts."""
        from shardmill.models.backend import open_backend
        from shardmill.models.pair_tokens import find_frame

        return find_frame(open_backend(self.location.path, {}).tokenizer, self.location.name)

    def fingerprint(self) -> dict[str, str]:
        """What the labels depend on: the weights, and the configuration with the names of the labels."""
        _ = self.labels
        return self._encoder.fingerprint()

    def check_installed(self, kind: str) -> None:
        """Refuse a model for which a library is missing here, on a kind of device, `cpu` or `cuda`."""
        if self._described is not None:
            self._encoder.check_installed(kind)
        else:
            pair_networks.check_installed(self.location.path, self.labels.kind, kind)

    def open(self, device: Device) -> None:
        """Load the model on a device."""
        if self._described is not None:
            head, weights = self._described
            self._check_labels(weights.shape(head.steps[-1][0].weight)[0])
            self._head = ArrayHead(head, weights)
            self._encoder.open(device)
            return
        from shardmill.models.pairs import PairModel

        self.pairs = PairModel(self.location.path, self.labels.kind, device)
        self._pairs_budget = _TOGETHER[device.kind]

    def _check_labels(self, found: int) -> None:
        if found != len(self.labels.names):
            raise ModelError(
                f"{self.location.name} gives {found} numbers, but its config.json has {len(self.labels.names)} labels.",
                hint="Its weights do not belong to its config.json: fetch it again.",
            )

    def close(self) -> None:
        """Free the device."""
        self.pairs = self._head = None
        self._encoder.close()

    @property
    def batch_budget(self) -> int:
        return self._encoder.batch_budget if self._described is not None else self._pairs_budget

    @property
    def padded(self) -> bool:
        return self._encoder.padded if self._described is not None else False

    @property
    def notes(self) -> list[str]:
        """Sentences for the worker's record about how the labels were computed."""
        return self._encoder.notes if self.pairs is None else [f"Kernel: {self.pairs.note}."]

    @property
    def numerics(self) -> dict[str, str]:
        """The kernel and its precision, for the commits."""
        if self.pairs is None:
            return self._encoder.numerics
        return {"kernel": self.pairs.note.partition(" (")[0], "precision": "float32"}

    @property
    def device_clock(self) -> dict[str, float] | None:
        return self._encoder.device_clock if self.pairs is None else None

    def gpu_bytes(self, precise: bool) -> int | None:
        """The GPU memory to load the model."""
        return self._encoder.gpu_bytes(precise or self._described is None)

    def workers_per_gpu(self, cores: int) -> int:
        return self._encoder.workers_per_gpu(cores)

    def begin(self, rows: Rows) -> Callable[[], Reals]:
        """Start a batch of texts, and return a function that waits for their logits."""
        if self.pairs is None:
            fetch = self._encoder.begin(rows)
            return lambda: self._apply_head(fetch())
        logits = self.logits([self.pairs.pair(row.tolist(), [0] * len(row)) for row in rows])
        return lambda: logits

    def _apply_head(self, states: Reals) -> Reals:
        assert self._head is not None
        return self._head(states)

    def logits(self, pairs: Sequence[PairTokens]) -> Reals:
        """The logits of pairs, or of texts as the first of a pair."""
        assert self.pairs is not None
        if not pairs:
            return np.zeros((0, len(self.labels.names)), np.float32)
        made = self.pairs.logits(pairs)
        self._check_labels(made.shape[1])
        return made

    def token_logits(self, rows: Rows) -> list[Reals]:
        """The logits of each token of each text."""
        assert self.pairs is not None
        made = self.pairs.token_logits([self.pairs.pair(row.tolist(), [0] * len(row)) for row in rows])
        for each in made[:1]:
            self._check_labels(each.shape[1])
        return made

    def extras(self, gpu: bool) -> tuple[str, ...]:
        """The extras of shardmill that a worker's environment needs."""
        from shardmill.models.extras import extras_of_encoder, extras_of_pairs

        if self._described is not None:
            return extras_of_encoder(str(self.location.path), gpu)
        return extras_of_pairs(str(self.location.path), self.labels.kind, gpu)
