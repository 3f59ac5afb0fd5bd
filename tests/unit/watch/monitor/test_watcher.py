"""A folder of runs that changes while it is watched, and what is told of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.core.errors import UsageError
from shardmill.ledger import Ledger
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine
from shardmill.watch.monitor import watcher as watching
from shardmill.watch.monitor.description import describe_run, summarize_run
from shardmill.watch.monitor.reading import RunReader, name_key
from shardmill.watch.monitor.watcher import Watcher
from tests.support.corpora import fake_rows
from tests.support.ledgers import a_plan
from tests.support.waiting import wait_for

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_NEAR_S", "_FAR_S", "_STILL_S", "_LIST_EVERY_S", "_TICK_S"):
        monkeypatch.setattr(watching, name, 0.05)


@pytest.fixture
def run(tmp_path: Path, write_jsonl: Write) -> Run:
    rows = fake_rows(30)
    rows[7]["text"] = None  # type: ignore[assignment]
    work = {"source": str(write_jsonl(rows)), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    spec = make_spec(work, {"shard_bytes": 500, "max_errors": "50%"})
    return start(spec, tmp_path / "runs" / "one", engine=InProcessEngine())


def test_a_run_is_shown_as_its_status_says(run: Run) -> None:
    with Watcher(Path(run.ledger.url).parent) as watcher:
        (seen,) = watcher.runs()
        said = describe_run(seen, seen.read_at or 0.0)
    assert (said.name, said.key, said.state, said.rows, said.errors) == ("one", "one", "complete", 30, 1)
    assert said.shard_states == {"waiting": 0, "running": 0, "done": said.shards, "failed": 0}
    assert said.reasons is not None
    assert (said.reasons[0].count, said.reasons[0].id) == (1, "k7")
    assert said.plan.source == [str(Path(run.ledger.url).parents[1] / "items.jsonl")]
    assert len(said.history.at) == len(said.history.rows_per_s) > 0
    assert json.loads(said.model_dump_json())["workers"][0]["state"] == "done"


def test_the_past_of_a_complete_run_does_not_grow(run: Run) -> None:
    reader = RunReader("one", run.ledger.url)
    first = reader.read()
    assert first.history
    reader.read()
    assert reader.read().history == first.history


def test_one_run_may_be_watched_by_itself(run: Run) -> None:
    with Watcher(run.ledger.url) as watcher:
        assert [seen.name for seen in watcher.runs()] == ["one"]
        assert watcher.run("one") is not None
        assert watcher.run("two") is None


def test_runs_come_and_go(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    with Watcher(folder) as watcher:
        shutil.copytree(folder / "one", folder / "two")
        wait_for(lambda: watcher.run("two") and watcher.run("two").status)  # type: ignore[union-attr]
        shutil.rmtree(folder / "one")
        wait_for(lambda: "deleted" in watcher.run("one").trouble)  # type: ignore[union-attr]
        gone = watcher.run("one")
        assert gone is not None
        assert gone.status is not None, "the last good status stays"
        shutil.copytree(folder / "two", folder / "one")
        wait_for(lambda: not watcher.run("one").trouble)  # type: ignore[union-attr]


def test_runs_in_a_map_are_watched_too(run: Run, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "runs", tmp_path / "elsewhere"
    Ledger(folder / "map").create(a_plan(task="map"))
    shutil.copytree(folder / "one", folder / "map" / "vectors" / "more")
    shutil.copytree(folder / "one", folder / "one" / "vectors" / "more")
    (folder / "map" / "vectors" / "none").mkdir()
    shutil.copytree(folder / "one", elsewhere / "linked")
    (folder / "map" / "points").symlink_to(elsewhere)
    (folder / "map" / "vectors" / "linked").symlink_to(elsewhere / "linked")
    with Watcher(folder) as watcher:
        assert [seen.name for seen in watcher.runs()] == ["map", "map.vectors.more", "one"]
        (folder / "map" / "points").unlink()
        shutil.copytree(folder / "one", folder / "map" / "points" / "more")
        wait_for(lambda: watcher.run("map.points.more"))
    with Watcher(folder / "map") as watcher:
        assert [seen.name for seen in watcher.runs()] == ["map", "map.points.more", "map.vectors.more"]


def test_a_damaged_run_is_told_beside_a_good_one(run: Run, tmp_path: Path) -> None:
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "plan.json").write_text("{")
    with Watcher(tmp_path / "runs") as watcher:
        bad, good = (summarize_run(seen, 0.0) for seen in watcher.runs())
    assert (bad.state, good.state) == ("unreadable", "complete")
    assert "plan.json is damaged" in bad.trouble


def test_a_folder_that_is_away_and_comes_back(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    with Watcher(folder) as watcher:
        folder.rename(tmp_path / "elsewhere")
        wait_for(lambda: watcher.trouble)
        assert watcher.trouble == f"{folder}: no such folder."
        (tmp_path / "elsewhere").rename(folder)
        wait_for(lambda: not watcher.trouble and not watcher.runs()[0].trouble)


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        Watcher(tmp_path / "nowhere").start()


def test_a_plan_that_cannot_be_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "runs" / "odd" / "plan.json").mkdir(parents=True)
    with Watcher(tmp_path / "runs") as watcher:
        odd, good = watcher.runs()
        assert "odd/plan.json" in odd.trouble
        assert good.trouble == ""


def test_a_link_is_not_followed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "watched").mkdir()
    (tmp_path / "watched" / "link").symlink_to(run.ledger.url)
    with Watcher(tmp_path / "watched") as watcher:
        assert watcher.runs() == []


def test_listeners_are_called_until_they_leave(run: Run, tmp_path: Path) -> None:
    heard: list[int] = []
    with Watcher(tmp_path / "runs") as watcher:
        leave = watcher.listen(lambda: heard.append(watcher.version))
        wait_for(lambda: len(heard) > 2)
        leave()


def test_keys_are_plain() -> None:
    assert name_key("a.b-c_1") == "a.b-c_1"
    for name in ("..", ".", "<script>", "a/b", "x" * 200, "\udce9", "a b", "~1", "-x"):
        assert name_key(name).startswith("~")
        assert len(name_key(name)) == 13
