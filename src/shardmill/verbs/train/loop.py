"""The training loop: the same items in the same order, whatever the number of processes and interruptions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shardmill.augment.loading import ElasticSampler
from shardmill.core.errors import DeviceOutOfMemory, TaskError
from shardmill.models.encoder import memory_guard
from shardmill.verbs.train.batch import StepBatch
from shardmill.verbs.train.data import Pairs
from shardmill.verbs.train.group import Alone, TrainGroup
from shardmill.verbs.train.measure import Measure
from shardmill.verbs.train.network import Network, Pass, TokenizedTexts
from shardmill.verbs.train.schedule import rate_at
from shardmill.verbs.train.state import LoopContext, LoopState, restore, save

_CHECKPOINT_S = 60.0
_REPORT_S = 5.0
# An evaluation, or a step of a large batch, may take longer than a worker may be silent.
_SILENT_S = 20.0


@dataclass(slots=True)
class _Step:
    """The items of one step, all their texts, and the tokens of those that this process embeds."""

    items: NDArray[np.int64]
    batch: StepBatch
    mine: TokenizedTexts


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished run: the network has the best weights, or the last ones if nothing was held out."""

    steps: int
    items: int
    held_out: int
    metric: str
    before: float | None
    best: float | None
    best_step: int | None
    curve: tuple[dict[str, float], ...]

    @property
    def loss(self) -> float:
        """The mean loss of the last part, between two evaluations."""
        return self.curve[-1]["loss"]


