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

PARAMETER, DIMS = "parameter", (6, 8)


@pytest.mark.parametrize("fewest_bytes", [0, 256])
@given(
    edits=st.lists(st.sampled_from([*sorted(EDITS), PARAMETER]), min_size=50, max_size=50), seed=st.integers(0, 10**6)
)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_after_fifty_edits_it_is_as_a_fresh_run(
    fewest_bytes: int,
    edits: list[str],
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Few rows in a row stay where they are, or are copied; after another parameter, all of them are made again."""
    monkeypatch.setattr("shardmill.sinks.earlier._FEWEST_BYTES", fewest_bytes)
    # Files are known by what the disk says of them, or are all read.
    monkeypatch.setattr("shardmill.sources.unchanged._TICK_NS", 0 if fewest_bytes else 10**18)
    folder, chance = tmp_path_factory.mktemp("edits"), random.Random(seed)
    source = EditedSource(folder / "source", chance, 80)
    work = {"source": str(source.folder), "text": "text", "id": "id", "keep": "n", "task": "shardmill.testing:FakeTask"}
    specs = {
        dims: make_spec({**work, "params": {"dims": dims}}, {"shard_bytes": 900, "max_errors": "100%"}) for dims in DIMS
    }
    dims, spec = DIMS[0], specs[DIMS[0]]
    start(spec, folder / "run", engine=InProcessEngine())
    while edits:
        some = chance.choice((1, 2, 5, 9))
        before, now = dims, edits[:some]
        if now.count(PARAMETER) % 2:
            dims = sum(DIMS) - dims
        source.apply([edit for edit in now if edit != PARAMETER])
        edits, spec = edits[some:], specs[dims]
        # That of the run is what a refresh without a work goes by.
        asked = spec.work if dims != before or chance.random() < 0.5 else None
        done = refresh(folder / "run", work=asked, engine=InProcessEngine(), allow_shrink=True)
        assert dims == before or (done.changed and done.reused == 0)
    run = Run(folder / "run")
    assert not compare_rows(run.table(), source.rows, dims)
    assert run.verify(report=False).verified
    assert run.table().equals(start(spec, folder / "fresh", engine=InProcessEngine()).table())
