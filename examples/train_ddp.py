"""Train with augmentation on several processes, get killed, resume with another number: the same items and images.

    python examples/train_ddp.py --out demo/ddp --workers 2:2      # kill it at any time
    python examples/train_ddp.py --out demo/ddp --workers 1:3      # resumes; two more join later

The batch is that of all processes together. The log of a step is in its checkpoint. At the end `log.jsonl`, which says
how each item was augmented in each epoch, equals that of an undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import torch.distributed as dist
from safetensors.torch import load, save

import shardmill
from shardmill.augment import AugmentationConfig, augmentation_tensors
from shardmill.augment.images import apply
from shardmill.augment.loading import ElasticSampler
from shardmill.core.devices import Device
from shardmill.tasks.context import Context, Group, LongTask, Stopped
from shardmill.tasks.gang import GroupChanged, run_together

ITEMS, EPOCHS, BATCH = 240, 5, 14
CONFIG = AugmentationConfig(seed=7)


def item(ids: torch.Tensor) -> torch.Tensor:
    """A stand-in for a dataset: an 8 x 8 image computed from its number."""
    return ((ids[:, None] * torch.arange(1, 65)) % 17 / 16).reshape(-1, 1, 8, 8)


class Training(LongTask):
    """One training run. Its workers form a group, whoever is lost or joins; the first of them keeps checkpoints."""

    output = pa.schema([pa.field("loss", pa.float64()), pa.field("log", pa.string())])
    max_errors = "0"
    gang = True

    def fingerprint(self) -> dict[str, str]:
        return {"version": "2"}

    def open(self, device: Device) -> None:
        torch.set_num_threads(1)

    def work(self, item: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
        return run_together(context, lambda group: self._train(context, group))

    def _train(self, context: Context, group: Group) -> Mapping[str, Any]:
        """One process of a group, from the last checkpoint on."""
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 1)
        order, log, step, loss = ElasticSampler(ITEMS, seed=CONFIG.seed), list[str](), 0, 0.0
        if (before := context.checkpoint()) is not None:
            model.load_state_dict(load(before.read("model.safetensors")))
            order.load_state_dict(json.loads(before.read("order.json")))
            log, step = before.read("log.jsonl").decode().splitlines(), before.step
        while order.done < ITEMS or order.epoch + 1 < EPOCHS:
            if order.done == ITEMS:
                order.set_epoch(order.epoch + 1)
            ids = list(islice(order, BATCH))
            loss, rows = self._step(model, ids, order.epoch, group)
            order.advance(len(ids))
            step, log = step + 1, log + rows
            if group.rank == 0:
                context.report(step, {"loss": loss})
                files = {"model.safetensors": save(model.state_dict()), "log.jsonl": "\n".join(log).encode()}
                context.keep(step, {**files, "order.json": json.dumps(order.state_dict()).encode()})
            self._leave_if_asked(context, group)
        return {"loss": loss, "log": "\n".join(log)}

    def _step(self, model: torch.nn.Module, batch: list[int], epoch: int, group: Group) -> tuple[float, list[str]]:
        """Train on this process's part of a batch; all processes get the log of the whole batch."""
        ids = torch.tensor(batch[group.rank :: group.size], dtype=torch.int64)
        params = augmentation_tensors(ids, CONFIG, epoch=epoch)
        weights = list(model.parameters())
        error, slopes = torch.zeros(()), tuple(map(torch.zeros_like, weights))
        if len(ids):  # A process without items, as at the end of an epoch, still takes part in the sum.
            images = apply(item(ids), params, ids=ids, seed=CONFIG.seed, epoch=epoch)
            misses = model(images.flatten(1)) - images.mean(dim=(1, 2, 3))[:, None]
            error = misses.square().sum() / len(batch)
            slopes = torch.autograd.grad(error, weights)
        with torch.no_grad():
            for weight, slope in zip(weights, slopes, strict=True):
                dist.all_reduce(slope)
                weight -= 0.01 * slope
        columns = {name: column.tolist() for name, column in params.items()}
        mine = [
            {"epoch": epoch, "id": i, **{name: column[n] for name, column in columns.items()}}
            for n, i in enumerate(ids.tolist())
        ]
        parts: list[Any] = [None] * group.size
        dist.all_gather_object(parts, (error.item(), mine))
        rows = sorted((row for _, rows in parts for row in rows), key=lambda row: batch.index(row["id"]))
        return sum(loss for loss, _ in parts), [json.dumps(row) for row in rows]

    def _leave_if_asked(self, context: Context, group: Group) -> None:
        """All leave at the same step, after its checkpoint."""
        ends = torch.tensor([context.should_stop(), not group.is_current()], dtype=torch.int64)
        dist.all_reduce(ends)
        if ends.any():
            raise Stopped if context.should_stop() else GroupChanged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", default="2", help="How many processes: N, or MIN:MAX to begin with MIN of them.")
    options = parser.parse_args()
    # Workers import this file.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.getenv("PYTHONPATH")]))
    work = {"items": 1, "task": "train_ddp:Training"}
    execution = {"workers": options.workers, "device": "cpu", "lease_s": 10}
    run = shardmill.start(shardmill.make_spec(work, execution), options.out)
    (row,) = run.table().to_pylist()
    log = options.out.with_suffix(".log.jsonl")
    log.write_text(row["log"] + "\n")
    print(f"{len(row['log'].splitlines())} items in {EPOCHS} epochs, loss {row['loss']:.4f}: {log}")


if __name__ == "__main__":
    main()
