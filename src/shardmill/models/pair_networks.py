"""What computes a re-ranker or a reader: OpenVINO in float32 if it agrees with NumPy, else torch, else NumPy.

On a GPU `fast` asks for pairs without padding and in half precision, if the logits of golden pairs are right so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from shardmill.core.devices import Device
from shardmill.core.errors import MissingExtra, ModelError
from shardmill.models.folder import read_transformer_config
from shardmill.models.installed import check_light, check_torch, has_torch
from shardmill.models.kinds import CAUSAL, READER
from shardmill.models.networks.arrays import ArrayNetwork
from shardmill.models.networks.description import EncoderNetwork
from shardmill.models.networks.families import describe
from shardmill.models.networks.graph import build_graph
from shardmill.models.networks.stored import Reals, StoredWeights, read_weights
from shardmill.models.networks.unknown import NotDescribed
from shardmill.models.openvino import allocation_guard, compile_graph
from shardmill.models.pair_golden import MOST_DISTANT, PairNetwork, compute_alone, difference, golden_pairs
from shardmill.models.pair_tokens import Ints, PairTokenizer


def choose_network(
    folder: Path,
    kind: str,
    device: Device,
    tokens: Callable[[], PairTokenizer],
    words: Sequence[int] = (),
    *,
    fast: bool = False,
) -> tuple[PairNetwork, str]:
    """What computes a model on this device, and why it is not something faster that was tried."""
    with_torch, why = has_torch(), ""
    if device.kind == "cpu" and kind != CAUSAL and not (with_torch and device.reference):
        try:
            plain = PlainPairs(folder, kind)
            if device.reference:
                return plain, ""
            compiled, why = _try_openvino(plain, device, tokens())
            if compiled is not None or not with_torch:
                return compiled or plain, why
        except MissingExtra:
            if not with_torch:
                raise
        except NotDescribed as error:
            if not with_torch:
                raise error.explain(folder.name) from error
    check_torch()
    from shardmill.models.torch_pairs import TorchPairs

    model = TorchPairs(folder, kind, device, words)
    if fast and device.kind == "cuda" and not (device.precise or device.reference):
        from shardmill.models.packed_pairs import choose_packed

        limit = min(tokens().longest, model.longest)
        return choose_packed(folder, kind, device, model, golden_pairs(tokens(), limit), words)
    return model, why


def check_installed(folder: Path, kind: str, device: str) -> None:
    """Refuse a model for which a library is missing here, on a kind of device, `cpu` or `cuda`."""
    if device == "cuda" or kind == CAUSAL:
        check_torch()
    elif not has_torch():
        check_light()
        try:
            read_network(folder, kind)
        except NotDescribed as error:
            raise error.explain(folder.name) from error


def read_network(folder: Path, kind: str) -> tuple[EncoderNetwork, StoredWeights]:
    """The description of a folder's network, and its weights; NotDescribed tells why there is none."""
    weights = read_weights(folder)
    return describe(read_transformer_config(folder), weights, kind), weights


class PlainPairs:
    """A network in NumPy and float32."""

    name, precision, padded = "numpy float32", "float32", True

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.network, self.weights = read_network(folder, kind)
        self._check_head(kind)
        self.known_ids, self.longest = self.weights.shape(self.network.words)[0], self.network.longest
        if (positions := self.network.positions) is not None:
            first = 0 if positions.after is None else positions.after + 1
            self.longest = self.weights.shape(positions.weight)[0] - first
        # A table with one row is for models that do not tell the two texts apart.
        self.typed = bool(self.network.types) and self.weights.shape(self.network.types)[0] > 1
        self._run = ArrayNetwork(self.network, self.weights)

    def _check_head(self, kind: str) -> None:
        assert self.network.head is not None
        rows = self.weights.shape(self.network.head.steps[-1][0].weight)[0]
        if kind == READER and rows != 2:
            raise ModelError(
                f"The head of {self.folder.name} gives {rows} numbers for each token, not a start and an end.",
                hint="Choose another reader.",
            )

    def __call__(self, ids: Ints, mask: Ints, types: Ints) -> Reals:
        return self._run(ids, mask, types if self.typed else None)


class OpenVinoPairs:
    """The same network, compiled for `threads` cores; a pair has at most `longest` tokens."""

    name, precision, padded = "openvino f32", "float32", True

    def __init__(self, plain: PlainPairs, longest: int, threads: int) -> None:
        self.longest, self.known_ids, self._typed = longest, plain.known_ids, plain.typed
        graph = build_graph(plain.network, plain.weights, typed=plain.typed, limit=longest)
        self._compiled = compile_graph(graph, threads, streams=1, precision="f32")

    def __call__(self, ids: Ints, mask: Ints, types: Ints) -> Reals:
        with allocation_guard():
            found: Reals = self._compiled((ids, mask, types) if self._typed else (ids, mask))[0]
        return found


def _try_openvino(plain: PlainPairs, device: Device, tokens: PairTokenizer) -> tuple[OpenVinoPairs | None, str]:
    """OpenVINO if it computes golden pairs as NumPy does; else why not."""
    name, longest = plain.folder.name, min(plain.longest, tokens.longest)
    window = 2 * max(0, *(layer.attention.reach for layer in plain.network.layers))
    golden = golden_pairs(tokens, longest, window)
    expected = compute_alone(plain, golden, plain.folder.name)
    try:
        fast = OpenVinoPairs(plain, longest, device.threads)
        seen = fast(*tokens.pad(golden))
    except RuntimeError as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return None, f"OpenVINO cannot run {name}: {reason[0][:200]}"
    most = max(difference(*both) for both in zip(seen, expected, strict=True))
    if most <= MOST_DISTANT[fast.precision]:
        return fast, ""
    return None, f"OpenVINO computes {name} wrongly: a logit differs by {most:.1g}"
