"""After fifty edits of its source and many refreshes, a run is what a fresh one would be, to the bit."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from campaigns.edited_source import EDITS, EditedSource, compare_rows
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.run.refreshing import refresh
from shardmill.testing import InProcessEngine

DIMS = 8


@pytest.mark.parametrize("fewest_bytes", [0, 256])
@given(edits=st.lists(st.sampled_from(sorted(EDITS)), min_size=50, max_size=50), seed=st.integers(0, 10**6))
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_after_fifty_edits_it_is_as_a_fresh_run(
    fewest_bytes: int,
    edits: list[str],
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Few rows in a row stay where they are, or are copied."""
    monkeypatch.setattr("shardmill.sinks.earlier._FEWEST_BYTES", fewest_bytes)
    folder, chance = tmp_path_factory.mktemp("edits"), random.Random(seed)
    source = EditedSource(folder / "source", chance, 80)
    work = {"source": str(source.folder), "text": "text", "id": "id", "keep": "n", "task": "shardmill.testing:FakeTask"}
    spec = make_spec({**work, "params": {"dims": DIMS}}, {"shard_bytes": 900, "max_errors": "100%"})
    start(spec, folder / "run", engine=InProcessEngine())
    while edits:
        some = chance.choice((1, 2, 5, 9))
        source.apply(edits[:some])
        edits = edits[some:]
        refresh(folder / "run", engine=InProcessEngine(), allow_shrink=True)
    run = Run(folder / "run")
    assert not compare_rows(run.table(), source.rows, DIMS)
    assert run.verify(report=False).verified
    assert run.table().equals(start(spec, folder / "fresh", engine=InProcessEngine()).table())
