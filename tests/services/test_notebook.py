"""A run in a notebook, by a real kernel: a card that lives while the cell runs, and the run shows itself."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.console import card
from shardmill.ledger import Ledger
from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_rows
from tests.support.libraries import needed
from tests.support.waiting import PATIENCE_S, wait_for

Write = Callable[..., Path]
HOSTILE = "<script>alert(1)</script>\u202e\x1b[31m\"'&" + "x" * 1_000_000


class Tags(HTMLParser):
    """The elements and attributes of a piece of HTML, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def assert_plain(page: str) -> Tags:
    """No script, nothing to fetch, no colour of its own."""
    tags = Tags(page)
    assert tags.names <= {"div", "strong", "br", "progress", "table", "tr", "th", "td"}
    assert tags.attributes <= {"style", "value", "max", "aria-label", "scope"}
    styles = " ".join(re.findall(r'style="([^"]*)"', page))
    assert not re.search(r"url\(|https?:|#[0-9a-f]{3}", styles)
    assert set(re.findall(r"color: (\w+)", styles)) == {"inherit"}
    return tags


class Kernel:
    """A kernel that runs cells, and what each of them displays."""

    def __init__(self) -> None:
        from jupyter_client.manager import KernelManager

        # Over sockets of files: of ports the manager picks free ones, and another may take them before the kernel.
        self._manager = KernelManager(kernel_name="python3", transport="ipc")
        self._manager.start_kernel()
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE_S)

    def begin(self, code: str) -> str:
        """Begin to run a cell."""
        asked: str = self._client.execute(code)
        return asked

    def run(self, code: str) -> list[tuple[str, dict[str, Any]]]:
        """Run a cell: what kind of message came, with its content."""
        found: list[tuple[str, dict[str, Any]]] = []
        asked, deadline = self.begin(code), time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            message = self._client.get_iopub_msg(timeout=PATIENCE_S)
            if message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                return found
            assert kind != "error", "\n".join(content["traceback"])
            found.append((kind, content))
        raise TimeoutError(code)

    def kill(self) -> None:
        process: Any = self._manager.provisioner
        os.kill(process.pid, signal.SIGKILL)
        self.close()

    def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    needed("ipykernel")
    kernel = Kernel()
    yield kernel
    kernel.close()


@pytest.fixture
def spec(tmp_path: Path, write_jsonl: Write) -> str:
    rows = fake_rows(200)
    rows[7]["text"] = None  # type: ignore[assignment]
    work = {"source": str(write_jsonl(rows)), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    work |= {"params": {"dims": 4, "delay_s": 0.05}}  # type: ignore[dict-item]
    return f"{work!r}, { ({'shard_bytes': 2000, 'max_errors': '50%', 'workers': 1})!r}"


def test_a_cell_shows_a_card_that_lives_and_the_run_shows_itself(kernel: Kernel, spec: str, tmp_path: Path) -> None:
    shown = kernel.run(f"import shardmill\nshardmill.start(shardmill.make_spec({spec}), {str(tmp_path / 'run')!r})")
    first = [content for kind, content in shown if kind == "display_data"]
    assert len(first) == 1
    later = [content for kind, content in shown if kind == "update_display_data"]
    assert {content["transient"]["display_id"] for content in [*first, *later]} == {first[0]["transient"]["display_id"]}
    pages = [content["data"]["text/html"] for content in [*first, *later]]
    assert len(set(pages)) > 1
    assert "200 rows · 1 errors" in assert_plain(pages[-1]).text
    [itself] = [content["data"]["text/html"] for kind, content in shown if kind == "execute_result"]
    said = assert_plain(itself).text
    assert "complete" in said
    assert "'text' is null" in said


CELL = """
import pandas, shardmill
topics = ("bees", "ships", "bread", "rain", "music")
texts = [f"Note {n} is about {topics[n % 5]}. " * (4 + n % 8) for n in range(1_000)]
frame = pandas.DataFrame({"id": range(1_000), "text": texts})
run = shardmill.embed(frame, text="text", id="id", out=OUT, device="cpu", workers=1, shard_bytes=9_000)
"""


def test_a_cell_that_was_killed_in_its_middle_goes_on_in_a_new_kernel(tmp_path: Path) -> None:
    needed("ipykernel")
    out = str(tmp_path / "run")
    cell, ledger = CELL.replace("OUT", repr(out)), Ledger(out)
    killed = Kernel()
    try:
        killed.begin(cell)
        wait_for(lambda: ledger.find_plan() is not None and len(ledger.commits.shards()) >= 2)
    finally:
        killed.kill()
    done = dict(ledger.commits.read())
    assert 2 <= len(done) < len(ledger.plan().shards)
    written = {part: ledger.store.head(part) for part in (commit.part for commit in done.values())}
    again = Kernel()
    try:
        again.run(cell)
    finally:
        again.close()
    # What was done is as it was: no row of it was computed or written again.
    now = ledger.commits.read()
    assert {shard: now[shard] for shard in done} == done
    assert {part: ledger.store.head(part) for part in written} == written
    run = Run(out)
    table = run.table()
    assert table.column("id").to_pylist() == [*range(1_000)]
    assert table.column("embedding").null_count == 0
    assert run.verify(sample=2).verified


def test_who_asks_for_quiet_gets_it(kernel: Kernel, spec: str, tmp_path: Path) -> None:
    shown = kernel.run(
        f"import shardmill\nrun = shardmill.start(shardmill.make_spec({spec}), {str(tmp_path / 'run')!r}, quiet=True)"
    )
    assert not {kind for kind, _ in shown} & {"display_data", "update_display_data", "stream"}


def test_texts_of_the_data_are_text(tmp_path: Path, write_jsonl: Write) -> None:
    rows = fake_rows(5)
    rows[2]["id"] = HOSTILE[:100]
    rows[2]["text"] = None  # type: ignore[assignment]
    work = {"source": str(write_jsonl(rows)), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    run = start(make_spec(work, {"max_errors": "50%"}), tmp_path / "<b>run", engine=InProcessEngine())
    page = run._repr_html_()
    said = assert_plain(page)
    assert "<b>run · complete" in said.text
    assert "<script>alert(1)</script>\ufffd\ufffd[31m" in said.text
    assert len(page) < 10_000
    assert_plain(card(HOSTILE, 0.5, [(HOSTILE, HOSTILE)]))
    assert len(card(HOSTILE, 0.5, [(HOSTILE, HOSTILE)])) < 10_000


def test_a_run_that_cannot_be_read_says_so(tmp_path: Path, write_jsonl: Write) -> None:
    work = {"source": str(write_jsonl(fake_rows(5))), "text": "text", "id": "id", "task": "shardmill.testing:FakeTask"}
    run = start(make_spec(work, {}), tmp_path / "run", engine=InProcessEngine())
    run = Run(run.ledger.url)
    (tmp_path / "run" / "execution.json").write_text("[")
    assert "execution.json is damaged" in assert_plain(run._repr_html_()).text
