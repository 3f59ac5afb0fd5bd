"""The suites that a plug-in's tests call hold for our own parts and for the example, and find planted faults."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import mailbox
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill import plugins
from shardmill.plugins.builtin import BUILTIN
from shardmill.sinks.base import Lot
from shardmill.sources import formats
from shardmill.testing import FakeTask, check_engine, check_sink, check_source, check_task
from tests.contract.sources.test_arrow_json_pickle import save
from tests.support import checked
from tests.support.checked import ROWS
from tests.support.libraries import needed

needed("fastavro")
needed("openpyxl")
needed("python_calamine")

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin" / "src"


def write_mail(path: Path) -> None:
    box = mailbox.mbox(path)
    for row in ROWS:
        message = EmailMessage()
        message["Message-ID"], message["Subject"] = row["id"], "Hello"
        message.set_content(row["body"])
        box.add(mailbox.mboxMessage(message))
    box.flush()


WRITE: dict[str, Callable[[Path], Any]] = {**checked.WRITE, "mbox": write_mail}


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example's declarations, as if its package were installed."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for group, name in (("verbs", "count"), ("sources", "mbox"), ("sinks", "outbox")):
        monkeypatch.setitem(BUILTIN[group], name, f"shardmill_letters:{name.upper()}")
    for cached in (formats.every_format, formats.suffixes, plugins.installed):
        cached.cache_clear()
    yield
    for cached in (formats.every_format, formats.suffixes, plugins.installed):
        cached.cache_clear()
    for name in [name for name in sys.modules if name.startswith("shardmill_letters")]:
        del sys.modules[name]


@pytest.mark.parametrize("format", WRITE)
@pytest.mark.usefixtures("letters")
def test_a_source_keeps_the_contract(format: str, tmp_path: Path) -> None:
    place = tmp_path / f"items.{format}"
    WRITE[format](place)
    text = [{**row, "body": row["body"] + "\n"} for row in ROWS] if format == "mbox" else ROWS
    assert check_source([place], rows=text, text="body", id="id", format=format) >= 20


def test_lines_of_text_keep_the_contract(tmp_path: Path) -> None:
    place = tmp_path / "items.txt"
    place.write_text("".join(row["body"] + "\n" for row in ROWS))
    assert check_source([place], rows=[{"text": row["body"]} for row in ROWS], text="text") >= 20


def test_every_format_of_ours_is_checked() -> None:
    """Sources by scheme are in test_conformance_by_scheme, documents in sources/test_documents."""
    formats = {name for name in BUILTIN["sources"] if plugins.find("sources", name).suffixes}
    assert formats <= {*WRITE, "text", "files"}


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, zstd], ids=["gz", "bz2", "xz", "zst"])
def test_a_compressed_source_keeps_the_contract(
    compress: Callable[[bytes], bytes], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    WRITE["jsonl"](tmp_path / "plain")
    place = tmp_path / f"items.jsonl.{request.node.callspec.id}"
    place.write_bytes(compress((tmp_path / "plain").read_bytes()))
    assert check_source([place], rows=ROWS, text="body", id="id") >= 20


def test_a_saved_dataset_keeps_the_contract(tmp_path: Path) -> None:
    parts = [pa.Table.from_pylist(ROWS[:25]), pa.Table.from_pylist(ROWS[25:])]
    assert check_source([save(tmp_path / "saved", parts)], rows=ROWS, text="body", id="id", format="datasets") >= 20


def test_many_files_keep_the_contract(tmp_path: Path) -> None:
    places = [tmp_path / f"{n:02}.jsonl" for n in range(12)]
    for n, place in enumerate(places):
        place.write_text("".join(json.dumps(row) + "\n" for row in ROWS[n * 5 : n * 5 + 5]))
    assert check_source(places, rows=ROWS, text="body", id="id") >= 20


@pytest.mark.usefixtures("letters")
def test_planted_faults_of_a_source_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardmill_letters import mbox

    place = tmp_path / "items.mbox"
    write_mail(place)
    rows = [{**row, "body": row["body"] + "\n"} for row in ROWS]

    def found(**faults: Any) -> str:
        with monkeypatch.context() as patch:
            for name, value in faults.items():
                patch.setattr(mbox, name, value)
            with pytest.raises(AssertionError) as caught:
                check_source([place], rows=rows, text="body", id="id", format="mbox")
        return str(caught.value)

    real = mbox.find_messages
    assert "every row once" in found(find_messages=lambda *given: list(real(*given))[:-1])
    assert "every row once" in found(find_messages=lambda read, start, stop, end: real(read, start, end, end))
    assert "bytes that it says" in found(extents=lambda stat, shard, number: [(shard.start, shard.stop)])
    assert "missing field" in found(describe=lambda stat, fields: {"id": "string"})


@pytest.mark.usefixtures("letters")
def test_a_sink_keeps_the_contract(tmp_path: Path) -> None:
    from shardmill_letters.outbox import OutboxDelivery

    assert check_sink(lambda shipment: OutboxDelivery(f"outbox:{tmp_path}", shipment)) >= 20


@pytest.mark.usefixtures("letters")
def test_planted_faults_of_a_sink_are_found(tmp_path: Path) -> None:
    from shardmill_letters.outbox import OutboxDelivery

    class Doubles(OutboxDelivery):
        """Counts what it commits, and does not look at what is there."""

        def commit(self, first: int, lots: Sequence[Lot]) -> bool:
            return super().commit(self.count(), lots)

    class Forgets(OutboxDelivery):
        """Does not say which run a lot is of."""

        def count(self) -> int:
            return len(self._marks_of(""))

        def _marks_of(self, run: str) -> list[Path]:
            return list(self._marks.glob("*"))

    class Swallows(OutboxDelivery):
        """Takes what came before an error for the lot."""

        def stage(self, lot: Lot) -> dict[str, Any]:
            def before() -> Iterator[pa.RecordBatch]:
                try:
                    yield from lot.read()
                except RuntimeError:
                    return

            return super().stage(replace(lot, read=before))

    class Mixes(OutboxDelivery):
        """Takes rows of any model."""

        def prepare(self) -> None:
            self.shipment = replace(self.shipment, made_by="")
            super().prepare()

    for number, (kind, said) in enumerate(
        (
            (Doubles, "somebody who believes"),
            (Forgets, "another run has no lots"),
            (Swallows, "not swallowed"),
            (Mixes, "another model"),
        )
    ):
        place = f"outbox:{tmp_path / str(number)}"
        with pytest.raises(AssertionError, match=said):
            check_sink(lambda shipment, kind=kind, place=place: kind(place, shipment))


@pytest.mark.usefixtures("letters")
def test_a_task_keeps_the_contract() -> None:
    from shardmill_letters.task import CountTask

    texts = [row["body"] for row in ROWS[:8]]
    assert check_task(FakeTask, texts) >= 9
    assert check_task(lambda: CountTask(shortest=3), texts) >= 9

    class Leaks(FakeTask):
        """A row depends on how many are in its batch."""

        def run(self, inputs: Any) -> Any:
            return super().run([f"{each} {len(inputs)}" for each in inputs])

    with pytest.raises(AssertionError, match="what is in its batch"):
        check_task(Leaks, texts)


def test_the_local_engine_keeps_the_contract(tmp_path: Path) -> None:
    assert check_engine({"engine": "local", "device": "cpu", "workers": 1}, tmp_path) == 15
