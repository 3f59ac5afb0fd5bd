"""Items to run over, and the spec of a run of the fake task over them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardmill.core.devices import Device
from shardmill.plan.spec import Spec, make_spec
from shardmill.tasks.base import Output, Prepared, Task
from shardmill.testing import FakeTask
from tests.support.waiting import wait_for


def fake_spec(
    source: Path | str,
    *,
    task: str = "shardmill.testing:FakeTask",
    params: dict[str, Any] | None = None,
    query: str = "",
    **execution: Any,
) -> Spec:
    """A run of the fake task over `{"id", "text"}` rows."""
    settings = {"shard_bytes": 2_000, "max_errors": "100%", "lease_s": 5.0, **execution}
    work = {"source": str(source), "text": "text", "id": "id", "task": task}
    work |= {"query": query} if query else {}
    return make_spec({**work, "params": params or {}}, settings)


def fake_rows(count: int, start: int = 0) -> list[dict[str, str]]:
    return [{"id": f"k{i}", "text": f"text {i} " + "x" * (i * 7 % 40)} for i in range(start, start + count)]


class Precise(FakeTask):
    """Says that it computes in `now`, or else in the precision that was asked for."""

    now = ""

    def __init__(self, precision: str = "", **params: Any) -> None:
        super().__init__(**params)
        self.numerics = {"kernel": "fake", "precision": self.now or precision}


class UsersTask(FakeTask):
    """A task of a user: workers import it only if the permission reached them."""


class HeldTask(FakeTask):
    """Waits at the text "text 1", so that a test acts in the middle of a shard.

    The n-th time it creates the file held-n in its folder and waits for the file go-n.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)

    def run(self, inputs: Sequence[Any]) -> Output:
        if "text 1" in inputs:
            n = 1 + len([*self.folder.glob("held-*")])
            (self.folder / f"held-{n}").touch()
            wait_for((self.folder / f"go-{n}").exists)
        return super().run(inputs)


class Shouting(Task):
    """Makes texts, not vectors: the text in capitals, `mark` after it, and its length."""

    batch_budget = 400
    output = pa.schema([pa.field("shout", pa.string()), pa.field("letters", pa.int32())])

    def __init__(self, mark: str = "!") -> None:
        self.mark = mark

    def fingerprint(self) -> dict[str, str]:
        return {"voice": "1"}

    def open(self, device: Device) -> None:
        pass

    def prepare(self, texts: Sequence[str | None]) -> Prepared:
        costs = np.array([len(text or "") for text in texts], np.int64)
        return Prepared(list(texts), costs, tokens=int(costs.sum()))

    def run(self, inputs: Sequence[str]) -> Output:
        rows = pa.record_batch([[t.upper() + self.mark for t in inputs], [len(t) for t in inputs]], schema=self.output)
        return Output(rows, {i: "it cannot be said" for i, text in enumerate(inputs) if "!mute" in text})


SHOUTING = "tests.support.corpora:Shouting"
