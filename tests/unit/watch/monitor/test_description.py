"""What is told of a run: the worst workers of many, stragglers, the lost, logs; and how much is asked of the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardmill.core.errors import UsageError
from shardmill.ledger import HistoryPoint, Ledger
from shardmill.plan import Plan, SourceFile, SourceStat
from shardmill.watch.monitor import reading
from shardmill.watch.monitor.description import describe_run, find_searched
from shardmill.watch.monitor.files import shorten
from shardmill.watch.monitor.reading import RunReader, RunSeen
from tests.support.counting import CountingStore
from tests.support.ledgers import a_plan
from tests.support.monitored import simulate_run


def test_of_many_workers_the_worst_are_told(tmp_path: Path) -> None:
    simulate_run(tmp_path / "run", shards=5000, workers=150, lost=2)
    seen = RunReader("run", str(tmp_path / "run")).read()
    said = describe_run(seen, seen.read_at or 0.0)
    assert (len(said.workers), said.workers_listed_of, said.workers_live, said.workers_lost) == (100, 150, 148, 2)
    assert [worker.state for worker in said.workers[:3]] == ["lost", "lost", "working"]
    assert [worker.id for worker in said.workers if worker.straggler] == ["gpu-01-4711_2-0"]
    assert said.workers[2].place.startswith("Slurm job 4711_")
    assert sum(said.shard_states.values()) == 5000
    assert said.outlook.forecast_s == 8600
    assert said.history.at == sorted(said.history.at)
    assert said.history.rows_per_s[-1] > 0, "the past of a large run is that of its view"


def test_a_map_is_searched_by_the_runs_that_it_is_of(tmp_path: Path) -> None:
    simulate_run(tmp_path / "run", shards=10)
    seen = RunReader("run", str(tmp_path / "run")).read()
    assert seen.status is not None
    assert seen.plan is not None
    run = replace(seen, status=replace(seen.status, state="complete"))
    work = seen.plan.work.model_copy(update={"task": "map", "source": ("run:/somewhere/else",)})

    added = Plan.of(seen.plan.work.model_copy(update={"text": "more"}), seen.plan.stat, {}, seen.plan.shards)
    more = replace(run, name="more", plan=added)

    def a_map(*plans: str) -> RunSeen:
        files = tuple(SourceFile(f"/somewhere/{i}.parquet", 9, "", f"run:{plan}:ab") for i, plan in enumerate(plans))
        stat = SourceStat("parquet", files, {})
        return replace(run, name="map", plan=Plan.of(work, stat, {}, seen.plan.shards if seen.plan else ()))

    assert find_searched(run, ()) == (run,)
    assert find_searched(seen, ()) == (), "it is not complete"
    one = a_map(seen.plan.id, seen.plan.id)
    assert find_searched(one, [one, seen]) == ()
    assert find_searched(one, [one, run]) == (run,), "it is known by its plan, not by its place"
    assert find_searched(a_map("another"), [run]) == ()
    assert find_searched(a_map(seen.plan.id, "another"), [run]) == (), "of two runs neither is all of it"
    both = a_map(seen.plan.id, added.id, added.id)
    assert find_searched(both, [more, both, run]) == (run, more), "in the order of the map"


@pytest.mark.parametrize(
    ("task", "offered"),
    [
        ("embed", True),
        ("shardmill.testing:FakeTask", True),
        ("apply", False),
        ("map", False),
        ("train", False),
        ("tune", False),
    ],
)
def test_a_search_is_offered_where_a_task_may_make_vectors(tmp_path: Path, task: str, offered: bool) -> None:
    Ledger(tmp_path / "run").create(a_plan(task=task))
    seen = RunReader("run", str(tmp_path / "run")).read()
    assert seen.status is not None
    assert find_searched(seen, ()) == (), "it has only begun"
    done = replace(seen, status=replace(seen.status, state="complete"))
    assert find_searched(done, ()) == ((done,) if offered else ())


def test_a_time_without_workers_is_a_gap(tmp_path: Path) -> None:
    simulate_run(tmp_path / "run", shards=2000)
    seen = RunReader("run", str(tmp_path / "run")).read()
    points = tuple(HistoryPoint(at, 10.0, rows=50, memory_bytes=1.0) for at in (10.0, 20.0, 500.0, 510.0))
    said = describe_run(replace(seen, history=points), 0.0).history
    assert said.at == [10.0, 20.0, 255.0, 500.0, 510.0]
    assert said.rows_per_s == [5.0, 5.0, None, 5.0, 5.0]
    assert said.memory_bytes == [1.0, 1.0, None, 1.0, 1.0]


def test_a_refresh_of_a_large_run_takes_few_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate_run(tmp_path / "run", shards=5000, workers=100)
    store = CountingStore(str(tmp_path / "run"))
    reader = RunReader("run", str(tmp_path / "run"))
    monkeypatch.setattr(reader, "_ledger", Ledger(store))  # type: ignore[arg-type]
    reader.read()
    assert sum(store.requests.values()) < 20
    store.reset()
    seen = reader.read()
    assert seen.trouble == ""
    assert sum(store.requests.values()) < 12


def test_the_last_lines_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "run")
    ledger.create(a_plan())
    beat = {"state": "working", "host": "h", "pid": 1, "log": "logs/worker-0.log"}
    ledger.workers.beat("w0", beat)
    ledger.workers.beat("w1", {**beat, "log": "logs/worker-1.log"})
    ledger.workers.beat("w2", {"state": "failed", "host": "h", "pid": 1, "error": "no memory"})
    (tmp_path / "run" / "logs").mkdir()
    lines = [f"line {i}" for i in range(20_000)]
    (tmp_path / "run" / "logs" / "worker-0.log").write_text("\n".join(lines) + "\n")
    reader = RunReader("run", str(tmp_path / "run"))
    seen = reader.read()
    assert reader.read_log("w0").split("\n") == lines[-199:]
    assert reader.read_log("w2") == "no memory"
    with pytest.raises(UsageError, match="no log"):
        reader.read_log("w1")
    with pytest.raises(UsageError, match="no such worker"):
        reader.read_log("../w0")
    told = {worker.id: worker.has_log for worker in describe_run(seen, 0.0).workers}
    assert told == {"w0": True, "w1": False, "w2": False}


def test_a_worker_is_linked_to_its_pod_or_job(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "run")
    ledger.create(a_plan())
    beat = {"state": "working", "host": "h", "pid": 1}
    places = {"w0": "pod embed-0-x7k2p", "w1": "Slurm job 12_3", "w2": "", "w3": "pod ../../?a=b#javascript:alert(1)"}
    places |= {"w4": "pod \ud800", "w5": " "}
    for worker, place in places.items():
        ledger.workers.beat(worker, {**beat, **({"place": place} if place else {})})
    seen = RunReader("run", str(tmp_path / "run")).read()
    assert {worker.link for worker in describe_run(seen, 0.0).workers} == {""}
    told = describe_run(seen, 0.0, worker_link="https://console.example.org/of/{name}").workers
    assert {worker.id: worker.link.removeprefix("https://console.example.org/of/") for worker in told} == {
        "w0": "embed-0-x7k2p",
        "w1": "12_3",
        "w2": "",
        "w3": "..%2F..%2F%3Fa%3Db%23javascript%3Aalert%281%29",
        "w4": "%3F",
        "w5": "",
    }


def test_a_page_is_only_read_by_its_name(tmp_path: Path) -> None:
    Ledger(tmp_path / "run").create(a_plan())
    reader = RunReader("run", str(tmp_path / "run"))
    with pytest.raises(UsageError, match=r"has no report\.html"):
        reader.open_page("report.html")
    with pytest.raises(UsageError, match="no such page"):
        reader.open_page("plan.json")
    (tmp_path / "run" / "report.html").write_text("<p>ok")
    assert b"".join(reader.open_page("report.html").pieces()) == b"<p>ok"
    assert reader.read().reports == ("report.html",)
    assert set(reading.REPORTS) == {"report.html", "map.html"}


def test_texts_are_made_safe() -> None:
    assert shorten("a\x1b[31m\u202eb\ud800\n") == "a\ufffd[31m\ufffdb\ufffd\ufffd"
    assert shorten("x" * 500) == "x" * 400 + "…"
    assert shorten({"a": [1]}) == "{'a': [1]}"


def test_the_last_report_of_a_long_item_is_told(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "run")
    ledger.create(a_plan())
    under_way = {"rows": 0, "bytes": 0, "step": 1200, "figures": {"loss": 0.03125, "mrr": None}}
    ledger.workers.beat("w0", {"state": "working", "host": "h", "pid": 1, "open": {"1": under_way}})
    ledger.workers.beat("w1", {"state": "working", "host": "h", "pid": 1, "open": {"2": {"rows": 0, "bytes": 0}}})
    seen = RunReader("run", str(tmp_path / "run")).read()
    told = {worker.id: worker.said for worker in describe_run(seen, 0.0).workers}
    assert told == {"w0": "step 1,200 · loss 0.03125 · mrr no number", "w1": ""}
