"""Training steps of BERT-base on a GPU, beside sentence-transformers' trainer: the same items, batch and loss.

    python -m benchmarks.train_gpu FOLDER [--lengths mixed,equal] [--batch N] [--steps N] [--layers N] [--device D]

FOLDER has the tokenizer of a BERT model; the weights are random. Texts are pairs that share words. `equal` ones have
128 tokens; the lengths of `mixed` ones are lognormal around 64 tokens, at most 512. Both sides see the same batches in
the same order with the cached loss and a constant rate, in bfloat16 by autocast, without dropout. Each of the peer's
mini-batches is tried. A step is timed from its batch of texts to the updated weights; the first ones do not count. The
peer's trainer needs `pip install datasets accelerate` beside shardmill[bench].
"""

from __future__ import annotations

import argparse
import inspect
import json
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.devices import Device, cores, gpus
from shardmill.models.folder import read_folder
from shardmill.testing import FakeContext

EQUAL, MIDDLE, SPREAD, MOST = 128, 64, 0.8, 512
RATE = 2e-5
WARM_STEPS = 3
MINI_BATCHES = (64, 128, 256, 512)
MINI_TOKENS = (32768, 65536)


class TimedContext(FakeContext):
    """A context that notes when each step begins."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def should_stop(self) -> bool:
        self.times.append(time.perf_counter())
        return False


def make_model(tokenizer: Path, folder: Path, layers: int) -> Path:
    """A BERT with random weights and mean pooling, as sentence-transformers saves it."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.manual_seed(19)
    words = AutoTokenizer.from_pretrained(str(tokenizer))
    words.model_max_length = MOST
    config = BertConfig(
        vocab_size=len(words), num_hidden_layers=layers, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    plain = folder / "plain"
    BertModel(config).save_pretrained(plain)
    words.save_pretrained(plain)
    body = Transformer(str(plain), max_seq_length=MOST)
    SentenceTransformer(modules=[body, Pooling(config.hidden_size)], device="cpu").save_pretrained(
        str(folder / "model")
    )
    shutil.rmtree(plain)
    return folder / "model"


def make_pairs(tokenizer: Any, count: int, lengths: str, seed: int = 19) -> list[tuple[str, str]]:
    """Pairs of texts with these lengths in tokens; half of the shorter one's words are in the longer one."""
    draw = np.random.default_rng(seed)
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and word.isascii() and len(word) > 2)
    pairs = []
    for _ in range(count):
        sizes = np.full(2, EQUAL) if lengths == "equal" else np.exp(draw.normal(np.log(MIDDLE), SPREAD, 2))
        sizes = np.clip(sizes.astype(int), 4, MOST) - 2
        first, second = (draw.choice(words, size) for size in sizes)
        shared = min(sizes) // 2
        second[:shared] = first[:shared]
        pairs.append((" ".join(first), " ".join(second)))
    return pairs


def by_us(model: Path, pairs: list[tuple[str, str]], given: argparse.Namespace) -> tuple[float, list[float], int]:
    """Seconds a step, the loss of each step, and the bytes of memory."""
    import torch

    from shardmill.verbs.train.data import Pairs
    from shardmill.verbs.train.loop import TrainingLoop
    from shardmill.verbs.train.network import Network
    from shardmill.verbs.train.params import TrainOptions

    device = gpus()[0] if given.device == "cuda" else Device("cpu", "cpu", cores())
    options = TrainOptions(
        model=str(model), columns=("anchor", "positive"), batch=given.batch, learning_rate=RATE, warmup=0.0,
        schedule="constant", held_out=0.0, evaluate_every=1,
    )  # fmt: skip
    table = pa.table({"anchor": [a for a, _ in pairs], "positive": [b for _, b in pairs]})
    context = TimedContext()
    network = Network(read_folder(model), device, compiled=True)
    loop = TrainingLoop(network, Pairs(table, options, ("", "")), context, "")
    _reset()
    done = loop.run()
    assert done is not None
    times = [*context.times, time.perf_counter()]
    peak = _peak()
    del network, loop
    if given.device == "cuda":
        torch.cuda.empty_cache()
    return float(np.mean(np.diff(times)[WARM_STEPS:])), [each["loss"] for each in done.curve[1:]], peak


