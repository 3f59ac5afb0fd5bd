"""Pairs without padding, in half precision on a GPU: back to back in one row of tokens, each attending to itself.

The layers run as in `packed`. The head of a re-ranker reads one token of each pair, or the mean of all of them, and is
computed in float32 from those alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shardmill.core.devices import Device
from shardmill.core.errors import DeviceOutOfMemory, ModelError
from shardmill.core.startup import COMPILING, doing
from shardmill.models.compiling import compile_layers, eager_if
from shardmill.models.encoder import Clock, first_run, memory_guard, quiet
from shardmill.models.folder import read_json
from shardmill.models.kinds import CAUSAL
from shardmill.models.memory import MemoryKey, WeighedFolder, free_cuda_bytes, identify_model, learn_model, measure_cuda
from shardmill.models.networks.stored import Reals
from shardmill.models.packed import ATTENTION, Pack, pool_packed, positions_of, register, running
from shardmill.models.pair_golden import MOST_DISTANT, PairNetwork, compute_alone, difference
from shardmill.models.pair_tokens import Ints, PairTokens, pad_pairs
from shardmill.models.paying import Paying
from shardmill.models.tokenizer import position_of_first
from shardmill.models.torch_pairs import TorchPairs, join_words, load_pairs
from shardmill.plan.sizing.memory import PACKED_BUDGET_TOKENS

# The longest pair tried before the work begins, for models that accept longer ones.
_PROBED_TOKENS = 2048


class PackedPairs:
    """A re-ranker without padding. `labels` numbers per pair; a causal one joins the logits of its `words`."""

    padded = False

    def __init__(self, folder: Path, kind: str, device: Device, words: Sequence[int] = ()) -> None:
        register()
        self._device = torch.device(f"cuda:{device.index}" if device.kind == "cuda" else "cpu")
        with quiet(), memory_guard():
            model = load_pairs(folder, kind, words, attention=ATTENTION)
            self._model, self._base = model.to(self._device), model.base_model
        config = model.config.to_dict()
        model.config.use_cache = False
        self._words, self._first = words, position_of_first(config)
        self._pad_id = config.get("pad_token_id")
        self._typed = (config.get("type_vocab_size") or 0) > 1
        self._takes_last = kind != CAUSAL and hasattr(model, "score")
        self._takes_mean = config.get("classifier_pooling") == "mean"
        self._pooler = getattr(self._base, "pooler", None)
        if self._pooler is not None:
            # It reads the first token of each pair, which the hook gives it.
            self._base.pooler = None
        self._at = torch.zeros(0, dtype=torch.int64)
        if kind != CAUSAL and not self._takes_last and not self._takes_mean:
            self._base.register_forward_hook(self._keep_first)
        self.longest, self.known_ids = 0, 0
        self.dtype, self._compiled = torch.float32, False
        self.clock = Clock()

    def cast(self, dtype: torch.dtype) -> None:
        """Compute the layers in `dtype` from now on, and the head in float32 as before."""
        with memory_guard():
            self._base.to(dtype)
        self.dtype = dtype

    def compile(self) -> None:
        """Compile the layers, at the next call."""
        compile_layers(self._base)
        self._compiled = True

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def name(self) -> str:
        return f"torch {self.precision}, packed{', compiled' if self._compiled else ''}"

    def __call__(self, ids: Ints, mask: Ints, types: Ints) -> Reals:
        lengths = mask.sum(axis=1).tolist()
        return self.begin([PairTokens(a[:n], b[:n]) for a, b, n in zip(ids, types, lengths, strict=True)])()

    def begin(self, pairs: Sequence[PairTokens]) -> Callable[[], Reals]:
        """Start a batch and return a function that waits for its logits. A GPU works in the background."""
        with memory_guard(), torch.inference_mode():
            if self._device.type != "cuda":
                found: Reals = self._logits(pairs).numpy()
                return lambda: found
            begun, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begun.record()
            logits = self._logits(pairs)
            received = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=True)
            received.copy_(logits, non_blocking=True)
            done.record()

        def fetch() -> Reals:
            with memory_guard():
                done.synchronize()
            self.clock.ran(begun, done)
            result: Reals = received.numpy()
            return result

        return fetch

    def _logits(self, pairs: Sequence[PairTokens]) -> Tensor:
        lengths = np.array([len(pair.ids) for pair in pairs])
        starts = np.concatenate([[0], np.cumsum(lengths)])
        ids = np.concatenate([pair.ids for pair in pairs]).astype(np.int32)
        positions = positions_of(ids, starts, lengths, self._first, self._pad_id or 0)
        last = starts[1:] - 1
        if self._takes_last and self._pad_id is not None:
            # As transformers does it: the last token that is no padding.
            at = np.where(ids != self._pad_id, np.arange(len(ids)), 0)
            last = np.maximum(np.maximum.reduceat(at, starts[:-1]), starts[:-1])
        given = {"input_ids": self._send(ids)[None], "position_ids": self._send(positions)[None]}
        given["attention_mask"] = torch.ones_like(given["input_ids"])
        if self._typed:
            given["token_type_ids"] = self._send(np.concatenate([pair.types for pair in pairs]))[None]
        pack = Pack(self._send(starts.astype(np.int32)), lengths, int(lengths.max()))
        with running(pack), eager_if(self._compiled and len(ids) < 2):
            return self._read(given, pack, self._send(last)).float()

    def _read(self, given: dict[str, Tensor], pack: Pack, last: Tensor) -> Tensor:
        """The logits of each pair of a pack."""
        model = self._model
        if self._words:
            return join_words(model(**given, logits_to_keep=last, return_dict=True).logits[0])
        if not (self._takes_last or self._takes_mean):
            self._at = pack.starts[:-1].long()
            return torch.as_tensor(model(**given, return_dict=True).logits)
        hidden = self._base(**given, return_dict=True).last_hidden_state[0]
        if self._takes_last:
            return torch.as_tensor(model.score(hidden[last].float()))
        means = pool_packed(hidden.float(), pack, ("mean",), 0)
        return torch.as_tensor(model.classifier(model.drop(model.head(means))))

    def _keep_first(self, module: Any, args: Any, output: Any) -> Any:
        """Give the head a batch of pairs of one token: the first, which is all that it reads."""
        first = output[0][0][self._at].float()[:, None]
        output["last_hidden_state"] = first
        if isinstance(self._pooler, torch.nn.Linear):
            output["pooler_output"] = self._base.pooler_activation(self._pooler(first[:, 0]))
        elif self._pooler is not None:
            output["pooler_output"] = self._pooler(first)
        return output

    def _send(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor


def choose_packed(
    folder: Path, kind: str, device: Device, plain: TorchPairs, golden: Sequence[PairTokens], words: Sequence[int] = ()
) -> tuple[PairNetwork, str]:
    """The first network with correct logits on a GPU: packed and compiled, packed, padded; and why not another."""
    expected, why = compute_alone(plain, golden, folder.name), list[str]()
    for how, make in _networks(folder, kind, device, plain, words, golden):
        try:
            with first_run(folder.name):
                network = make()
                seen = network(*pad_pairs(golden))
        except (ModelError, ImportError, LookupError, TypeError, ValueError, RuntimeError) as error:
            reason = error.message if isinstance(error, ModelError) else type(error).__name__
            why.append(f"cannot run {how}: {reason.rstrip('.')}")
            continue
        network.longest, network.known_ids = plain.longest, plain.known_ids
        most = max(difference(*both) for both in zip(seen, expected, strict=True))
        if most <= MOST_DISTANT[network.precision]:
            return network, "; ".join(why)
        why.append(f"{network.name} gave other logits, by {most:.1g}")
    return TorchPairs(folder, kind, device, words), "; ".join(why)


def _networks(
    folder: Path, kind: str, device: Device, plain: TorchPairs, words: Sequence[int], golden: Sequence[PairTokens]
) -> Iterator[tuple[str, Callable[[], PairNetwork]]]:
    modern = torch.cuda.get_device_capability() >= (8, 0)
    stored = read_json(folder / "config.json")
    bf16 = "bfloat16" in (stored.get("dtype"), stored.get("torch_dtype"))
    dtype = torch.bfloat16 if bf16 and modern else torch.float16
    paying = Paying.of(stored, folder, device)

    def packed() -> PackedPairs:
        network = PackedPairs(folder, kind, device, words)
        network.cast(dtype)
        return network

    def compiled() -> PackedPairs:
        network = packed()
        network.compile()
        with doing(COMPILING), paying.timed():
            network(*pad_pairs(golden))
        return network

    def padded() -> TorchPairs:
        plain.cast(dtype)
        return plain

    if modern and paying.compiling():
        yield "compiled", compiled
    if modern:
        yield "packed", packed
    yield "padded", padded


def find_budget(network: PackedPairs, reranker: WeighedFolder, device: Device, word: int) -> int:
    """The largest useful number of tokens of a batch that fits in memory, from the memory use of a few probes."""
    longest = min(network.longest, _PROBED_TOKENS)
    key = MemoryKey(
        device=device.name,
        dtype=str(network.dtype),
        kernel=f"{network.name}, pairs",
        model=identify_model(reranker),
        libraries=f"torch {torch.__version__}, transformers {version('transformers')}",
        longest=longest,
    )

    def run(rows: Sequence[NDArray[np.int32]]) -> object:
        return network.begin([PairTokens(row, np.zeros_like(row)) for row in rows])()

    try:
        model = learn_model(key, measure_cuda(run, token_id=word), padded=False, longest=longest)
    except DeviceOutOfMemory:
        return longest
    network.clock = Clock()
    return model.budget(free_cuda_bytes(device.sharing), longest=longest, most=PACKED_BUDGET_TOKENS, padded=False)
