"""The loop: it learns, resumes to the bit, trains the same on any number of processes, and refuses what is wrong."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardmill.core.devices import Device
from shardmill.core.errors import CorruptState, DeviceOutOfMemory, TaskError
from tests.support.forking import Forking
from tests.support.libraries import needed
from tests.support.training import (
    CPU,
    GPU,
    TRAINING,
    MemoryContext,
    a_model,
    a_network,
    pairs_of,
    share_gpu,
    topic_pairs,
)

torch = needed("torch")
from shardmill.verbs.train.batch import StepBatch  # noqa: E402

ROWS = topic_pairs(60)
USUAL: dict[str, Any] = {"epochs": 3, "learning_rate": 1e-3, "held_out": 0.2, "split_by": "title", "evaluate_every": 5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_model(tmp_path_factory.mktemp("model"))


def loop(folder: Path, context: Any, group: Any = None, rows: Any = ROWS, device: Device = CPU, **options: Any) -> Any:
    from shardmill.verbs.train.loop import TrainingLoop

    torch.set_num_threads(1)
    return TrainingLoop(
        a_network(folder, device), pairs_of(rows, folder, **{**USUAL, **options}), context, "digest", group
    )


def _start(target: Any, count: int, folder: Path, place: Path, what: Any) -> tuple[Any, list[Any]]:
    """Processes of a group, and the queue to which each says what it saw."""
    server = Forking(TRAINING)
    queue = server.Queue()
    processes = [server.Process(target=target, args=(rank, folder, place, queue, what)) for rank in range(count)]
    for each in processes:
        each.start()
    return queue, processes


def weights_of(made: Any) -> dict[str, Any]:
    return {name: weight.detach().clone() for name, weight in made.network.weights().items()}


def test_the_loss_falls_and_the_figure_rises(folder: Path) -> None:
    context = MemoryContext()
    done = loop(folder, context, epochs=8).run()
    losses = [each["loss"] for each in done.curve if "loss" in each]
    assert losses[-1] < 0.7 * losses[0]
    assert done.best > done.before
    assert done.items + done.held_out == len(ROWS)
    assert done.best == max(each["figure"] for each in done.curve[1:])
    measured = [figures["mrr@10"] for _, figures in context.reports if "mrr@10" in figures]
    assert measured == [each["figure"] for each in done.curve]


def test_no_group_is_on_both_sides(folder: Path) -> None:
    learnt, held = pairs_of(ROWS, folder, **USUAL).split()
    titles = [{ROWS[i]["title"] for i in part} for part in (learnt, held)]
    assert not titles[0] & titles[1]
    assert all(titles)
    assert sorted([*learnt, *held]) == list(range(len(ROWS)))


def test_the_split_depends_on_seed_and_group_alone(folder: Path) -> None:
    options = {**USUAL, "split_by": "title"}
    _, held = pairs_of(ROWS, folder, **options).split()
    _, again = pairs_of(ROWS[::-1], folder, **options).split()
    assert {ROWS[i]["title"] for i in held} == {ROWS[::-1][i]["title"] for i in again}


DEVICES = [pytest.param(CPU, id="cpu"), pytest.param(GPU, id="gpu", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("stop_at", [1, 7, 12])
def test_a_resumed_run_is_equal_to_the_bit(folder: Path, stop_at: int) -> None:
    whole = loop(folder, MemoryContext())
    wanted = whole.run()
    context = MemoryContext(stop_at=stop_at)
    assert loop(folder, context).run() is None
    assert context.kept is not None
    assert context.kept.step == stop_at
    context.stop_at = None
    resumed = loop(folder, context)
    assert resumed.run() == wanted
    for name, weight in weights_of(whole).items():
        assert torch.equal(weight, weights_of(resumed)[name]), name


@pytest.mark.parametrize("before", DEVICES)
@pytest.mark.parametrize("after", DEVICES)
def test_a_run_resumes_on_any_device(folder: Path, before: Any, after: Any) -> None:
    whole = loop(folder, MemoryContext())
    wanted = whole.run()
    context = MemoryContext(stop_at=7)
    assert loop(folder, context, device=before).run() is None
    context.stop_at = None
    resumed = loop(folder, context, device=after)
    done = resumed.run()
    assert [each["step"] for each in done.curve] == [each["step"] for each in wanted.curve]
    for name, weight in weights_of(whole).items():
        torch.testing.assert_close(weights_of(resumed)[name].cpu(), weight, atol=1e-3, rtol=1e-3)


def test_a_checkpoint_of_another_model_is_refused(folder: Path) -> None:
    context = MemoryContext(stop_at=2)
    loop(folder, context).run()
    made = loop(folder, context)
    made.state.digest = "another"
    with pytest.raises(CorruptState, match="another model"):
        made.run()


def test_a_damaged_checkpoint_is_refused(folder: Path) -> None:
    context = MemoryContext(stop_at=2)
    loop(folder, context).run()
    assert context.kept is not None
    files = {**context.kept.files, "weights.safetensors": context.kept.files["weights.safetensors"][:100]}
    context.kept = replace(context.kept, files=files)
    with pytest.raises(CorruptState, match="damaged"):
        loop(folder, context).run()


def test_a_loss_that_is_not_a_number_names_step_and_items(folder: Path) -> None:
    made = loop(folder, MemoryContext())
    with torch.no_grad():
        next(iter(made.network.weights().values())).fill_(float("nan"))
    with pytest.raises(TaskError, match=r"loss is nan at step 1 of \d+ \(items \d+"):
        made.run()


def _cramp(network: Any, where: str) -> list[int]:
    """Refuse mini-batches of more than 100 tokens on one of the two ways; returns how many texts each of them had."""
    vectors, backward, refused = network._encoder.vectors, network._encoder.backward, list[int]()

    def refuse_large(rows: Any) -> None:
        if torch.is_grad_enabled() and sum(map(len, rows)) > 100:
            refused.append(len(rows))
            raise DeviceOutOfMemory("The batch does not fit in memory.")

    def forward(rows: Any, *given: Any, **more: Any) -> Any:
        refuse_large(rows)
        return vectors(rows, *given, **more)

    def back(found: Any, gradients: Any, rows: Any) -> Any:
        refuse_large(rows)
        return backward(found, gradients, rows)

    if where == "forward":
        network._encoder.vectors = forward
    else:
        network._encoder.backward = back
    network._mini_tokens = 2048
    return refused


def _losses(done: Any) -> list[float]:
    return [each["loss"] for each in done.curve if "loss" in each]


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_step_that_does_not_fit_in_memory_is_begun_again_with_less(
    folder: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = loop(folder, MemoryContext(), epochs=1).run()
    made = loop(folder, MemoryContext(), epochs=1)
    monkeypatch.setattr("shardmill.verbs.train.network._LEAST_MINI_TOKENS", 16)
    refused = _cramp(made.network, where)
    done = made.run()
    assert refused
    np.testing.assert_allclose(_losses(done), _losses(wanted), atol=1e-4)


def test_what_a_step_without_enough_memory_used_is_freed_before_it_is_begun_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = loop(folder, MemoryContext(), epochs=1, held_out=0.0)
    made.network._mini_tokens = 64
    vectors, kept, alive = made.network._encoder.vectors, list[Any](), list[int]()

    def fail_third(rows: Any, *given: Any, **more: Any) -> Any:
        if len(kept) == 2 and not alive:
            alive.append(-1)
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        if alive == [-1]:
            alive[0] = sum(each() is not None for each in kept)
        found = vectors(rows, *given, **more)
        kept.append(weakref.ref(found))
        return found

    monkeypatch.setattr(made.network._encoder, "vectors", fail_third)
    gc.disable()
    try:
        made.run()
    finally:
        gc.enable()
    assert alive == [0]


def test_a_loss_that_does_not_fit_in_memory_is_computed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = loop(folder, MemoryContext(), epochs=1).run()
    loss, refused = StepBatch.loss, list[int]()

    def refuse_once(self: StepBatch, *given: Any) -> Any:
        if not refused:
            refused.append(1)
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        return loss(self, *given)

    monkeypatch.setattr(StepBatch, "loss", refuse_once)
    done = loop(folder, MemoryContext(), epochs=1).run()
    assert refused
    np.testing.assert_allclose(_losses(done), _losses(wanted), atol=1e-4)


def _take_part_cramped(rank: int, folder: Path, place: Path, queue: Any, where: str) -> None:
    from torch import distributed

    from shardmill.verbs.train import network
    from shardmill.verbs.train.group import ProcessGroup

    distributed.init_process_group("gloo", init_method=f"file://{place}/group", rank=rank, world_size=2)
    network._LEAST_MINI_TOKENS = 16
    made = loop(folder, MemoryContext(), ProcessGroup(), epochs=1)
    refused = _cramp(made.network, where) if rank else []
    losses = _losses(made.run())
    queue.put((rank, len(refused), losses))
    distributed.destroy_process_group()


def test_a_process_of_a_group_that_has_less_memory_takes_smaller_mini_batches(folder: Path, tmp_path: Path) -> None:
    wanted = _losses(loop(folder, MemoryContext(), epochs=1).run())
    queue, processes = _start(_take_part_cramped, 2, folder, tmp_path, "backward")
    told = sorted(queue.get(timeout=500) for _ in range(2))
    for each in processes:
        each.join()
    assert told[1][1]
    for _, _, losses in told:
        np.testing.assert_allclose(losses, wanted, atol=1e-4)


def test_an_evaluation_that_does_not_fit_in_memory_takes_smaller_mini_batches(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = a_network(folder, CPU)
    texts = [("", f"river number {n} and so on") for n in range(40)]
    wanted, vectors = network.embed(texts), network._encoder.vectors
    monkeypatch.setattr("shardmill.verbs.train.network._LEAST_MINI_TOKENS", 16)

    def cramped(rows: Any, *given: Any, **more: Any) -> Any:
        if sum(map(len, rows)) > 100:
            raise DeviceOutOfMemory("The batch does not fit in memory.")
        return vectors(rows, *given, **more)

    monkeypatch.setattr(network._encoder, "vectors", cramped)
    torch.testing.assert_close(network.embed(texts), wanted, atol=1e-5, rtol=1e-5)


def test_a_text_that_never_fits_ends_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = loop(folder, MemoryContext(), epochs=1, held_out=0.0)

    def refuse(*given: Any, **more: Any) -> Any:
        raise DeviceOutOfMemory("The batch does not fit in memory.")

    monkeypatch.setattr(made.network._encoder, "vectors", refuse)
    with pytest.raises(DeviceOutOfMemory, match="A single text does not fit"):
        made.run()


def test_labelled_pairs_are_measured_by_rank_correlation(folder: Path) -> None:
    done = loop(folder, MemoryContext(), label="score", epochs=1).run()
    assert done.metric == "spearman"
    assert -1 <= done.best <= 1


def test_nothing_held_out_keeps_the_last_weights(folder: Path) -> None:
    done = loop(folder, MemoryContext(), held_out=0.0, epochs=1).run()
    assert (done.best, done.before, done.held_out, done.steps) == (None, None, 0, 8)


def _take_part(rank: int, folder: Path, place: Path, queue: Any, device: Device) -> None:
    """Train in a group of one, of two and of three processes, as far as this one is among them."""
    from torch import distributed

    from shardmill.tasks.gang import backend_of
    from shardmill.verbs.train.group import ProcessGroup

    share_gpu(str(rank))
    for size in range(rank + 1, 4):
        distributed.init_process_group(
            backend_of(device), init_method=f"file://{place}/{size}", rank=rank, world_size=size
        )
        made = loop(folder, MemoryContext(), ProcessGroup(), device=device, epochs=8, evaluate_every=1, held_out=0.0)
        losses = [each["loss"] for each in made.run().curve if "loss" in each]
        queue.put((size, losses, float(sum(weight.abs().sum() for weight in weights_of(made).values()))))
        distributed.destroy_process_group()


BACKENDS = [pytest.param(CPU, id="gloo"), pytest.param(GPU, id="nccl", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", BACKENDS)
def test_a_group_of_one_trains_as_one_alone(folder: Path, device: Any) -> None:
    """Each sum and each gathering goes through the backend of its device."""
    from shardmill.tasks.context import Group
    from shardmill.tasks.gang import backend_of, process_group
    from shardmill.verbs.train.group import ProcessGroup

    alone = loop(folder, MemoryContext(), device=device)
    wanted = alone.run()
    with process_group(Group.alone(), backend_of(device)):
        together = loop(folder, MemoryContext(), ProcessGroup(), device=device)
        done = together.run()
    assert [each["step"] for each in done.curve] == [each["step"] for each in wanted.curve]
    for name, weight in weights_of(alone).items():
        torch.testing.assert_close(weights_of(together)[name], weight, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("device", BACKENDS)
def test_any_number_of_processes_trains_the_same(folder: Path, tmp_path: Path, device: Any) -> None:
    """60 steps in float32: the loss of each step within 1e-3, and all processes with the same weights."""
    queue, processes = _start(_take_part, 3, folder, tmp_path, device)
    told = [queue.get(timeout=500) for _ in range(6)]
    for each in processes:
        each.join()
    curves = {size: losses for size, losses, _ in told}
    for size in (1, 2, 3):
        assert len({(tuple(losses), total) for count, losses, total in told if count == size}) == 1
    assert len(curves[1]) >= 60
    for size in (2, 3):
        np.testing.assert_allclose(curves[size], curves[1], atol=1e-3)


def test_a_long_evaluation_and_a_long_step_say_that_they_go_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that says nothing for a quarter of an hour is taken for stuck."""
    from shardmill.verbs.train import loop, network

    monkeypatch.setattr(loop, "_SILENT_S", 0.0)
    monkeypatch.setattr(network, "_MINI_TOKENS", {"cpu": 64})
    pairs = pairs_of(ROWS, folder, held_out=0.3, batch=16)
    context = MemoryContext(stop_at=1)
    assert loop.TrainingLoop(a_network(folder), pairs, context, "digest").run() is None
    said = [step for step, _ in context.reports]
    assert said == [0] * len(said)
    first = next(i for i, (_, figures) in enumerate(context.reports) if "mrr@10" in figures)
    assert first > 5
    assert len(said) - first > 5
    assert all(figures.keys() == {"epoch", "mrr@10"} for _, figures in context.reports[first:])
