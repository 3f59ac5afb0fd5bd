"""Train on several processes, get killed, resume with another number: the same items get the same parameters.

    python examples/train_ddp.py --out demo/ddp --processes 2      # kill it at any time
    python examples/train_ddp.py --out demo/ddp --processes 3      # resumes

Each step writes its log before the checkpoint counts it. At the end `log.jsonl` equals that of an undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist

from shardmill.augment import AugmentationConfig, augmentation_tensors
from shardmill.augment.images import apply
from shardmill.augment.loading import ElasticSampler

ITEMS, EPOCHS, BATCH = 240, 2, 4
CONFIG = AugmentationConfig(seed=7)


def item(ids: torch.Tensor) -> torch.Tensor:
    """A stand-in for a dataset: an 8 x 8 image computed from its number."""
    return ((ids[:, None] * torch.arange(1, 65)) % 17 / 16).reshape(-1, 1, 8, 8)


def save(path: Path, state: object) -> None:
    staged = path.with_suffix(".part")
    torch.save(state, staged)
    staged.rename(path)


def train(rank: int, processes: int, out: Path, rendezvous: str, pause_s: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=processes)
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 1)
    sampler = ElasticSampler(ITEMS, rank=rank, world_size=processes, seed=CONFIG.seed)
    checkpoint = out / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        sampler.load_state_dict(state["sampler"])
    while sampler.epoch < EPOCHS:
        mine = iter(sampler)
        while sampler.done < ITEMS:
            ids = torch.tensor(list(islice(mine, BATCH)), dtype=torch.int64)
            step(model, ids, sampler, out)
            sampler.advance(BATCH * processes)
            dist.barrier()  # from here on the step counts on every rank
            if rank == 0:
                save(checkpoint, {"model": model.state_dict(), "sampler": sampler.state_dict()})
            time.sleep(pause_s)
        sampler.set_epoch(sampler.epoch + 1)
    dist.destroy_process_group()


def step(model: torch.nn.Module, ids: torch.Tensor, sampler: ElasticSampler, out: Path) -> None:
    """Train on one batch of this rank; an empty batch at the end of an epoch still takes part in the sum."""
    params = augmentation_tensors(ids, CONFIG, epoch=sampler.epoch)
    model.zero_grad()
    if len(ids):
        images = apply(item(ids), params, ids=ids, seed=CONFIG.seed, epoch=sampler.epoch)
        (model(images.flatten(1)) - images.mean(dim=(1, 2, 3))[:, None]).square().sum().backward()
    count = torch.tensor(float(len(ids)))
    dist.all_reduce(count)
    with torch.no_grad():
        for weight in model.parameters():
            grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
            dist.all_reduce(grad)
            weight -= 0.01 * grad / count
    rows = [
        {"epoch": sampler.epoch, "id": i, **{name: column[n].item() for name, column in params.items()}}
        for n, i in enumerate(ids.tolist())
    ]
    name = f"step.{sampler.epoch:03d}.{sampler.done:09d}.{sampler.rank:03d}.jsonl"
    (out / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def forget_the_uncounted(out: Path) -> None:
    """Delete the logs of steps that no checkpoint counts: these steps run again."""
    checkpoint = out / "checkpoint.pt"
    sampler = (
        torch.load(checkpoint, weights_only=True)["sampler"] if checkpoint.exists() else {"epoch": 0, "next_id": 0}
    )
    for path in out.glob("step.*.jsonl"):
        _, epoch, done, *_ = path.name.split(".")
        if (int(epoch), int(done)) >= (sampler["epoch"], sampler["next_id"]):
            path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--pause-s", type=float, default=0.0, help="Seconds to wait after each step.")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    forget_the_uncounted(options.out)
    rendezvous = options.out / f"rendezvous.{os.getpid()}"
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=train, args=(rank, options.processes, options.out, str(rendezvous), options.pause_s))
        for rank in range(options.processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    rendezvous.unlink(missing_ok=True)
    if any(worker.exitcode for worker in workers):
        raise SystemExit("A process failed; the same command resumes.")
    rows = [json.loads(line) for path in options.out.glob("step.*.jsonl") for line in path.read_text().splitlines()]
    rows.sort(key=lambda row: (row["epoch"], row["id"]))
    (options.out / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} items in {EPOCHS} epochs: {options.out / 'log.jsonl'}")


if __name__ == "__main__":
    main()
