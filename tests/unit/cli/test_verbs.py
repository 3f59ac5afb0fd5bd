"""The command line: exit statuses, one or two lines that say what to do next, data on stdout and talk on stderr."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import UsageError
from shardmill.ledger import Ledger
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine
from tests.support.cli import Cli, Said, assert_told, command, process, without_progress, write_spec
from tests.support.corpora import fake_rows, fake_spec
from tests.support.waiting import PATIENCE_S, hear_ctrl_c, wait_for

Write = Callable[..., Path]
NOBODY = 65534


@pytest.fixture
def items(write_jsonl: Write) -> Path:
    return write_jsonl(fake_rows(60))


@pytest.fixture
def run(items: Path, tmp_path: Path) -> Run:
    return start(fake_spec(items), tmp_path / "run", engine=InProcessEngine())


# It works.


def test_a_run_from_a_spec_ends_with_0_and_says_what_next(tmp_path: Path, items: Path) -> None:
    said = process("run", "--spec", write_spec(tmp_path, items), "--out", tmp_path / "run")
    assert said.status == 0, said.err
    assert said.out == ""
    assert "60 rows in" in said.err
    assert "Next: shardmill verify" in said.err
    assert Run(tmp_path / "run").verify().verified


def test_verify_ends_with_0_when_all_holds_and_1_when_it_does_not(shardmill: Cli, run: Run) -> None:
    good = shardmill("verify", run.ledger.url)
    assert (good.status, "Verified: 60 rows" in good.out) == (0, True)
    next((Path(run.ledger.url) / "parts").iterdir()).unlink()
    bad = shardmill("verify", run.ledger.url)
    assert (bad.status, "NOT verified" in bad.out) == (1, True)
    assert shardmill("verify", run.ledger.url, "--json").status == 1


def test_verify_says_what_it_reads_again_and_what_it_leaves_out(shardmill: Cli, run: Run) -> None:
    whole = shardmill("verify", run.ledger.url)
    assert "The whole source is read again: " in whole.err
    assert "of 60 items are those of the source" in whole.out
    less = shardmill("verify", run.ledger.url, "--no-source")
    assert less.status == 0
    assert "read again" not in less.err
    assert "not compared with the source: --no-source" in less.out


def test_verify_compares_a_result_with_what_is_expected(shardmill: Cli, run: Run) -> None:
    good = shardmill("verify", run.ledger.url, "--rows", 60, "--dims", 8)
    assert (good.status, "60 rows, 8 dimensions, as expected" in good.out) == (0, True)
    bad = shardmill("verify", run.ledger.url, "--rows", 61, "--dims", 1024)
    assert bad.status == 1
    assert "61 rows, 1,024 dimensions expected; 60 rows, 8 dimensions found" in bad.out
    assert shardmill("verify", run.ledger.url, "--dims", 9).status == 1
    (asked,) = [
        c for c in json.loads(shardmill("verify", run.ledger.url, "--rows", 1, "--json").out)["checks"] if not c["ok"]
    ]
    assert asked == {"name": "expected", "ok": False, "seen": "1 rows expected; 60 rows found"}


def test_json_is_all_there_is_on_stdout(shardmill: Cli, run: Run, tmp_path: Path) -> None:
    url, spec = run.ledger.url, write_spec(tmp_path, tmp_path / "items.jsonl")
    plan = json.loads(shardmill("plan", "--spec", spec, "--json").out)
    assert plan["id"] == run.plan.id
    assert json.loads(shardmill("run", "--spec", spec, "--out", url, "--json").out)["state"] == "complete"
    assert json.loads(shardmill("status", url, "--json").out)["rows"] == 60
    assert json.loads(shardmill("verify", url, "--json").out)["verified"] is True
    assert json.loads(shardmill("merge", url, "--out", tmp_path / "m.parquet", "--json").out)["rows"] == 60
    assert json.loads(shardmill("search", url, "text 0 ", "--json").out)["hits"][0]["values"] == {"id": "k0"}
    assert len(json.loads(shardmill("search", url, "a", "b", "-k", 2, "--json").out)) == 2
    assert json.loads(shardmill("show", url, "--shard", 1).out)["commit"]["shard"] == 1
    assert json.loads(shardmill("show", url, "--errors", "--json").out) == []


def test_talk_goes_to_stderr(shardmill: Cli, run: Run, tmp_path: Path) -> None:
    merged = shardmill("merge", run.ledger.url, "--out", tmp_path / "m.npy")
    assert (merged.status, merged.out) == (0, "")
    assert "60 rows" in merged.err
    again = shardmill("run", "--spec", write_spec(tmp_path, tmp_path / "items.jsonl"), "--out", run.ledger.url)
    assert (again.status, again.out) == (0, "")


def test_search_prints_the_nearest_first(shardmill: Cli, run: Run) -> None:
    said = shardmill("search", run.ledger.url, "text 0 ", "-k", 2)
    assert said.out.splitlines()[:2] == ["text 0 ", "  1.000  k0"]
    assert len(said.out.splitlines()) == 3


def test_status_and_plan_for_people(shardmill: Cli, run: Run, tmp_path: Path) -> None:
    assert "complete  100.0%" in shardmill("status", run.ledger.url).out
    assert run.plan.id in shardmill("plan", "--spec", write_spec(tmp_path, tmp_path / "items.jsonl")).out


def test_rows_that_failed_are_listed_by_file_and_line(shardmill: Cli, tmp_path: Path, write_jsonl: Write) -> None:
    rows: list[Any] = fake_rows(20)
    rows[7] = '{"id": "k7", "text": "broken'
    run = start(fake_spec(write_jsonl(rows)), tmp_path / "run", engine=InProcessEngine())
    said = shardmill("show", run.ledger.url, "--errors")
    assert said.out.startswith("items.jsonl:8: ")
    assert "broken JSON" in said.out


def test_version_and_help(shardmill: Cli) -> None:
    assert shardmill("--version").out.strip() == "0.2.0"
    said = shardmill("--help")
    assert said.status == 0
    assert "embed" in said.out


# What is wrong is said.


def test_a_missing_file(shardmill: Cli, tmp_path: Path, items: Path) -> None:
    said = shardmill("embed", tmp_path / "item.jsonl", "--text", "text", "--out", tmp_path / "run")
    assert_told(said, 2, "item.jsonl: no such file", "Did you mean 'items.jsonl'?")
    assert not (tmp_path / "run").exists()


def test_an_empty_file(shardmill: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    said = shardmill("embed", tmp_path / "empty.jsonl", "--text", "text", "--out", tmp_path / "run")
    assert_told(said, 2, "no rows in", "empty.jsonl")


def test_no_such_column(shardmill: Cli, tmp_path: Path, items: Path) -> None:
    said = shardmill("embed", items, "--text", "txet", "--out", tmp_path / "run")
    assert_told(said, 2, "no field 'txet' in items.jsonl", "Available: id, text. Did you mean 'text'?")


def test_a_column_of_the_wrong_type(shardmill: Cli, tmp_path: Path, write_jsonl: Write) -> None:
    source = write_jsonl([{"n": 5, "text": "a"}])
    said = shardmill("embed", source, "--text", "n", "--out", tmp_path / "run")
    assert_told(said, 2, "'n' in items.jsonl holds", "not text, for example 5", "Fields that hold text: text")


def test_no_out(shardmill: Cli, items: Path) -> None:
    assert_told(shardmill("embed", items, "--text", "text"), 2, "No --out was given", "--out runs/mine")


def test_an_option_that_is_given_twice(shardmill: Cli, items: Path, tmp_path: Path) -> None:
    """Of `--keep price --keep brand` only the last would be kept, and nobody would know."""
    twice = ("--keep", "price", "--keep", "brand")
    said = shardmill("embed", items, "--text", "body", "--model", "m", "--out", tmp_path / "run", *twice)
    assert_told(said, 2, "--keep is given twice.", "a list is written with commas")
    assert not (tmp_path / "run").exists()
    assert shardmill("hosts", "--help", "--help").status == 0


def test_no_text(shardmill: Cli, items: Path, tmp_path: Path) -> None:
    assert_told(shardmill("embed", items, "--out", tmp_path / "run"), 2, "No text was given")


def test_a_folder_that_holds_another_run(shardmill: Cli, run: Run, tmp_path: Path, write_jsonl: Write) -> None:
    other = write_jsonl(fake_rows(3), "other.jsonl")
    said = shardmill("run", "--spec", write_spec(tmp_path, other), "--out", run.ledger.url)
    assert_told(said, 2, "holds a different run", "items.jsonl and has other.jsonl", "--fresh")
    assert run.verify().verified


def test_a_folder_that_holds_something_else(shardmill: Cli, items: Path, tmp_path: Path) -> None:
    said = shardmill("run", "--spec", write_spec(tmp_path, items), "--out", tmp_path)
    assert_told(said, 2, "is not empty and holds no run", "--out")


def test_an_output_that_is_a_file(shardmill: Cli, items: Path, tmp_path: Path) -> None:
    assert_told(shardmill("run", "--spec", write_spec(tmp_path, items), "--out", items), 1, "Not a directory", "--out")


@pytest.mark.parametrize("limit", ["some", "-1", "200%"])
def test_a_limit_that_is_none(shardmill: Cli, items: Path, tmp_path: Path, limit: str) -> None:
    said = shardmill("embed", items, "--text", "text", "--out", tmp_path / "run", "--max-errors", limit)
    assert_told(said, 2, f"'{limit}' is neither a percentage like 1% nor a count like 250")


def test_a_spec_that_is_wrong(shardmill: Cli, tmp_path: Path, items: Path) -> None:
    out = ["--out", tmp_path / "run"]
    assert_told(shardmill("run", "--spec", tmp_path / "none.toml", *out), 2, "none.toml: no such file")
    assert_told(shardmill("run", "--spec", tmp_path, *out), 2, "Is a directory")
    spec = write_spec(tmp_path, items, params="colour = 1")
    assert_told(shardmill("run", "--spec", spec, *out), 2, "colour")


def test_a_shard_that_is_not_there(shardmill: Cli, run: Run) -> None:
    last = len(run.plan.shards) - 1
    for number in (99, last + 1):
        assert_told(shardmill("show", run.ledger.url, "--shard", number), 2, f"this run has shards 0 to {last}")


def test_a_shard_that_is_no_number_shows_the_usage(shardmill: Cli, run: Run) -> None:
    said = shardmill("show", run.ledger.url, "--shard", "first")
    assert said.status == 2
    assert "Usage:" in said.err
    assert "Traceback" not in said.err


def test_an_unknown_option_or_verb_shows_the_usage(shardmill: Cli) -> None:
    for words in (["verify"], ["verify", "x", "--colour"]):
        said = shardmill(*words)
        assert (said.status, said.out) == (2, "")
        assert "Usage:" in said.err
    assert_told(shardmill("embedd"), 2, "There is no verb embedd.", "Did you mean 'embed'?")
    assert_told(shardmill("embed", "x", "--sentences", 3), 2, "It is an option of summarize.")


def test_a_file_of_an_unknown_kind_to_merge_into(shardmill: Cli, run: Run, tmp_path: Path) -> None:
    said = shardmill("merge", run.ledger.url, "--out", tmp_path / "m.xlsx")
    assert_told(said, 2, "m.xlsx: the name must end in .parquet, .npy or .faiss")


def test_a_search_that_asks_for_nothing(shardmill: Cli, run: Run) -> None:
    assert_told(shardmill("search", run.ledger.url, "x", "-k", 0), 2, "-k 0: must be at least 1")


@pytest.mark.parametrize("texts", [[""], [" \n"], ["x", ""]])
def test_a_search_for_an_empty_text_is_refused(shardmill: Cli, run: Run, texts: list[str]) -> None:
    assert_told(shardmill("search", run.ledger.url, *texts), 2, "The text to search for is empty")
    with pytest.raises(UsageError, match="is empty"):
        run.search_many(texts)


@pytest.mark.parametrize("folder", ["/proc/shardmill", "/proc/shardmill/runs"])
@pytest.mark.parametrize("verb", ["run", "split", "augment", "merge", "bench augment", "bench embed"])
def test_a_folder_that_cannot_be_made_is_named_with_the_remedy(
    shardmill: Cli, run: Run, items: Path, verb: str, folder: str
) -> None:
    """mkdir fails under /proc with "No such file or directory", which is no missing object."""
    words = {
        "run": ["run", items, "--task", "shardmill.testing:FakeTask", "--text", "text", "--out", folder],
        "split": ["split", items, "--out", folder],
        "augment": ["augment", "--num-samples", 10, "--out", folder],
        "merge": ["merge", run.ledger.url, "--out", f"{folder}/m.parquet"],
        "bench augment": ["bench", "augment", "--samples", 10, "--out", f"{folder}/bench.html"],
        "bench embed": ["bench", "embed", "--texts", 1, "--out", folder],
    }
    assert_told(shardmill(*words[verb]), 1, f"{folder}", "cannot be created: No such file", "with --out")


@pytest.mark.parametrize("verb", [["search", "x"], ["merge", "--out", "m.parquet"]])
def test_a_run_that_is_not_complete(shardmill: Cli, run: Run, verb: list[str]) -> None:
    next((Path(run.ledger.url) / "commits").glob("000001.*")).unlink()
    said = shardmill(verb[0], run.ledger.url, *verb[1:])
    assert_told(said, 1, f"1 of {len(run.plan.shards)} shards are not done", "it resumes")


@pytest.mark.parametrize("verb", [["status"], ["verify"], ["search", "x"], ["show"], ["merge", "--out", "m.npy"]])
def test_a_folder_without_a_run(shardmill: Cli, tmp_path: Path, verb: list[str]) -> None:
    assert_told(shardmill(verb[0], tmp_path, *verb[1:]), 2, "no run found here")


def test_too_many_errors_end_with_1(shardmill: Cli, tmp_path: Path, write_jsonl: Write) -> None:
    rows = fake_rows(20)
    rows[3]["text"] = ""
    source = write_jsonl(rows)
    start(fake_spec(source), tmp_path / "run", engine=InProcessEngine())
    said = shardmill("run", "--spec", write_spec(tmp_path, source), "--out", tmp_path / "run")
    assert_told(said, 1, "1 of 20 rows failed (5.0%), over --max-errors 1%; the last: ", "Nothing is lost")


def test_a_model_that_is_not_to_be_had(shardmill: Cli, items: Path, tmp_path: Path) -> None:
    """Offline, in a process of its own: the hub's client reads its settings once."""
    said = process(
        *("embed", items, "--text", "text", "--model", "no-such-model", "--out", tmp_path / "run"),
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert_told(said, 2, "'no-such-model' is not a local folder and cannot be downloaded", "pass a model folder")


def test_a_model_folder_that_is_not_there(shardmill: Cli, items: Path, tmp_path: Path) -> None:
    said = shardmill("embed", items, "--text", "text", "--model", "./nowhere", "--out", tmp_path / "run")
    assert_told(said, 2, "No model folder at './nowhere'", "config.json")


def test_a_task_that_is_not_there(shardmill: Cli, items: Path, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, items)
    spec.write_text(spec.read_text().replace("shardmill.testing:FakeTask", "embedd"))
    said = shardmill("run", "--spec", spec, "--out", tmp_path / "run")
    assert_told(said, 2, "No task is called 'embedd'", "Did you mean 'embed'?")


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    said = process("--debug", "verify", tmp_path)
    assert said.status == 1
    assert "Traceback" in said.err


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


AS_NOBODY = f"""
import os, pkgutil, sys, shardmill
for module in pkgutil.walk_packages(shardmill.__path__, "shardmill."):
    if "__main__" not in module.name and ".embed" not in module.name:
        __import__(module.name)
if os.geteuid() == 0:
    os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
shardmill.cli.main()
"""


def _as_nobody(*words: object) -> Said:
    """Root may do everything, so it steps down once all is imported; anybody else stays who he is."""
    command = [sys.executable, "-c", AS_NOBODY, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, cwd="/")
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("verb", ["status", "runs"])
def test_a_run_one_may_not_read(open_folder: Path, verb: str) -> None:
    (open_folder / "runs").mkdir()
    (open_folder / "runs" / "plan.json").write_text("{}")
    (open_folder / "runs").chmod(0)
    said = _as_nobody(verb, open_folder / "runs")
    (open_folder / "runs").chmod(0o755)
    assert_told(said, 1, "Permission denied", "may read")


def test_a_folder_one_may_not_write_to(open_folder: Path) -> None:
    source = open_folder / "items.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in fake_rows(5)))
    spec = write_spec(open_folder, source)
    open_folder.chmod(0o555)
    said = _as_nobody("run", "--spec", spec, "--out", open_folder / "run")
    open_folder.chmod(0o755)
    assert_told(said, 1, "Permission denied", "choose another with --out")


def test_a_source_one_may_not_read(open_folder: Path) -> None:
    source = open_folder / "items.jsonl"
    source.write_text('{"id": "a", "text": "b"}\n')
    source.chmod(0)
    spec = write_spec(open_folder, source)
    said = _as_nobody("run", "--spec", spec, "--out", open_folder / "run")
    assert_told(said, 2, "items.jsonl: Permission denied", "may read it")


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(tmp_path: Path, write_jsonl: Write) -> None:
    spec = write_spec(tmp_path, write_jsonl(fake_rows(400)), params="delay_s = 0.2")
    words = command("run", "--spec", spec, "--out", tmp_path / "run")
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c)
    wait_for(lambda: Ledger(tmp_path / "run").leases.read())
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 130
    assert (out, without_progress(err).strip()) == ("", "Stopped. The same command resumes.")
    assert Ledger(tmp_path / "run").leases.read() == {}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_loses_nothing(tmp_path: Path, write_jsonl: Write, small_disk: Path) -> None:
    """600 vectors of 4 KB do not fit into 1 MiB; with more room the same command goes on."""
    spec = write_spec(tmp_path, write_jsonl(fake_rows(600)), params="dims = 1024", shard_bytes=5_000)
    words = ("run", "--spec", spec, "--out", small_disk / "run")
    full = process(*words)
    assert_told(full, 1, "no space left on the disk", "it resumes")
    done = dict(Ledger(small_disk / "run").commits.read())
    assert 0 < len(done) < len(Run(small_disk / "run").plan.shards)
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert process(*words).status == 0
    run = Run(small_disk / "run")
    assert {i: c for i, c in run.ledger.commits.read().items() if i in done} == done
    assert run.table().num_rows == 600
    assert run.verify().verified
