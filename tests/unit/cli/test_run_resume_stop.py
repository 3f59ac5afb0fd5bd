"""`shardmill run`, `resume` and `stop`, old ways that point to the new ones, and help that shows what there is."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shardmill.core.dialect import speaking
from shardmill.core.errors import UsageError
from shardmill.ledger import Ledger
from shardmill.plan.spec import make_spec, read_spec
from shardmill.run import Run, start
from tests.support.cli import Cli, assert_told, command, write_spec
from tests.support.corpora import fake_rows
from tests.support.waiting import PATIENCE_S, wait_for

Write = Callable[..., Path]
FAKE = "shardmill.testing:FakeTask"


def test_any_task_runs_by_options_alone(shardmill: Cli, write_jsonl: Write, tmp_path: Path) -> None:
    source = write_jsonl(fake_rows(30))
    words = (
        "run",
        source,
        "--task",
        FAKE,
        "--param",
        "dims=4",
        "--param",
        "version=two",
        "--text",
        "text",
        "--id",
        "id",
    )
    said = shardmill(*words, "--out", tmp_path / "run")
    assert said.status == 0, said.err
    run = Run(tmp_path / "run")
    assert run.plan.work.params == {"dims": 4, "version": "two"}
    assert run.table(["id"]).column("id").to_pylist() == [row["id"] for row in fake_rows(30)]


def test_a_run_needs_a_task_and_embed_runs_no_other(shardmill: Cli, write_jsonl: Write, tmp_path: Path) -> None:
    source = write_jsonl(fake_rows(3))
    assert_told(shardmill("run", source, "--text", "text", "--out", tmp_path / "run"), 2, "No task was given", "--task")
    spec = write_spec(tmp_path, source)
    said = shardmill("embed", "--spec", spec, "--out", tmp_path / "run")
    assert_told(said, 2, f"its task is '{FAKE}'", "shardmill run --spec")
    said = shardmill("run", source, "--task", FAKE, "--param", "dims", "--text", "text", "--out", tmp_path / "run")
    assert_told(said, 2, "--param 'dims' is not KEY=VALUE")


def test_what_comes_next_can_be_pasted_into_a_shell(shardmill: Cli, write_jsonl: Write, tmp_path: Path) -> None:
    place = tmp_path / "it's a run; $(id)"
    said = shardmill("run", "--spec", write_spec(tmp_path, write_jsonl(fake_rows(3))), "--out", place)
    assert said.status == 0, said.err
    line = next(line for line in said.err.splitlines() if line.startswith("Next: "))
    told = [shlex.split(each) for each in line.removeprefix("Next: ").split("   ")]
    assert ["shardmill", "verify", str(place)] in told
    assert all(str(place) in words for words in told)


def test_a_run_is_not_both_resumed_and_deleted(shardmill: Cli, write_jsonl: Write, tmp_path: Path) -> None:
    spec, place = write_spec(tmp_path, write_jsonl(fake_rows(3))), tmp_path / "run"
    assert shardmill("run", "--spec", spec, "--out", place).status == 0
    before = Ledger(place).plan().generation
    for both in (("--resume", "--fresh"), ("--fresh", "--resume")):
        assert_told(shardmill("run", "--spec", spec, "--out", place, *both), 2, "Both --fresh and --resume are given")
    with speaking("python"), pytest.raises(UsageError, match="Both fresh=True and resume=True are given"):
        start(make_spec(**read_spec(spec)), place, fresh=True, resume=True)
    assert Ledger(place).plan().generation == before


def test_stop_ends_a_run_and_resume_finishes_it(shardmill: Cli, write_jsonl: Write, tmp_path: Path) -> None:
    rows, place = fake_rows(400), tmp_path / "run"
    spec = write_spec(tmp_path, write_jsonl(rows), params="delay_s = 0.2")
    words = command("run", "--spec", spec, "--out", place)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        wait_for(lambda: (place / "plan.json").exists() and len(Ledger(place).commits.shards()) >= 2)
        stopped = shardmill("stop", place, "--json")
        assert stopped.status == 0, stopped.err
        assert json.loads(stopped.out)["living"] == 0
        _, err = parent.communicate(timeout=PATIENCE_S)
    assert parent.returncode == 75, err
    assert "resume" in err
    left = Ledger(place)
    assert 0 < len(left.commits.shards()) < len(left.plan().shards)
    assert left.leases.read() == {}
    kept = left.commits.read()
    Path(spec).unlink()
    resumed = shardmill("resume", place, "--workers", 2)
    assert resumed.status == 0, resumed.err
    run = Run(place)
    assert {i: c for i, c in run.ledger.commits.read().items() if i in kept} == kept
    assert run.table(["id"]).column("id").to_pylist() == [row["id"] for row in rows]
    assert run.verify().verified
    assert "nothing to stop" in shardmill("stop", place).err
    assert shardmill("resume", place).status == 0


def test_resume_refuses_another_model(shardmill: Cli, write_jsonl: Write, tmp_path: Path) -> None:
    place = tmp_path / "run"
    assert shardmill("run", "--spec", write_spec(tmp_path, write_jsonl(fake_rows(20))), "--out", place).status == 0
    plan = json.loads((place / "plan.json").read_text())
    plan["fingerprint"] = dict.fromkeys(plan["fingerprint"], "another")
    (place / "plan.json").write_text(json.dumps(plan))
    assert_told(shardmill("resume", place), 2, "the model here is not the one")


@pytest.mark.parametrize("verb", ["resume", "stop"])
def test_a_folder_without_a_run(shardmill: Cli, tmp_path: Path, verb: str) -> None:
    assert_told(shardmill(verb, tmp_path), 2, "no run")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["embed", "x.jsonl", "--to", "postgresql:///docs"], "`shardmill load`"),
        (["embed", "x.jsonl", "--table", "documents"], "`shardmill load`"),
        (["load", "x.jsonl", "--columns", "price"], "--keep"),
        (["split", "x.jsonl", "--workers", "3", "--out", "d"], "--chunks"),
    ],
)
def test_an_old_way_gets_one_line_that_names_the_new_one(shardmill: Cli, words: list[str], said: str) -> None:
    found = shardmill(*words)
    assert_told(found, 2, said)
    assert len(found.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('[work]\nsorce = "x"\ntext = "t"\n', "[work] has no key 'sorce'. Did you mean 'source'?"),
        ('[work]\nsource = "x"\ntext = "t"\n[execution]\nworker = 2\n', "no key 'worker'. Did you mean 'workers'?"),
        (
            '[work]\nsource = "x"\ntext = "t"\n[work.to]\nurl = "postgresql:///d"\ntabel = "t"\n',
            "Did you mean 'table'?",
        ),
        ('[wrok]\nsource = "x"\n', "Did you mean 'work'?"),
        ('[work]\nsource = "x"\ntext = "t"\ntask = "augmnt"\n', "Did you mean 'augment'?"),
    ],
)
def test_a_misspelt_word_of_a_spec_suggests_the_nearest(shardmill: Cli, tmp_path: Path, toml: str, said: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(toml)
    (tmp_path / "x").write_text('{"t": "a"}\n')
    found = shardmill(
        "run", "--spec", path, "--out", tmp_path / "run", "--task", "embed" if "task" not in toml else "augmnt"
    )
    assert found.status == 2
    assert said.partition(". ")[2] in found.err or said in found.err


def test_a_misspelt_verb_suggests_the_nearest(shardmill: Cli) -> None:
    assert "Did you mean 'embed'?" in shardmill("embedd").err


def test_help_is_in_groups_with_examples(shardmill: Cli) -> None:
    said = shardmill("embed", "--help").out
    titles = ["Examples:", "Arguments:", "Source:", "Model:", "What is kept:", "Where it runs:", "Limits:", "Options:"]
    places = [said.index(f"\n{title}") for title in titles]
    assert places == sorted(places)
    assert said.count("  shardmill embed ") >= 2
    root = shardmill("--help").out
    assert "--install-completion" in root
    assert all(verb in root for verb in ("run", "embed", "load", "augment", "resume", "stop", "split", "hosts"))


def test_the_package_is_a_command_too() -> None:
    for module in ("shardmill", "shardmill.cli"):
        done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True)
        assert done.stdout.strip() == "0.2.0"
