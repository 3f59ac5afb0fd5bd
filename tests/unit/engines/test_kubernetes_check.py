"""What a check of a cluster says without one."""

from __future__ import annotations

from typing import Any, cast

from tests.support.libraries import needed

needed("lightkube")

from shardmill.engines.kubernetes.api import ClusterApi  # noqa: E402
from shardmill.engines.kubernetes.checking import find_fronts  # noqa: E402


class _Offering:
    """An API server that offers kinds of objects, by group."""

    def __init__(self, **kinds: list[str]) -> None:
        self._kinds = kinds

    def find(self, path: str) -> dict[str, Any] | None:
        kinds = self._kinds.get(path.split("/")[2].partition(".")[0])
        return None if kinds is None else {"resources": [{"name": kind} for kind in kinds]}


def test_a_group_that_another_program_installed_is_no_front() -> None:
    """Argo CD has the group of Argo Workflows, and none of its kinds."""
    said = [fact.said for fact in find_fronts(cast(ClusterApi, _Offering(argoproj=["applications"])))]
    assert said == [
        "not installed: --engine argo cannot be used",
        "not installed: an autoscaled pool cannot be used",
    ]
    both = _Offering(argoproj=["applications", "workflowtemplates"], keda=["scaledjobs"])
    assert [fact.said for fact in find_fronts(cast(ClusterApi, both))] == ["installed", "installed"]
