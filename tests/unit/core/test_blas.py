"""NumPy's BLAS on one thread, while somebody asks for that."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from shardmill.core import blas
from shardmill.core.blas import one_blas_thread
from tests.support.waiting import PATIENCE_S, wait_for


@pytest.fixture
def library() -> Iterator[blas._Threads]:
    if not blas._libraries():
        pytest.skip("NumPy has no OpenBLAS here")
    # A thread that an earlier test left may search still.
    wait_for(lambda: not blas._holders)
    library = blas._libraries()[0]
    before = library.get()
    library.set(2)
    yield library
    library.set(before)


def test_it_has_one_thread_and_then_as_many_as_before(library: blas._Threads) -> None:
    with one_blas_thread():
        assert library.get() == 1
    assert library.get() == 2


def test_it_has_one_thread_until_the_last_holder_leaves(library: blas._Threads) -> None:
    """The first to come may be the first to leave."""
    leave, left = threading.Event(), threading.Event()

    def hold() -> None:
        with one_blas_thread():
            leave.wait(PATIENCE_S)
        left.set()

    with one_blas_thread():
        threading.Thread(target=hold, daemon=True).start()
        wait_for(lambda: blas._holders == 2)
    assert library.get() == 1
    leave.set()
    assert left.wait(PATIENCE_S)
    assert library.get() == 2