class TrainingLoop:
    """Trains a network on pairs. `digest` is of everything that the weights depend on."""

    def __init__(
        self,
        network: Network,
        pairs: Pairs,
        context: LoopContext,
        digest: str,
        group: TrainGroup | None = None,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self.network, self.pairs, self.context = network, pairs, context
        self.group: TrainGroup = group or Alone()
        self._goes_on = goes_on
        self.options = pairs.options
        self._weights = network.weights()
        self._optimizer = _optimizer(self._weights, self.options.weight_decay)
        self._best: dict[str, Tensor] = {}
        self.state = LoopState(digest)
        self._learnt, self._held = pairs.split()
        self._measure = Measure(pairs, self._held) if len(self._held) else None
        self._order = ElasticSampler(len(self._learnt), seed=self.options.seed)
        self._steps_per_epoch = math.ceil(len(self._learnt) / self.options.batch)
        self.steps = self._steps_per_epoch * self.options.epochs
        self._ahead: Future[_Step] | None = None
        self._kept = self._reported = time.monotonic()
        self._repeated, self._figures = self._reported, {"epoch": 0.0}

    def run(self) -> Outcome | None:
        """Train to the end, from the last checkpoint on; None, after a checkpoint, if it was asked to stop.

        It also ends so if one of the processes sees that the group does not go on as it is.
        """
        self.network.on_part = self._beat
        try:
            with ThreadPoolExecutor(1) as threads:
                return self._run(threads)
        finally:
            del self.network.on_part  # Else the two would keep one another in memory.

    def _run(self, threads: ThreadPoolExecutor) -> Outcome | None:
        if (saved := self.context.checkpoint()) is not None:
            self.state, self._best = restore(saved, self.state.digest, self._weights, self._optimizer)
            self._order.load_state_dict(self.state.order)
        if not self.state.curve:
            self._evaluate()
        while self.state.step < self.steps:
            if self.group.any(self.context.should_stop() or not self._goes_on()):
                self._keep()
                self.group.any(False)  # Nobody leaves before the checkpoint is there.
                return None
            self._step(threads)
            if self._ends_part():
                self._evaluate()
            if self._is_time_to_keep():
                self._keep()
        return self._finish()

    def _step(self, threads: ThreadPoolExecutor) -> None:
        """One batch of all processes together."""
        step = self._take(threads)
        seen = self._differentiate(step)
        self._update()
        self._order.advance(len(step.items))
        self.state.step += 1
        self.state.loss_sum += seen
        self.state.loss_steps += 1
        if time.monotonic() - self._reported >= _REPORT_S:
            self._report({"loss": seen})

    def _take(self, threads: ThreadPoolExecutor) -> _Step:
        """The next step. A thread tokenizes the one after it meanwhile."""
        if self._order.done >= self._order.size:
            self._order.set_epoch(self._order.epoch + 1)
        epoch, done = self._order.epoch, self._order.done
        step = (self._ahead or threads.submit(self._prepare, epoch, done)).result()
        done += len(step.items)
        after = (epoch, done) if done < self._order.size else (epoch + 1, 0)
        self._ahead = threads.submit(self._prepare, *after) if self.state.step + 1 < self.steps else None
        return step

    def _prepare(self, epoch: int, done: int) -> _Step:
        """The next global batch in the epoch's order; all processes know all of it."""
        order = ElasticSampler(len(self._learnt), seed=self.options.seed, epoch=epoch)
        order.advance(done)
        items = self._learnt[np.array(list(islice(order, self.options.batch)), np.int64)]
        batch = self.pairs.batch(items)
        return _Step(items, batch, self._prepare_mine(batch))

    def _prepare_mine(self, batch: StepBatch) -> TokenizedTexts:
        return self.network.prepare(batch.texts[self.group.rank :: self.group.size])

    def _differentiate(self, step: _Step) -> float:
        """The loss of a step, and the gradients of this process's part.

        Less memory is used if it does not suffice. The other processes wait meanwhile.
        """
        done = self._forward(step)
        vectors = self.group.gather(done.vectors, len(step.batch.texts)).requires_grad_()
        while (seen := self._backward(step, vectors, done)) is None:
            del done  # And with it the graphs that it keeps.
            self._shrink(step)
            done = self._forward(step)
        return seen

    def _forward(self, step: _Step) -> Pass:
        while True:
            try:
                return self.network.forward(step.mine)
            except DeviceOutOfMemory:
                pass  # Until here the error holds on to what it used.
            self._shrink(step)

    def _backward(self, step: _Step, vectors: Tensor, done: Pass) -> float | None:
        """The loss; None if memory did not suffice."""
        vectors.grad = None
        self._optimizer.zero_grad(set_to_none=False)  # A process without texts adds zeros.
        try:
            with memory_guard():
                loss = step.batch.loss(vectors, self.options)
                seen = loss.item()
                self._check(seen, step)
                loss.backward()  # type: ignore[no-untyped-call]
                assert vectors.grad is not None
                self.network.backward(done, vectors.grad[self.group.rank :: self.group.size])
        except DeviceOutOfMemory:
            return None
        return seen

    def _check(self, loss: float, step: _Step) -> None:
        if not math.isfinite(loss):
            raise TaskError(
                f"The loss is {loss} at step {self.state.step + 1} of {self.steps} (items {_show(step.items)}).",
                hint="Lower --learning-rate, raise --temperature, or look at these items.",
            )

    def _shrink(self, step: _Step) -> None:
        self.network.shrink()
        self._ahead, step.mine = None, self._prepare_mine(step.batch)

    def _update(self) -> None:
        self.group.add_up([weight.grad for weight in self._weights.values() if weight.grad is not None])
        torch.nn.utils.clip_grad_norm_(self._weights.values(), self.options.clip)
        factor = rate_at(self.state.step, self.steps, warmup=self.options.warmup, schedule=self.options.schedule)
        for part in self._optimizer.param_groups:
            part["lr"] = self.options.learning_rate * factor
        self._optimizer.step()

    def _ends_part(self) -> bool:
        """Whether the model is evaluated after this step."""
        every = self.options.evaluate_every or self._steps_per_epoch
        return self.state.step % every == 0 or self.state.step == self.steps

    def _evaluate(self) -> None:
        state = self.state
        entry: dict[str, float] = {"step": state.step}
        if state.loss_steps:
            entry["loss"] = state.loss_sum / state.loss_steps
        if self._measure is not None:
            before, figure = state.best, self._measure.of(self.network, self.group)
            entry["figure"] = figure
            if state.step and (before is None or figure > before):
                state.best_step = state.step
                self._best = {name: weight.detach().cpu().clone() for name, weight in self._weights.items()}
        state.curve.append(entry)
        state.loss_sum, state.loss_steps = 0.0, 0
        named = {self._measure.name if key == "figure" and self._measure else key: entry[key] for key in entry}
        self._report({name: value for name, value in named.items() if name != "step"})

    def _report(self, figures: dict[str, float]) -> None:
        self._reported = time.monotonic()
        self._figures = {"epoch": self.state.step / self._steps_per_epoch, **figures}
        if self.group.rank == 0:
            self.context.report(self.state.step, self._figures, steps=self.steps)

    def _beat(self) -> None:
        """Say again what was said last: the run goes on."""
        now = time.monotonic()
        if self.group.rank == 0 and now - max(self._reported, self._repeated) >= _SILENT_S:
            self._repeated = now
            self.context.report(self.state.step, self._figures, steps=self.steps)

    def _is_time_to_keep(self) -> bool:
        every = self.options.checkpoint_every
        if every is not None:
            return self.state.step % every == 0
        return self.group.any(self.group.rank == 0 and time.monotonic() - self._kept >= _CHECKPOINT_S)

    def _keep(self) -> None:
        self.state.order = self._order.state_dict()
        if self.group.rank == 0:
            save(self.context, self.state, self._weights, self._optimizer, self._best)
        self._kept = time.monotonic()

    def _finish(self) -> Outcome:
        if self._best:
            with torch.no_grad():
                for name, weight in self._weights.items():
                    weight.copy_(self._best[name])
        state, measured = self.state, self._measure is not None
        return Outcome(
            steps=state.step,
            items=len(self._learnt),
            held_out=len(self._held),
            metric=self._measure.name if self._measure is not None else "",
            before=state.curve[0]["figure"] if measured else None,
            best=state.best,
            best_step=state.best_step,
            curve=tuple(state.curve),
        )


def _optimizer(weights: dict[str, torch.nn.Parameter], decay: float) -> torch.optim.AdamW:
    """AdamW; biases and the weights of norms, which have one dimension, do not decay."""
    return torch.optim.AdamW(
        [
            {"params": [weight for weight in weights.values() if weight.dim() > 1], "weight_decay": decay},
            {"params": [weight for weight in weights.values() if weight.dim() <= 1], "weight_decay": 0.0},
        ],
        fused=all(weight.is_cuda for weight in weights.values()),
    )


def _show(items: NDArray[np.int64]) -> str:
    return ", ".join(map(str, items[:5])) + (", …" if len(items) > 5 else "")
