"""Fine-tune an embedding model. All rows of the source are one item; its row has the figures, `model` the weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError, SpecError
from shardmill.core.extras import missing_package
from shardmill.models.code import names_of_code
from shardmill.models.folder import ModelFolder, read_folder, read_transformer_config
from shardmill.models.installed import check_torch
from shardmill.models.location import Location, check_bundled, find_model
from shardmill.models.retrieval.passages import read_record
from shardmill.tasks.context import TEXT, Context, Group, LongTask, Stopped
from shardmill.tasks.gang import GroupChanged, backend_of, process_group, run_together
from shardmill.tasks.params import read_params
from shardmill.verbs.train.params import TrainParams

if TYPE_CHECKING:
    from shardmill.verbs.train.data import Pairs
    from shardmill.verbs.train.loop import Outcome
    from shardmill.verbs.train.network import Network

# Compiling takes about 15 seconds and then saves a fifth of the time: on an H200 and of a BERT-base, 15 seconds of this
# many bytes of text, read once for each epoch.
_COMPILE_FROM_BYTES = 256 << 20
# Raised when the same items and parameters lead to other weights.
_REVISION = "1"


class TrainTask(LongTask):
    """The `train` task: pairs, triplets or labelled pairs in a Parquet file, whose place is the item's text."""

    output = pa.schema(
        [
            pa.field("steps", pa.int64()),
            pa.field("trained_on", pa.int64()),
            pa.field("held_out", pa.int64()),
            pa.field("unusable", pa.int64()),
            pa.field("loss", pa.float64()),
            pa.field("metric", pa.string()),
            pa.field("before", pa.float64()),
            pa.field("best", pa.float64()),
            pa.field("best_step", pa.int64()),
            pa.field("curve", pa.string()),
        ]
    )
    max_errors = "0"
    gang = True

    def __init__(self, **params: Any) -> None:
        self.options = read_params(TrainParams, params, "train")
        self.metrics = (self.options.metric,) if self.options.metric else ()
        self._device = Device("cpu", "cpu")

    @cached_property
    def _location(self) -> Location:
        return find_model(self.options.model)

    @cached_property
    def _folder(self) -> ModelFolder:
        folder = read_folder(self._location.path)
        if folder.static is not None:
            raise ModelError(
                f"{self._location.name} has static embeddings, which are not trained here.",
                hint="Choose a model with a transformer.",
            )
        read_transformer_config(folder.transformer)  # Refuses what has no safetensors.
        return folder

    @property
    def model_code(self) -> tuple[str, ...]:  # type: ignore[override]
        return names_of_code(self._location.path)

    def fingerprint(self) -> dict[str, str]:
        longest = self._folder.width
        too_long = [width for width in self.options.dims if width > longest]
        if too_long:
            raise SpecError(f"{self._location.name} has {longest} dimensions, not {too_long[0]}.", hint="Lower --dims.")
        if self.options.lora and self._location.adapter:
            raise SpecError(
                f"{self.options.model} is an adapter itself, beside whose factors no others can be trained.",
                hint="Pass its base model with --model, or leave out --lora.",
            )
        said = {"model": self._location.name, **self._location.digests(), "training": _REVISION}
        if self.options.hard_negatives:
            said["negatives"] = read_record(self.options.hard_negatives).digest
        return said

    def check_installed(self, kind: str) -> None:
        check_torch()

    def open(self, device: Device) -> None:
        try:
            import torch
        except ImportError as error:
            raise missing_package(error.name or "torch", "embed") from error
        check_bundled(self._location)
        self._device = device
        if device.kind == "cpu":
            torch.set_num_threads(device.threads)

    def work(self, item: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        from shardmill.models.encoder import memory_guard

        def train(group: Group) -> Mapping[str, Any]:
            # A GPU says that it is lost at any later call.
            with memory_guard():
                return self._train(item, context, group)

        return run_together(context, train, self._meet)

    def _meet(self, group: Group) -> AbstractContextManager[object]:
        if group.size == 1:
            return nullcontext()
        return process_group(group, backend_of(self._device))

    def _train(self, item: Mapping[str, Any], context: Context, group: Group) -> Mapping[str, Any]:
        """Train as one process of a group, from the last checkpoint on."""
        from shardmill.verbs.train.data import read_pairs
        from shardmill.verbs.train.group import Alone, ProcessGroup
        from shardmill.verbs.train.loop import TrainingLoop
        from shardmill.verbs.train.network import Network

        processes = ProcessGroup() if group.size > 1 else Alone()
        prompts = tuple(self._folder.prompt_text(self.options.prompts.get(name)) for name in self.options.columns)
        pairs = read_pairs(item[TEXT], self.options, prompts)
        network = Network(
            self._folder,
            self._device,
            max_tokens=self.options.max_tokens,
            seed=self.options.seed,
            compiled=pairs.table.nbytes * self.options.epochs >= _COMPILE_FROM_BYTES,
            lora=self.options.adapter,
        )
        self._check_prompts(network, prompts)
        if self.options.hard_negatives:
            from shardmill.verbs.train.negatives import mine_negatives

            weights = self.fingerprint()["weights"]
            kept = context.checkpoint()
            step = kept.step if kept is not None else 0
            network.on_part = lambda: context.report(step, {})
            pairs = mine_negatives(pairs, self.options.hard_negatives, weights, network, processes)
        done = TrainingLoop(network, pairs, context, self._digest(pairs), processes, group.is_current).run()
        if done is None:
            raise Stopped if context.should_stop() else GroupChanged
        if group.rank == 0:
            self._publish(network, pairs, done, context)
        return {
            "steps": done.steps,
            "trained_on": done.items,
            "held_out": done.held_out,
            "unusable": len(pairs.left_out),
            "loss": done.loss,
            "metric": done.metric,
            "before": done.before,
            "best": done.best,
            "best_step": done.best_step,
            "curve": json.dumps(done.curve),
        }

    def _check_prompts(self, network: Network, prompts: tuple[str, ...]) -> None:
        """Refuse a prompt after which no text fits: all texts of its column would be the same to the model."""
        for name, prompt in zip(self.options.columns, prompts, strict=True):
            limit = network.tokenizer.limit
            if prompt and limit is not None and network.tokenizer.encode(["a"], f"{prompt} ").truncated:
                raise SpecError(
                    f"The prompt of {name!r} fills all {limit} tokens of a text and leaves no room for it.",
                    hint="Shorten the --prompt, or raise --max-tokens up to the model's limit.",
                )

    def _digest(self, pairs: Pairs) -> str:
        """A digest of all that the weights depend on but the rows themselves, which the plan stands for."""
        # Checkpoints of versions without adapters stay valid.
        later = {name for name in ("lora", "lora_alpha") if getattr(self.options, name) is None}
        options = self.options.model_dump(mode="json", exclude={"checkpoint_every", *later})
        said = [self.fingerprint(), options, len(pairs)]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def _publish(self, network: Network, pairs: Pairs, done: Outcome, context: Context) -> None:
        import torch
        import transformers

        from shardmill.verbs.train.card import write_card
        from shardmill.verbs.train.lora import ADAPTER
        from shardmill.verbs.train.result import write_model
        from shardmill.verbs.train.state import scratch_folder

        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        origin = self._location
        # The result of a training run has the name of the run.
        parts = [part for part in self.options.model.split("/") if part.strip(".")]
        name = "/".join(parts[-2:]) if origin.name == "model" else origin.name
        card = write_card(pairs, done, name, versions, origin.hub)
        given = pairs.prompts if self.options.prompts else ()
        with scratch_folder() as folder:
            if network.adapter is not None:
                weights = origin.digests()["weights"]
                network.adapter.write(folder / ADAPTER, origin.hub or self.options.model, weights)
                network.adapter.merge()
            write_model(network, self._location.path, folder, given, card)
            context.publish(folder)