def by_them(
    model: Path, pairs: list[tuple[str, str]], given: argparse.Namespace, **mini: int
) -> tuple[float, list[float], int]:
    """The same by sentence-transformers' trainer; the fastest of its ways to load data counts."""
    import torch
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
    from torch.utils.data import SequentialSampler
    from transformers import TrainerCallback

    class Noted(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.times: list[float] = []

        def on_step_end(self, *said: Any, **more: Any) -> None:
            if given.device == "cuda":
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())

    def in_order(dataset: Any, batch_size: int, drop_last: bool, **more: Any) -> Any:
        return DefaultBatchSampler(SequentialSampler(dataset), batch_size=batch_size, drop_last=drop_last)

    noted = Noted()
    network = SentenceTransformer(str(model), device=given.device)
    data = Dataset.from_dict({"anchor": [a for a, _ in pairs], "positive": [b for _, b in pairs]})
    with TemporaryDirectory() as out:
        arguments = Arguments(
            out, num_train_epochs=1, per_device_train_batch_size=given.batch, learning_rate=RATE,
            lr_scheduler_type="constant", weight_decay=0.01, save_strategy="no",
            report_to=[], disable_tqdm=True, logging_steps=1, bf16=given.device == "cuda",
            use_cpu=given.device == "cpu", batch_sampler=in_order,
            dataloader_num_workers=4 if given.device == "cuda" else 0,
        )  # fmt: skip
        trainer = SentenceTransformerTrainer(
            model=network, args=arguments, train_dataset=data, callbacks=[noted],
            loss=CachedMultipleNegativesRankingLoss(network, **mini),
        )  # fmt: skip
        _reset()
        trainer.train()
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    peak = _peak()
    del trainer, network
    if given.device == "cuda":
        torch.cuda.empty_cache()
    return float(np.mean(np.diff(noted.times)[WARM_STEPS - 1 :])), losses, peak


def _reset() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peak() -> int:
    import torch

    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def _ways(given: argparse.Namespace) -> list[dict[str, int]]:
    """The mini-batches to try with the peer: by texts and, where it can, by tokens."""
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    ways: list[dict[str, int]] = [{"mini_batch_size": size} for size in MINI_BATCHES if size <= given.batch]
    if "mini_batch_num_tokens" in inspect.signature(CachedMultipleNegativesRankingLoss.__init__).parameters:
        ways += [{"mini_batch_num_tokens": tokens} for tokens in MINI_TOKENS]
    return ways[: given.ways]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lengths", default="mixed,equal")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--ways", type=int, help="Mini-batches of the peer to try, at most.")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    with TemporaryDirectory() as made:
        model = make_model(given.folder, Path(made), given.layers)
        for lengths in given.lengths.split(","):
            found += _compare(model, lengths, given)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(
        "\n| lengths | | s a step | pairs/s | tokens/s | peak GiB | loss, first and last step |\n" + "| --- " * 7 + "|"
    )
    for row in found:
        print(
            f"| {row['lengths']} | {row['by']} | {row['step_s']:.3f} | {given.batch / row['step_s']:,.0f} | "
            f"{row['tokens'] / row['step_s']:,.0f} | {row['peak'] / 2**30:.1f} | "
            f"{row['losses'][0]:.4f}, {row['losses'][-1]:.4f} |"
        )


def _compare(model: Path, lengths: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    from transformers import AutoTokenizer

    from shardmill.augment.loading import ElasticSampler

    tokenizer = AutoTokenizer.from_pretrained(str(model))
    pairs = make_pairs(tokenizer, given.batch * given.steps, lengths)
    tokens = sum(len(ids) for each in zip(*pairs, strict=True) for ids in tokenizer(list(each))["input_ids"])
    tried = []

    def note(by: str, found: tuple[float, list[float], int]) -> None:
        step_s, losses, peak = found
        said = {"lengths": lengths, "by": by, "step_s": step_s, "losses": losses, "peak": peak}
        tried.append({**said, "tokens": tokens / given.steps})
        print(f"{lengths}: {by}: {step_s:.3f} s a step", flush=True)

    note("shardmill", by_us(model, pairs, given))
    in_order = [pairs[i] for i in ElasticSampler(len(pairs), seed=0)]
    for way in _ways(given):
        name = ", ".join(f"{key} {value:,}" for key, value in way.items())
        try:
            note(f"sentence-transformers, {name}", by_them(model, in_order, given, **way))
        except RuntimeError as error:
            print(f"{lengths}: {name}: {str(error)[:80]}", flush=True)
    return [tried[0], *sorted(tried[1:], key=lambda row: float(row["step_s"]))]


if __name__ == "__main__":
    main()
