"""Augmentation as a task like any other: planned, committed, resumed, verified, merged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from shardmill import cli
from shardmill.augment import AugmentationConfig, augmentation_table, choice, get_preset, log_uniform
from shardmill.core.errors import ShardmillError, SourceError, SpecError, StaleResume, UsageError
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine

CONFIG = AugmentationConfig(seed=3, extra={"blur": log_uniform(0.1, 3), "mode": choice(["crop", "pad"])})


def make(
    out: Path, source: str, params: dict[str, Any], *, text: str = "sample_id", id: str | None = "sample_id"
) -> Run:
    work = {"source": source, "text": text, "id": id, "task": "augment", "params": params}
    spec = make_spec(work, {"device": "cpu", "shard_bytes": 1000, "max_errors": "50%"})
    return start(spec, out, engine=InProcessEngine())


def test_a_run_over_a_range_is_the_table_and_is_verified(tmp_path: Path) -> None:
    run = make(tmp_path / "run", "range:500:5000", {"config": CONFIG.to_dict(), "epoch": 2})
    assert len(run.plan.shards) == 5
    report = run.verify()
    assert report.verified, report
    table = run.table()
    assert table.column("sample_id").to_pylist() == list(range(500, 5000))
    for name, column in augmentation_table(range(500, 5000), CONFIG, epoch=2).items():
        assert table.column(name).to_pylist() == column.tolist()


def test_ids_up_to_the_last_one_there_is_and_without_a_column_of_them(tmp_path: Path) -> None:
    last = 1 << 64
    run = make(tmp_path / "run", f"range:{last - 10}:{last}", {}, id=None)
    assert run.verify().verified
    table = augmentation_table([last - 10 + i for i in range(10)], get_preset("moderate"))
    assert run.table().column("scale").to_pylist() == table["scale"].tolist()


def test_a_resume_with_another_seed_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "run", "range:0:100", {"seed": 1})
    make(tmp_path / "run", "range:0:100", {"seed": 1})
    with pytest.raises(StaleResume, match="seed was 1 and is 2"):
        make(tmp_path / "run", "range:0:100", {"seed": 2})
    with pytest.raises(StaleResume):
        make(tmp_path / "run", "range:0:101", {"seed": 1})


def test_ids_of_a_file_have_the_same_parameters_and_what_is_no_id_is_set_aside(
    tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    path = write_jsonl([{"n": "7"}, {"n": "seven"}, {"n": "9"}, {"n": str(1 << 64)}], "ids.jsonl")
    run = make(tmp_path / "run", str(path), {"preset": "mild"}, text="n", id="n")
    expected = augmentation_table([7, 9], get_preset("mild"))["contrast"].tolist()
    assert run.table().column("contrast").to_pylist() == [expected[0], None, expected[1], None]
    assert [e["row"] for e in run.errors()] == [1, 3]


@pytest.mark.parametrize("source", ["range:5:5", "range:9:3", "range:0:18446744073709551617", "range:-1:3", "range:x"])
def test_what_is_no_range_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(SourceError, match="not a range of ids"):
        make(tmp_path / "run", source, {})
    with pytest.raises(SourceError, match="no field"):
        make(tmp_path / "run", "range:0:9", {}, id="asin")


@pytest.mark.parametrize("params", [{"preset": "modrate"}, {"epoch": -1}, {"config": {"rotation": [2, 1]}}])
def test_parameters_that_cannot_be_are_refused(tmp_path: Path, params: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        make(tmp_path / "run", "range:0:9", params)
    with pytest.raises(SpecError, match="preset and a config"):
        make(tmp_path / "run", "range:0:9", {"preset": "mild", "config": {}})


def test_the_command_makes_a_run_that_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(*words: str) -> None:
        cli.app(list(words), standalone_mode=False)

    run, merged = str(tmp_path / "run"), str(tmp_path / "all.parquet")
    command("augment", "--num-samples", "2k", "--preset", "aggressive", "--out", run, "--start-id", "40", "--json")
    command("verify", run)
    command("merge", run, "--out", merged)
    table = pq.read_table(merged)
    expected = augmentation_table(range(40, 2040), get_preset("aggressive"))
    assert table.column("rotation").to_pylist() == expected["rotation"].tolist()
    with pytest.raises(ShardmillError, match="not a number of samples"):
        command("augment", "--num-samples", "some", "--out", run)


def test_the_benchmark_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "bench.html"
    cli.app(["bench", "augment", "--samples", "512", "--iterations", "1", "--out", str(page)], standalone_mode=False)
    assert "reseeding a generator" in capsys.readouterr().out
    assert "<svg" in page.read_text()
