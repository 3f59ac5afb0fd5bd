"""Scenarios that mostly wait for a cluster run side by side, and each is a test by its own name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.kube_cluster import KubeCluster


@dataclass(frozen=True)
class TestSite:
    """What a scenario works with: a cluster, a namespace of it, a bucket that pods see too, and a folder here."""

    __test__ = False

    cluster: KubeCluster
    namespace: str
    bucket: str
    folder: Path


Scenario = Callable[[TestSite], Any]
Ends = dict[Scenario, "Future[Any]"]


@contextlib.contextmanager
def run_together(site: TestSite, *scenarios: Scenario) -> Iterator[Ends]:
    """Start all scenarios. `result()` of one waits for its end, and returns what it returned or raises what it raised.

    So no test waits for more than its own scenario, however long all of them take.
    """
    with ThreadPoolExecutor(len(scenarios)) as pool:
        yield {scenario: pool.submit(scenario, site) for scenario in scenarios}
