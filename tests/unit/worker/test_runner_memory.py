"""A batch that did not fit holds nothing while its rows are run again in smaller ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from shardmill import make_spec, start
from shardmill.core.errors import DeviceOutOfMemory
from shardmill.tasks.base import Output
from shardmill.testing import FakeTask, InProcessEngine
from tests.support.corpora import fake_rows

ROOM = 40


class Layer:
    """A piece of a device's memory, taken until nothing refers to it any more."""

    taken = 0

    def __init__(self, size: int) -> None:
        self.size = size
        Layer.taken += size
        if Layer.taken > ROOM:
            raise RuntimeError("out of memory")

    def __del__(self) -> None:
        Layer.taken -= self.size


class Holding(FakeTask):
    """Needs room for each layer of a batch until it is done, as a model does; says so as the contract has it."""

    def run(self, inputs: Sequence[Any]) -> Output:
        try:
            layers = [Layer(len(inputs)) for _ in range(4)]
        except RuntimeError as error:
            raise DeviceOutOfMemory("The batch does not fit.") from error
        output = super().run(inputs)
        del layers
        return output


class HoldingAhead(Holding):
    """The same for a task that is handed a batch first and asked for its rows later."""

    def begin(self, inputs: Sequence[Any]) -> Callable[[], Output]:
        output = self.run(inputs)
        return lambda: output


@pytest.mark.parametrize("task", [Holding, HoldingAhead])
def test_rows_that_fit_in_smaller_batches_all_come_out(
    tmp_path: Path, write_jsonl: Callable[..., Path], task: type
) -> None:
    spec = make_spec(
        {"source": str(write_jsonl(fake_rows(200))), "text": "text", "task": f"{__name__}:{task.__name__}"},
        {"max_errors": "100%"},
    )
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    assert list(run.errors()) == []
    assert run.table().num_rows == 200
