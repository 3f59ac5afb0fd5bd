"""Runs of every verb that version 0.2.0 made: they are read, verified and merged, and the halves of them go on.

The runs are in tests/data/earlier/0.2.0, with the commands that made them. They are opened by what users have: the
command line, the names of `shardmill`, and the files whose form docs/run-folder.md tells.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import shardmill
from tests.support.cli import Cli
from tests.support.libraries import needed

needed("torch")
VERSION = Path(__file__).parent.parent / "data" / "earlier" / "0.2.0"
MTIME_NS = 1_700_000_000_123_456_789
PLACE = "/data/"
TEXTS = (".json", ".jsonl", ".log", ".toml")
COMMANDS: dict[str, dict[str, Any]] = json.loads((VERSION / "commands.json").read_text())
FINISHED = [name for name, each in COMMANDS.items() if each["done"]]
HALF = [name for name, each in COMMANDS.items() if not each["done"]]
RUNS = sorted(path.name for path in (VERSION / "runs").iterdir())
# Runs that others read.
BELOW = {"answer": "embed", "answer-half": "embed", "map": "embed", "map-half": "embed", "run-over-run-half": "run"}
# What a plan or a fitted map has the version of.
LIBRARIES = {"tune": ("optuna",), "map": ("umap-learn", "numba")}
NEEDED = {"dedup": "datasketch", "tune": "optuna", "map": "umap", "summarize": "rouge_score", "answer": "bm25s"}


def family(name: str) -> list[str]:
    """A run and the runs on the way to it."""
    others = [other for other in COMMANDS if other != name and other.startswith(f"{name}-")]
    mine = [run for run in RUNS if run == name or run.startswith(f"{name}-")]
    return [run for run in mine if not any(run == other or run.startswith(f"{other}-") for other in others)]


class Kept:
    """Copies of runs, with their sources and models, in a folder of the test's own, which stands for /data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("sources", "models"):
            self._copy(name)
        for path in (folder / "sources").glob("*.jsonl"):
            os.utime(path, ns=(MTIME_NS, MTIME_NS))

    def bring(self, name: str) -> Path:
        """The run, those on the way to it, and the one that it reads."""
        for library, what in ((key, value) for key, value in NEEDED.items() if name.startswith(key)):
            needed(what if library != "map" else "umap")
        for run in [*family(name), *filter(None, [BELOW.get(name)])]:
            self._copy(f"runs/{run}")
        return self.folder / "runs" / name

    def words(self, name: str) -> list[str]:
        return [word.replace(PLACE, f"{self.folder}/") for word in COMMANDS[name]["words"]]

    def unfinished(self, name: str) -> list[Path]:
        found = [self.folder / "runs" / run for run in family(name)]
        return [run for run in found if len(commits(run)) < len(plan(run)["shards"])]

    def _copy(self, name: str) -> None:
        shutil.copytree(VERSION / name, self.folder / name)
        for path in (p for p in (self.folder / name).rglob("*") if p.suffix in TEXTS):
            before = path.read_bytes()
            after = before.replace(PLACE.encode(), f"{self.folder}/".encode())
            if after != before:
                path.write_bytes(after)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    found = Kept(tmp_path / "kept")
    # Models are named from the folder where the command is given; the modules of the user are installed.
    monkeypatch.chdir(found.folder)
    monkeypatch.syspath_prepend(str(VERSION / "code"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    paths = [str(VERSION / "code"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    yield found
    for name in [name for name in sys.modules if name.partition(".")[0] == "kept"]:
        del sys.modules[name]


def plan(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "plan.json").read_text())
    return found


def commits(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "commits").glob("[!.]*.json")}


def committed(*runs: Path) -> dict[str, bytes]:
    """The commits, and the parts and lists of errors that they name."""
    found = {}
    for run in runs:
        for name, raw in commits(run).items():
            said = json.loads(raw)
            named = [each for each in (said["part"], said["errors_file"]) if each]
            found |= {f"{run.name}/commits/{name}": raw}
            found |= {f"{run.name}/{each}": (run / each).read_bytes() for each in named}
    return found


def read_json(said: Any) -> Any:
    assert said.status == 0, said.err
    return json.loads(said.out)


def refuse_other_libraries(name: str) -> None:
    """The same command makes another plan, or fits another map, with other versions of these."""
    libraries = LIBRARIES.get(name.partition("-")[0], ())
    versions = json.loads((VERSION / "libraries.json").read_text())
    for library in libraries:
        if (here := importlib.metadata.version(library)) != versions[library]:
            pytest.skip(f"{library} was {versions[library]} and is {here}")


def give_again(kept: Kept, name: str, cli: Cli) -> None:
    """The command that made the run. It finds it done, and computes nothing."""
    runs = [kept.folder / "runs" / run for run in family(name)]
    before, workers = committed(*runs), {p for run in runs for p in (run / "workers").glob("*")}
    said = cli(*kept.words(name))
    assert said.status == 0, said.err
    assert committed(*runs) == before
    assert {p for run in runs for p in (run / "workers").glob("*")} == workers, "a worker was placed"


def check(kept: Kept, name: str, cli: Cli) -> None:
    """What every complete run can do."""
    run = kept.folder / "runs" / name
    status = read_json(cli("status", run, "--json"))
    assert (status["state"], status["shards_done"]) == ("complete", status["shards"])
    report = read_json(cli("verify", run, "--allow-code", "--json"))
    assert report["verified"], report
    out = kept.folder / f"{name}.parquet"
    assert cli("merge", run, "--out", out).status == 0
    opened = shardmill.Run(run)
    table = opened.table()
    assert pq.read_metadata(out).num_rows == table.num_rows
    assert cli("report", run, "--out", kept.folder / "page.html").status == 0
    assert name in (kept.folder / "page.html").read_text()
    if "embedding" in table.column_names:
        found = read_json(cli("search", run, "The heron waits for rain.", "-k", "2", "--json"))
        assert len(found["hits"]) == 2
    if name.startswith("tune"):
        assert len(opened.study().trials) == 6
        assert "best" in cli("study", run).out
    if name.startswith("map"):
        assert (run / "map.html").stat().st_size > 10_000
        assert pq.read_metadata(run / "coordinates.parquet").num_rows == table.num_rows
    if name.startswith("train"):
        assert (run / "model/model.safetensors").is_file()
    if name.startswith("dedup"):
        assert (run / "duplicates.parquet").is_file()


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_is_read_verified_merged_and_found_done(kept: Kept, shardmill: Cli, name: str) -> None:
    run = kept.bring(name)
    said = read_json(shardmill("show", run, "--shard", "0"))
    assert said
    assert shardmill("show", run, "--errors").status == 0
    check(kept, name, shardmill)
    refuse_other_libraries(name)
    give_again(kept, name, shardmill)


@pytest.mark.parametrize("name", HALF)
def test_a_half_finished_run_goes_on_to_its_end(kept: Kept, shardmill: Cli, name: str) -> None:
    kept.bring(name)
    runs = [kept.folder / "runs" / run for run in family(name)]
    before, left = committed(*runs), kept.unfinished(name)
    assert left, "nothing is left to do"
    for run in left:
        status = read_json(shardmill("status", run, "--json"))
        assert status["state"] not in ("complete", "running")
        assert status["shards_done"] == len(commits(run))
    refuse_other_libraries(name)
    for run in left:
        work_on(run)
    # What else there is to do is planned now.
    said = shardmill(*kept.words(name))
    assert said.status == 0, said.err
    after = committed(*(kept.folder / "runs" / run.name for run in runs))
    assert {each: after.get(each) for each in before} == before, "a part or a commit changed"
    assert not any(list((run / "leases").glob("[!.]*")) for run in runs), "a lease of the dead is left"
    check(kept, name, shardmill)
    give_again(kept, name, shardmill)


def work_on(run: Path) -> None:
    """Be the worker of a run, in this process, until it is complete."""
    shardmill.work(run, device="cpu", allow_code=True)


@pytest.mark.parametrize("name", ["run-own-half", "apply-file-half"])
def test_a_half_finished_run_is_resumed_from_its_folder(kept: Kept, shardmill: Cli, name: str) -> None:
    run = kept.bring(name)
    before = committed(run)
    assert "not imported without your permission" in shardmill("resume", run).err
    said = shardmill("resume", run, "--allow-code")
    assert said.status == 0, said.err
    assert before.items() <= committed(run).items()
    assert read_json(shardmill("verify", run, "--allow-code", "--json"))["verified"]


def _has_no_place(name: str) -> bool:
    """Whether no parameter names a folder: a map has its fit, an answer what it is looked for in."""
    return plan(VERSION / "runs" / name)["work"]["task"] not in ("map", "answer")


@pytest.mark.parametrize("name", [run for run in RUNS if _has_no_place(run)])
def test_the_work_of_a_run_has_the_same_plan_now(kept: Kept, name: str, tmp_path: Path) -> None:
    owner = max((each for each in COMMANDS if name in family(each)), key=len)
    kept.bring(owner)
    refuse_other_libraries(name)
    found = plan(kept.folder / "runs" / name)
    work = dict(found["work"])
    if "items" in work and "group_by" not in work:
        # A study has no source: the planner counts its trials.
        del work["source"], work["text"]
    spec = shardmill.make_spec(work, {"device": "cpu", "workers": 1})
    shardmill.prepare(spec, tmp_path / "again", allow_code=True)
    assert plan(tmp_path / "again")["id"] == found["id"]


def test_every_verb_has_a_finished_and_a_half_finished_run() -> None:
    verbs = {"embed", "generate", "summarize", "answer", "apply", "dedup", "train", "tune", "map", "run"}
    for names in (FINISHED, HALF):
        assert {COMMANDS[name]["words"][0] for name in names} == verbs
    assert {plan(VERSION / "runs" / name)["work"]["task"] for name in RUNS} >= {"augment", "kept.tasks:Lengths"}
