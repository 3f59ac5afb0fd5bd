"""The dashboard for Grafana, by Grafana's own types: no key, kind or choice that it does not know."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.prometheus import SHIPPED
from tests.support.services import unavailable

pytestmark = pytest.mark.services

SLIPS = {
    '"gridPos"': '"gridpos"',
    '"graphMode": "none"': '"graphMode": "nothing"',
    '"type": "timeseries"': '"type": "time-series"',
    '"fillOpacity"': '"opacity"',
}


def test_the_dashboard_is_of_the_types_of_grafana(tmp_path: Path) -> None:
    beside = Path(sys.prefix)
    node = shutil.which("node", path=f"{beside / 'bin'}{os.pathsep}{os.environ['PATH']}")
    compiler, types = beside / "bin" / "tsc", beside / "lib" / "node_modules"
    if node is None or not compiler.exists() or not (types / "@grafana" / "schema").exists():
        unavailable("Grafana's types are not installed: `make test-all` installs them beside the tests' packages.")
    (tmp_path / "node_modules").symlink_to(types)
    frame = (Path(__file__).parent / "dashboard.ts").read_text()
    board = (SHIPPED / "grafana-dashboard.json").read_text()
    (tmp_path / "shipped.ts").write_text(frame.replace("BOARD;", f"{board};"))
    for number, (right, wrong) in enumerate(SLIPS.items()):
        assert right in board
        (tmp_path / f"slip{number}.ts").write_text(frame.replace("BOARD;", f"{board.replace(right, wrong, 1)};"))
    options = ("--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--pretty", "false")
    files = sorted(path.name for path in tmp_path.glob("*.ts"))
    done = subprocess.run([node, compiler, *options, *files], capture_output=True, text=True, cwd=tmp_path)
    assert "shipped.ts" not in done.stdout, done.stdout
    assert set(re.findall(r"^(\w+)\.ts\(", done.stdout, re.MULTILINE)) == {f"slip{i}" for i in range(len(SLIPS))}
