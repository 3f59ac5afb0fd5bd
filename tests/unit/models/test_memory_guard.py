"""What is left of a batch that did not fit in memory."""

from __future__ import annotations

import gc
import weakref

import pytest

from shardmill.core.errors import DeviceOutOfMemory
from tests.support.libraries import needed

torch = needed("torch")

from shardmill.models.encoder import memory_guard  # noqa: E402


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError])
def test_a_batch_that_did_not_fit_leaves_nothing_behind(kind: type[RuntimeError]) -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def hold() -> torch.Tensor:
        tensor = torch.zeros(8)
        held.append(weakref.ref(tensor))
        return tensor

    def run() -> None:
        inner = hold()
        raise kind(f"DefaultCPUAllocator: no room for {inner.shape}")

    def guarded() -> None:
        outer = hold()
        with memory_guard():
            run()
        outer.zero_()

    gc.collect()
    gc.disable()
    try:
        try:
            guarded()
        except DeviceOutOfMemory:
            assert held[1]() is None, "the tensors of the batch are free before the next one is tried"
        else:
            pytest.fail("it fits")
        assert held[0]() is None, "and those of its caller, without a collection of garbage"
    finally:
        gc.enable()
