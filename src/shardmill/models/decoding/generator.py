"""A model that generates, opened on a device: texts in, texts out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from shardmill.core.devices import Device
from shardmill.core.errors import DeviceLost, DeviceOutOfMemory, ModelError
from shardmill.core.startup import COMPILING, TRYING, doing
from shardmill.models.decoding.beams import BeamSeats, read_search
from shardmill.models.decoding.budget import free_bytes, plan_budget
from shardmill.models.decoding.choice import Rules
from shardmill.models.decoding.generation_config import UNSET, check_generation
from shardmill.models.decoding.generative import GenerativeFolder, check_size, read_generative
from shardmill.models.decoding.model import CausalDecoder, CrossDecoder, Decoder, find_shape
from shardmill.models.decoding.options import Asked, GenerationOptions
from shardmill.models.decoding.pages import PAGE_TOKENS
from shardmill.models.decoding.plain import PlainStream
from shardmill.models.decoding.prompt import Completion, Encoded, Prompt
from shardmill.models.decoding.schema import Grammar, Guide
from shardmill.models.decoding.seats import Seats
from shardmill.models.decoding.settings import least_new, least_tokens, read_rules
from shardmill.models.decoding.stream import PagedStream
from shardmill.models.decoding.texts import TextCodec
from shardmill.models.decoding.trial import is_right, paged_logits, plain_logits
from shardmill.models.encoder import first_run, load_config, load_weights, memory_guard, quiet
from shardmill.models.fingerprint import digest_folder
from shardmill.models.golden import GOLDEN, reach_past_window
from shardmill.models.paying import Paying
from shardmill.models.window import find_window

Key = TypeVar("Key")
_PLAIN_ROWS = {"cuda": 256, "cpu": 8}


class Generator:
    """An opened model. `name` says by which path it runs and why; `limit` is the longest prompt in tokens."""

    def __init__(
        self, folder: GenerativeFolder, codec: TextCodec, stream: PagedStream[Any] | PlainStream[Any], name: str
    ) -> None:
        self._folder, self._codec, self._stream, self.name = folder, codec, stream, name

    @classmethod
    def open(cls, root: Path, device: Device, options: GenerationOptions) -> Generator:
        """Load a model folder and choose how to run it: over pages where a trial gives the right logits."""
        folder = read_generative(root)
        check_generation(root.name, folder.generation, options)
        codec = TextCodec(folder, options)
        return _Opening(folder, device, options, codec).open()

    @property
    def limit(self) -> int:
        return self._codec.limit

    @property
    def fingerprint(self) -> dict[str, str]:
        return digest_folder(self._folder.root)

    @property
    def precision(self) -> str:
        """The type that the model computes in."""
        model = self._stream.model if isinstance(self._stream, PlainStream) else self._stream.seats.decoder.model
        return str(next(model.parameters()).dtype).removeprefix("torch.")

    def encode(self, asked: Sequence[Asked | None], items: Sequence[int] | None = None) -> Encoded:
        """Prompts of texts or messages; see `TextCodec.encode`. May run beside `stream`, in another thread."""
        return self._codec.encode(asked, items)

    def draw_again(self, prompts: Sequence[Prompt | None], answer: int) -> list[Prompt | None]:
        """The same prompts with the draws of a further answer."""
        return self._codec.draw_again(prompts, answer)

    def decode(self, ids: Sequence[int] | NDArray[np.int64]) -> str:
        """The text of some tokens."""
        return self._codec.decode(ids)

    def stream(
        self, prompts: Iterator[tuple[Key, Prompt] | None]
    ) -> Iterator[list[tuple[Key, Completion | DeviceOutOfMemory]]]:
        """Answers in groups, in no order, as rows end; a prompt that does not fit into memory gets an error.

        None in `prompts` says that none is ready just now, and the rows under way go on.
        """
        for group in self._stream.run(prompts):
            yield [
                (key, made if isinstance(made, DeviceOutOfMemory) else self._codec.finish(prompt, made))
                for key, prompt, made in group
            ]


@dataclass(slots=True)
class _Opening:
    """A model on its way to a device."""

    folder: GenerativeFolder
    device: Device
    options: GenerationOptions
    codec: TextCodec

    def open(self) -> Generator:
        dtypes = self._dtypes()
        where = self.device.name or "this device"
        check_size(self.folder, precision=_name(dtypes[0]), free_bytes=self._free(), where=where)
        with quiet():
            model = self._load(self._first_dtype(dtypes[0]))
        rules, others = read_rules(model.generation_config, self.options, crossed=self.folder.crossed)
        self.codec.least_tokens = least_tokens(model.generation_config)
        self.codec.least_new = least_new(model.generation_config)
        grammar = self._grammar(rules, model)
        why = [f"pages do not implement {', '.join(others)}"] if others else []
        if self.options.beams > 1 and (left_out := self._beside_beams(model.generation_config, rules)):
            why.append(f"{self.options.beams} beams with {left_out}")
        if not why:
            with doing(TRYING):
                decoder = self._try(model, dtypes, why)
            if decoder is not None:
                return self._paged(decoder, rules, grammar, why)
        del model
        return self._plain(dtypes[0], rules, grammar, why)

    def _beside_beams(self, config: Any, rules: Rules) -> str:
        """What beams over pages do not implement, of what is asked."""
        if self.codec.stops:
            return "stop strings"
        if rules.scored:
            return "log-probabilities"
        return "renormalize_logits" if config.renormalize_logits else ""

    def _dtypes(self) -> list[torch.dtype]:
        """The precisions to try, best first."""
        if self.device.kind != "cuda" or self.device.precise:
            return [torch.float32]
        modern = torch.cuda.get_device_capability() >= (8, 0)
        if not modern:
            return [torch.float16]
        # Weights that were trained in bfloat16 may not fit the range of float16.
        if "bfloat16" in self.folder.dtype:
            return [torch.bfloat16]
        # Encoders of these families look for infinities after each layer in float16, and the GPU waits for the answer.
        return [torch.bfloat16, torch.float16] if self.folder.crossed else [torch.float16, torch.bfloat16]

    def _free(self) -> int:
        return free_bytes(self.device) if self.device.kind == "cuda" else 4 * free_bytes(self.device)

    def _first_dtype(self, wanted: torch.dtype) -> torch.dtype:
        """float32, in which the trial's logits are expected, where that fits too."""
        return torch.float32 if 4 * self.folder.parameters < self._free() // 2 else wanted

    def _load(self, dtype: torch.dtype) -> Any:
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

        kind = AutoModelForSeq2SeqLM if self.folder.crossed else AutoModelForCausalLM
        config = load_config(self.folder.root, self.folder.config, {})
        model = load_weights(kind, self.folder.root, config, "sdpa", dtype)
        if self.codec.first is not None:
            model.generation_config.forced_bos_token_id = self.codec.first
        with memory_guard():
            return model.to(f"cuda:{self.device.index}" if self.device.kind == "cuda" else "cpu")

    def _grammar(self, rules: Rules, model: Any) -> Grammar | None:
        if self.options.schema is None:
            return None
        words = model.get_output_embeddings().weight.shape[0]
        return Grammar(self.options.schema, self.codec.tokenizer, words=words, ends=rules.ends)

    def _golden(self) -> list[NDArray[np.int32]]:
        found = [p.ids for p in self.codec.encode(GOLDEN).prompts if p is not None]
        if not found:
            raise ModelError(f"{self.folder.root.name} takes no text.", hint="Lower the number of new tokens.")
        return reach_past_window(found, find_window(self.folder.config), self.codec.limit)

    def _try(self, model: Any, dtypes: Sequence[torch.dtype], why: list[str]) -> Decoder | None:
        """The model over pages, in the first precision whose logits are right; None if there is none."""
        rows, crossed = self._golden(), self.folder.crossed
        with quiet(), first_run(self.folder.root.name):
            expected = plain_logits(model, rows, crossed=crossed)
        for i, dtype in enumerate(dtypes):
            try:
                with quiet(), memory_guard():
                    model = self._load(dtype) if i else model.to(dtype)
                    coarse = plain_logits(model, rows, crossed=crossed) if dtype != torch.float32 else None
                    decoder = (CrossDecoder if crossed else CausalDecoder)(model)
                    if not is_right(paged_logits(decoder, rows), expected, coarse, _name(dtype)):
                        why.append(f"pages gave different logits in {_name(dtype)}")
                        continue
                    return self._compiled(decoder, rows, expected, coarse, why)
            except (DeviceOutOfMemory, DeviceLost):
                raise
            except Exception as error:
                # Whatever a family's modules or a kernel raise: the plain path runs any model.
                said = error.message if isinstance(error, ModelError) else type(error).__name__
                why.append(f"cannot run over pages in {_name(dtype)}: {said.rstrip('.')}")
        return None

    def _compiled(
        self, decoder: Decoder, rows: list[NDArray[np.int32]], expected: Any, coarse: Any, why: list[str]
    ) -> Decoder:
        """The same with compiled layers, where there is enough work and they are right."""
        paying = Paying.of(self.folder.config, self.folder.root, self.device)
        if self.device.kind != "cuda" or not paying.compiling(new_tokens=self.options.max_new_tokens):
            return decoder
        try:
            decoder.compile()
            with doing(COMPILING), paying.timed():
                logits = paged_logits(decoder, rows)
            why.extend(filter(None, [paying.trouble]))
            if is_right(logits, expected, coarse, _name(decoder.dtype)):
                return decoder
            why.append("compiled layers gave different logits")
        except DeviceLost:
            raise
        except Exception as error:
            why.append(f"cannot run compiled: {type(error).__name__}")
        with quiet():
            return type(decoder)(self._load(decoder.dtype))

    def _paged(self, decoder: Decoder, rules: Rules, grammar: Grammar | None, why: list[str]) -> Generator:
        longest, most_new = self.codec.limit, self.options.max_new_tokens
        budget = plan_budget(
            free_bytes(self.device), self.device.kind, decoder.config, decoder.own,
            crossed=decoder.crossed, longest=longest, most_new=most_new,
        )  # fmt: skip
        guide = Guide(grammar, budget.rows) if grammar is not None else None
        beams = self.options.beams
        with memory_guard():
            if beams > 1:
                search = read_search(decoder.model.generation_config, beams)
                groups = max(1, budget.rows // beams)
                seats: Seats = BeamSeats(
                    decoder, rules, search, count=groups, pages=budget.pages, longest=longest, most_new=most_new
                )
            else:
                seats = Seats(
                    decoder, rules, count=budget.rows, pages=budget.pages, longest=longest, most_new=most_new,
                    guide=guide,
                )  # fmt: skip
        stream: PagedStream[Any] = PagedStream(seats, budget.read_tokens, self._stops())
        compiled = ", compiled" if decoder.compiled else ""
        rows = f"{seats.count:,} rows" + (f" of {beams} beams" if beams > 1 else "")
        name = f"torch {_name(decoder.dtype)}, pages{compiled}, {rows} side by side{_said(why)}"
        return Generator(self.folder, self.codec, stream, name)

    def _plain(self, dtype: torch.dtype, rules: Rules, grammar: Grammar | None, why: list[str]) -> Generator:
        if dtype == torch.float16 and torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0):
            dtype = torch.bfloat16
        with quiet():
            model = self._load(dtype)
        # What is missing in a config that `generate` is given, it takes from this one.
        model.generation_config.update(**dict.fromkeys(UNSET))
        tokens = min(self.codec.limit, 2048) + self.options.max_new_tokens
        token_bytes = (
            self._kept_bytes(model) * self.options.beams + 12 * model.config.get_text_config().vocab_size // tokens
        )
        rows = max(1, min(_PLAIN_ROWS[self.device.kind], free_bytes(self.device) // (2 * token_bytes * tokens)))
        tokenizer = self.codec.tokenizer
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (rules.ends or (0,))[0]
        stream: PlainStream[Any] = PlainStream(
            model, rules, int(pad), self.folder.crossed, self.options.beams, int(rows), grammar, self._stops()
        )
        self._try_plain(stream)
        name = f"torch {_name(dtype)}, transformers' generate, batches of {rows}{_said(why)}"
        return Generator(self.folder, self.codec, stream, name)

    def _kept_bytes(self, model: Any) -> int:
        """Bytes that a token keeps; of a family that counts its heads by another name, or has none, as many at most."""
        try:
            return find_shape(model, crossed=self.folder.crossed).page_bytes // PAGE_TOKENS
        except AttributeError:
            config = model.config.get_text_config(decoder=True)
            return 2 * int(config.num_hidden_layers * config.hidden_size * model.dtype.itemsize)

    def _try_plain(self, stream: PlainStream[Any]) -> None:
        """Write two tokens after a short text."""
        prompt = Prompt(self._golden()[0], min(2, self.options.max_new_tokens), np.full(2, 0.5, np.float32))
        with first_run(self.folder.root.name):
            list(stream.run(iter([(0, prompt)])))

    def _stops(self) -> Callable[[Any], bool] | None:
        return self.codec.reaches_stop if self.codec.stops else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _said(why: list[str]) -> str:
    return f" ({'; '.join(why)})" if why else ""
