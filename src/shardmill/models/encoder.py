"""The torch encoder: ids -> vectors. transformers runs the model; pooling and later steps run here in float32."""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shardmill.core.errors import DeviceLost, DeviceOutOfMemory, ModelError, ShardmillError, free_frames
from shardmill.models.code import loading_options, may_run_code, refused_code
from shardmill.models.compiling import compile_whole, eager_if
from shardmill.models.folder import ModelFolder, Pooling
from shardmill.models.padding import padding_counts
from shardmill.models.sparse.folder import SpladePooling
from shardmill.models.steps import apply_step, load_step, pool
from shardmill.models.unloadable import explain_loading, is_quantised

_ENCODER_HALF = {"t5", "mt5", "umt5"}
_UNUSED_WEIGHTS = ("pooler.", "position_ids")
# Errors that name these may be of the device, and pass.
_LIBRARIES = ("CUDA", "cuDNN", "CUBLAS", "NCCL")


class Clock:
    """Seconds the GPU was busy with batches, and idle between them, measured by CUDA events."""

    def __init__(self) -> None:
        self.busy_s = self.idle_s = 0.0
        self._last: Any = None

    def ran(self, begun: Any, done: Any) -> None:
        self.busy_s += begun.elapsed_time(done) / 1000
        if self._last is not None:
            self.idle_s += max(0.0, self._last.elapsed_time(begun)) / 1000
        self._last = done


