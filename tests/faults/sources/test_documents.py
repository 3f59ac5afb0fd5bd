"""Documents that hang and bomb, and workers killed over documents, in two stores; files and pages are found."""

from __future__ import annotations

import gc
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.devices import Device
from shardmill.ledger import Ledger
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.run.planner import make_plan
from shardmill.sources.documents import parsing, source
from shardmill.testing import crash_at
from shardmill.worker import Worker
from tests.contract.sources.test_documents import ARCHIVES, read, write
from tests.support.documents import as_bomb_pdf, as_docx, as_pdf, as_pptx, as_slow_pdf
from tests.support.forking import Forking
from tests.support.sources import put
from tests.support.waiting import PATIENCE_S

processes = Forking()


def test_a_pdf_that_hangs_or_bombs_costs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"bomb.pdf": as_bomb_pdf(600 << 20), "good.pdf": as_pdf(["fine"]), "slow.pdf": as_slow_pdf()})
    monkeypatch.setattr(source, "Parser", partial(parsing.Parser, seconds=1, memory_bytes=400 << 20))
    found = read([tmp_path])
    assert found["good.pdf"][0] == "fine"
    assert "took longer than 1 s" in found["slow.pdf"][2]
    assert "the process that parsed it" in found["bomb.pdf"][2]


def documents() -> dict[str, bytes]:
    """Sixty of several kinds, some of them broken."""
    found: dict[str, bytes] = {}
    for n in range(20):
        found[f"{n:02d}/paper.pdf"] = as_pdf([f"page one of {n}", "page two"])[: 200 if n % 7 == 3 else None]
        found[f"{n:02d}/notes.md"] = f"# Notes {n}\n\n{'tea ' * n}".encode()
        found[f"{n:02d}/letter.docx"] = as_docx([("x", f"Letter {n}.")])
    return found


def _work(run: str, step: str = "", environment: dict[str, str] | None = None) -> None:
    os.environ.update(environment or {})
    hook: dict[str, Any] = {"on_step": crash_at(step)} if step else {}
    Worker(Ledger(run), device=Device("cpu", "cpu"), **hook).work()


@pytest.mark.parametrize("store", ["local", pytest.param("s3", marks=pytest.mark.services)])
@pytest.mark.parametrize("kind", ["folder", "docs.zip", "docs.tar", "docs.tar.gz"])
def test_killed_and_resumed_every_document_is_there_once(
    store: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root = str(tmp_path) if store == "local" else f"{request.getfixturevalue('s3_server')}/{tmp_path.name}"
    files = documents()
    if kind == "folder":
        for name, data in files.items():
            put(f"{root}/docs", name, data)
    else:
        put(root, kind, ARCHIVES[kind](files))
    place = f"{root}/docs" if kind == "folder" else f"{root}/{kind}"
    work = {"source": place, "text": "text", "id": "file", "keep": "title,bytes,pages", "format": "files"}
    limits = {"max_errors": "50%", "shard_bytes": 5_000, "max_restarts": 99}
    spec = make_spec({**work, "task": "shardmill.testing:FakeTask"}, limits)
    ledger = Ledger(f"{root}/run")
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    stores = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    for step in ("claimed", "staged", "committed"):
        worker = processes.Process(target=_work, args=(ledger.url, step, stores))
        worker.start()
        worker.join(PATIENCE_S)
        assert worker.exitcode == -signal.SIGKILL
    _work(ledger.url)
    run = Run(ledger.url)
    order = sorted(files) if kind == "folder" else list(files)
    assert run.table().column("file").to_pylist() == order
    assert len([*run.errors()]) == 3
    report = run.verify()
    assert report.verified, [check for check in report.checks if not check.ok]
    # What a worker holds refers to itself; with it end the processes that parse.
    gc.collect()


@pytest.mark.parametrize("keep", ["page", "pages"])
def test_documents_are_searched_with_their_file_and_page(keep: str, tmp_path: Path) -> None:
    pages = [f"{topic} " * 60 for topic in ("Bees make honey.", "Ships cross the sea.", "Bread is baked from flour.")]
    write(tmp_path / "docs", {"a/three.pdf": as_pdf([page.replace(". ", ".\n") for page in pages])})
    write(
        tmp_path / "docs", {"note.md": b"A note about rain.", "talk.pptx": as_pptx([("Tax", "Pay it."), ("Law", "")])}
    )
    work = {"source": str(tmp_path / "docs"), "text": "text", "id": "file", "keep": keep, "format": "files"}
    run = start(make_spec({**work, "params": {"window_tokens": 64}}, {"device": "cpu"}), tmp_path / "run", quiet=True)
    assert run.plan.work.params["borders"] is True
    hits = run.search("boats on the ocean", k=1)
    assert (hits[0].values, hits[0].page) == ({"file": "a/three.pdf"}, 2)
    assert run.search("rainy weather", k=1)[0].page is None
    assert run.verify(sample=2).verified