class Encoder:
    """A loaded model. Pooling leaves out the first `skip` tokens of each row, which belong to a prompt."""

    padded = True
    cuts = False

    def __init__(
        self,
        folder: ModelFolder,
        *,
        device: str,
        pad_id: int,
        attention: str = "sdpa",
        loaded: Encoder | None = None,
    ) -> None:
        """Load the weights, or take over those that another encoder has `loaded` and uses no more."""
        self._device = torch.device(device)
        self._pad_id = pad_id
        self._pooling = folder.pooling
        self._steps = folder.steps
        self._by_length = padding_counts(folder.config)
        self._model: Any
        self._words: Any
        self._layers: list[nn.Module]
        with quiet(), memory_guard():
            if loaded is not None:
                self._model, self._layers, self._words = loaded._model, loaded._layers, loaded._words
                self._model.set_attn_implementation(attention)
            else:
                self._model = load_transformer(folder, attention).to(self._device)
                self._layers = [load_step(step).to(self._device) for step in folder.steps]
                self._words = load_words(folder, self._device)
        self.dtype = torch.float32
        self.clock = Clock()
        self._compiled = False

    def cast(self, dtype: torch.dtype) -> None:
        """Compute the transformer in `dtype` from now on."""
        with memory_guard():
            self._model = self._model.to(dtype)
            self._words = None if self._words is None else self._words.to(dtype)
        self.dtype = dtype

    def compile(self) -> None:
        """Compile the model at its next call."""
        self._model = compile_whole(self._model)
        self._compiled = True

    def pooled_by(self, pooling: Pooling) -> Encoder:
        """The same weights with another pooling."""
        other = copy.copy(self)
        other._pooling = pooling
        return other

    def encode(self, rows: Sequence[NDArray[np.int32]], skip: int = 0) -> NDArray[np.float32]:
        """One vector per row."""
        return self.begin(rows, skip)()

    def begin(self, rows: Sequence[NDArray[np.int32]], skip: int = 0) -> Callable[[], NDArray[np.float32]]:
        """Start a batch and return a function that waits for its vectors. A GPU works in the background."""
        with memory_guard(), torch.inference_mode():
            if self._device.type != "cuda":
                return self.vectors(rows, skip).numpy
            begun, done = _event(), _event()
            begun.record()
            vectors = self.vectors(rows, skip)
            received = torch.empty(vectors.shape, dtype=vectors.dtype, pin_memory=True)
            received.copy_(vectors, non_blocking=True)
            done.record()

        def fetch() -> NDArray[np.float32]:
            with memory_guard():
                done.synchronize()
            self.clock.ran(begun, done)
            result: NDArray[np.float32] = received.numpy()
            return result

        return fetch

    def encode_beside(self, ids: NDArray[np.int32], attended: int) -> NDArray[np.float32]:
        """The vectors of all tokens of a row that attend to its first ones alone."""
        mask = torch.ones(1, len(ids), dtype=torch.int64)
        mask[:, attended:] = 0
        with memory_guard(), torch.inference_mode():
            sent = self._send(ids.astype(np.int64)[None])
            vectors: Tensor = (
                self._model(input_ids=sent, attention_mask=mask.to(self._device), return_dict=True)
                .last_hidden_state[0]
                .float()
            )
            for step, layer in zip(self._steps, self._layers, strict=True):
                vectors = apply_step(step, layer, vectors)
            made: NDArray[np.float32] = vectors.cpu().numpy()
        return made

    def modules(self) -> list[nn.Module]:
        """The transformer and the layers of the steps after pooling."""
        return [self._model, *self._layers]

    def vectors(
        self, rows: Sequence[NDArray[np.int32]], skip: int = 0, *, autocast: torch.dtype | None = None
    ) -> Tensor:
        """One vector per row, on the device, with gradients if torch records them.

        With `autocast` the transformer computes in that type, whatever the type of its weights.
        """
        with torch.autocast(self._device.type, autocast, enabled=autocast is not None):
            vectors = self._pooled(rows, skip)
        for step, layer in zip(self._steps, self._layers, strict=True):
            vectors = apply_step(step, layer, vectors)
        return vectors

    def backward(self, vectors: Tensor, upper: Tensor, rows: Sequence[NDArray[np.int32]]) -> None:
        """Add the gradients of the weights, given those of the vectors that these rows have."""
        vectors.backward(upper)  # type: ignore[no-untyped-call]

    def forget_gradients(self) -> None:
        for module in self.modules():
            module.zero_grad()

    @property
    def name(self) -> str:
        """A description of the kernel."""
        layout = "padded" if self.padded else "packed"
        compiled = ", compiled" if self._compiled else ""
        return f"torch {self.precision}, {layout}{compiled}"

    @property
    def precision(self) -> str:
        """The type that the transformer computes in: float32, float16 or bfloat16."""
        return str(self.dtype).removeprefix("torch.")

    def _pooled(self, rows: Sequence[NDArray[np.int32]], skip: int) -> Tensor:
        """Run the model over the rows and pool."""
        if not self._by_length:
            return self._pooled_padded(rows, skip)
        lengths = np.array([len(row) for row in rows])
        alike = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
        made: list[Tensor] = []
        for group in alike:
            # One row per text, or per token.
            made += self._pooled_padded([rows[int(i)] for i in group], skip).chunk(len(group))
        return torch.cat([made[i] for i in np.argsort(np.concatenate(alike))])

    def _pooled_padded(self, rows: Sequence[NDArray[np.int32]], skip: int) -> Tensor:
        """Run the model over the rows, padded to the longest, and pool."""
        if self._by_length and hasattr(self._model, "set_attention_type"):
            # BigBird leaves its blocks for good at the first text that is shorter than they are.
            self._model.set_attention_type("block_sparse")
        lengths = np.array([len(row) for row in rows])
        real = np.arange(lengths.max()) < lengths[:, None]
        ids = np.full(real.shape, self._pad_id, np.int64)
        ids[real] = np.concatenate(rows)
        mask = self._send(real.astype(np.int64))
        with eager_if(self._compiled and 1 in real.shape):
            hidden = self._model(input_ids=self._send(ids), attention_mask=mask, return_dict=True).last_hidden_state
        if self._words is not None:
            weights: Tensor = self._words(hidden[mask.bool()], lengths)
            return weights
        return pool(hidden, mask, self._pooling, 0 if self._pooling.include_prompt else skip)

    def _send(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor.to(self._device)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def memory_guard() -> Iterator[None]:
    """Turn torch's errors for lack of memory or a lost device into errors that the worker handles."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free_frames(error)
        torch.cuda.empty_cache()
        raise DeviceOutOfMemory("The batch does not fit in the GPU's memory.") from error
    except RuntimeError as error:
        if "DefaultCPUAllocator" in str(error):
            free_frames(error)
            raise DeviceOutOfMemory("The batch does not fit in memory.") from error
        if "CUDA error" in str(error):
            raise DeviceLost(f"The GPU cannot be used any more: {str(error).partition(chr(10))[0]}") from error
        raise


@contextlib.contextmanager
def first_run(name: str) -> Iterator[None]:
    """Run a model for the first time: what its code raises now, it would raise for every text in every worker."""
    try:
        with memory_guard():
            yield
    except (ShardmillError, MemoryError, AssertionError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        if isinstance(error, OSError) or any(library in said for library in _LIBRARIES):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ModelError(
            f"{name} cannot be run on texts: {type(error).__name__}: {said} ({Path(last.filename).name}, line "
            f"{last.lineno}).",
            hint="shardmill runs models of texts as transformers has them: choose another model, or another version of "
            "transformers.",
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' progress bars, log lines and warnings."""
    import transformers

    said: Any = transformers.utils.logging
    level, bars = said.get_verbosity(), said.is_progress_bar_enabled()
    said.set_verbosity(logging.CRITICAL)
    said.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        said.set_verbosity(level)
        if bars:
            said.enable_progress_bar()


def free_memory() -> None:
    """Give back the memory of models that are no longer used."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def load_transformer(folder: ModelFolder, attention: str) -> Any:
    """The transformer of a model folder."""
    from transformers import AutoModel, AutoModelForTextEncoding

    config = load_config(folder.transformer, folder.config, folder.config_options)
    encoder_only = config.model_type in _ENCODER_HALF
    if getattr(config, "is_encoder_decoder", False) and not encoder_only:
        raise ModelError(
            f"{config.model_type} is an encoder-decoder model, which writes texts.",
            hint="It fits `shardmill summarize --method generative`. Choose an embedding model.",
        )
    return load_weights(AutoModelForTextEncoding if encoder_only else AutoModel, folder.transformer, config, attention)


def load_config(path: Path, said: dict[str, Any], options: dict[str, Any]) -> Any:
    """transformers' own object for a folder's config.json, which holds what is `said`."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(path), **{**options, **loading_options(path)})
    except Exception as error:
        if said.get("auto_map") and not may_run_code(path):
            raise refused_code(path) from error
        raise ModelError(
            f"transformers does not know the model type {said['model_type']!r}.",
            hint="Choose another model, or upgrade transformers.",
        ) from error


def load_weights(kind: Any, path: Path, config: Any, attention: str, dtype: torch.dtype = torch.float32) -> Any:
    """A model of one of transformers' kinds, with every weight from its folder."""
    options = {
        **loading_options(path),
        "config": config,
        "use_safetensors": True,
        "output_loading_info": True,
        "dtype": dtype,
    }
    try:
        try:
            model, report = kind.from_pretrained(str(path), attn_implementation=attention, **options)
        except (ValueError, ImportError):
            model, report = kind.from_pretrained(str(path), attn_implementation="eager", **options)
    except RuntimeError as error:
        if is_quantised(path):
            raise explain_loading(path, error) from error
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise ModelError(
            f"{path.name} has weights whose shapes do not match its config.json.",
            hint="Fetch the model again.",
        ) from error
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise explain_loading(path, error) from error
    missing = sorted(k for k in report["missing_keys"] if not any(part in k for part in _UNUSED_WEIGHTS))
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(
            f"{path.name} lacks weights: {missing[0]}{others}.",
            hint="Its weights do not belong to its config.json: fetch it again.",
        )
    return model.eval()


def load_words(folder: ModelFolder, device: torch.device) -> Any:
    """The head of a masked language model, for weights of words; None for a model of dense vectors."""
    if not isinstance(folder.pooling, SpladePooling):
        return None
    from shardmill.models.sparse.words import WordHead

    return WordHead(folder).to(device).eval()
