"""Sixty documents of mixed kinds, searched by meaning and asked, with the file and the page in the answer."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from shardmill.plan.spec import make_spec
from shardmill.run import Run, start
from shardmill.sources import list_columns
from shardmill.testing import InProcessEngine
from tests.contract.sources.test_documents import as_tar, write
from tests.support.cli import Cli
from tests.support.documents import as_docx, as_eml, as_epub, as_pdf, as_pptx

COUNT = 60
TRADES = ("Bakers", "Weavers", "Printers", "Tanners", "Brewers", "Masons", "Coopers")
TOWNS = ("Arden", "Belmont", "Corby", "Dunmore", "Elgin", "Fairford", "Garth")
# What one document of each kind says, on a page of its own where it has pages; what is asked, and that page.
FACTS = {
    "txt": ("Bees make honey from the nectar of flowers.", "insects that produce something sweet", None),
    "md": ("Glaciers carve deep valleys as the ice moves.", "how frozen rivers shape mountains", None),
    "html": ("The violin is tuned in perfect fifths.", "tuning a string instrument", None),
    "pdf": ("Ships cross the ocean carrying containers.", "freight on the sea", 3),
    "docx": ("The patient takes an aspirin against the headache.", "medicine for pain", 2),
    "epub": ("Whales breathe air and nurse their calves.", "mammals that live in water", None),
    "pptx": ("Electric cars need charging stations at home.", "plugging in a battery vehicle", 2),
    "eml": ("Our lunch at the noodle restaurant is at noon.", "when do we meet to eat", None),
    "py": ("# The orbit of a planet around the sun is an ellipse.", "astronomy of the solar system", None),
}


def filler(number: int) -> str:
    trade, town = TRADES[number % len(TRADES)], TOWNS[number // len(TRADES) % len(TOWNS)]
    return f"The guild of {trade} in {town} lists its {number + 20} members and the fees they paid this year. " * 4


def document(kind: str, parts: list[str], title: str) -> bytes:
    if kind == "pdf":
        return as_pdf([part.replace(". ", ".\n") for part in parts], title)
    if kind == "docx":
        return as_docx([("x", f"\f{part}" if number else part) for number, part in enumerate(parts)], title)
    if kind == "pptx":
        return as_pptx([(f"Part {number}", part) for number, part in enumerate(parts)])
    if kind == "epub":
        return as_epub([f"<h1>Part {number}</h1><p>{part}</p>" for number, part in enumerate(parts)], title)
    if kind == "eml":
        return as_eml(title, "\n\n".join(parts))
    if kind == "html":
        return f"<title>{title}</title>{''.join(f'<h2>Part</h2><p>{part}</p>' for part in parts)}".encode()
    return "\n\n".join(parts).encode()


def documents() -> dict[str, bytes]:
    """Of each kind one with its fact and others without; a few of Debian's own, where they are."""
    made: dict[str, bytes] = {}
    for kind, (fact, _, page) in FACTS.items():
        parts = [filler(number) for number in range(2 if page == 3 else 1)] + [f"{fact} " * 3]
        made[f"facts/{kind}.{kind}"] = document(kind, parts, f"About {kind}")
    own = sorted(Path("/usr/share/doc").glob("[a-d]*/copyright"))[:6]
    made |= {f"debian/{path.parent.name}/copyright": path.read_bytes()[:3_000] for path in own if path.is_file()}
    for number, kind in zip(range(COUNT - len(made)), itertools.cycle(FACTS), strict=False):
        made[f"guilds/{number:02d}.{kind}"] = document(kind, [filler(number), filler(number + 21)], f"Guild {number}")
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("searched")
    made = documents()
    assert len(made) == COUNT
    write(folder / "docs", made)
    work = {"source": str(folder / "docs"), "text": "text", "keep": "page", "format": "files"}
    spec = make_spec({**work, "params": {"window_tokens": 96}}, {"device": "cpu", "workers": 1})
    return start(spec, folder / "run", quiet=True)


def test_every_kind_is_found_by_meaning_with_file_and_page(run: Run) -> None:
    found = run.search_many([asked for _, asked, _ in FACTS.values()], k=1)
    told = [(hits[0].values, hits[0].page) for hits in found]
    assert told == [({"file": f"facts/{kind}.{kind}"}, page) for kind, (_, _, page) in FACTS.items()]


def test_rows_of_windows_have_their_page(run: Run) -> None:
    table = run.table(["start", "page"])
    rows = zip(*(table.column(name).to_pylist() for name in ("row", "start", "page")), strict=True)
    files = [file.name for file in run.plan.stat.files]
    pages: dict[str, list[int | None]] = {}
    for row, _, page in rows:
        pages.setdefault(files[row], []).append(page)
    assert pages["facts/pdf.pdf"][0] == 1
    assert pages["facts/pdf.pdf"] == sorted(pages["facts/pdf.pdf"])  # type: ignore[type-var]
    assert pages["facts/pdf.pdf"][-1] == 3
    assert {*pages["facts/md.md"], *pages["facts/epub.epub"]} == {None}


def test_the_commands_say_file_and_page_once(run: Run, shardmill: Cli) -> None:
    fact, asked, page = FACTS["pdf"]
    said = shardmill("search", run.ledger.url, asked, "-k", "1").out.splitlines()
    assert said[1].split()[1:4] == ["facts/pdf.pdf", "page", str(page)]
    answered = shardmill("ask", run.ledger.url, asked).out
    assert f"(facts/pdf.pdf page {page} [" in answered
    assert f"facts/pdf.pdf page {page}: " in answered
    [known] = json.loads(shardmill("ask", run.ledger.url, asked, "--json").out)
    assert known["answer"] == fact
    assert (known["file"], known["page"]) == ("facts/pdf.pdf", page)
    assert known["passages"][0]["file"] == "facts/pdf.pdf"
    assert "page" not in next(each for each in known["passages"] if each["file"].endswith((".md", ".txt", "copyright")))


def test_without_windows_page_is_the_first_with_text(tmp_path: Path) -> None:
    write(tmp_path / "docs", {"a.md": b"text", "b.pdf": as_pdf(["", "", "third"]), "c.pdf": as_pdf(["one", "two"])})
    work = {"source": str(tmp_path / "docs"), "text": "text", "keep": "page", "format": "files"}
    run = start(make_spec({**work, "task": "shardmill.testing:FakeTask"}), tmp_path / "run", engine=InProcessEngine())
    assert run.table().column("page").to_pylist() == [None, 3, 1]
    hits = run.search("x", 3)
    assert {(hit.values["file"], hit.span) for hit in hits} == {("a.md", ""), ("b.pdf", "page 3"), ("c.pdf", "page 1")}
    assert [hit.values["file"] for hit in run.search("x", 3, where="page = 3")] == ["b.pdf"]
    assert [hit.values["file"] for hit in run.search("two", 3, where="page < 3", words=True)] == ["c.pdf"]
    assert run.verify().verified


def test_members_of_an_archive_are_known_by_their_row_unless_their_file_was_kept(tmp_path: Path) -> None:
    write(tmp_path, {"docs.tar": as_tar({"a/x.md": b"Bees make honey."})})
    work = {"source": str(tmp_path / "docs.tar"), "text": "text", "task": "shardmill.testing:FakeTask"}
    for keep, values in (("", {}), ("file", {"file": "a/x.md"})):
        run = start(make_spec({**work, "keep": keep}), tmp_path / f"run{keep}", engine=InProcessEngine())
        assert [(hit.row, hit.values) for hit in run.search("sweet insects")] == [(0, values)]


def test_all_columns_of_a_document_are_those_that_runs_have_planned_with(tmp_path: Path) -> None:
    write(tmp_path, {"a.md": b"text"})
    assert [*list_columns([str(tmp_path)], "", "files")] == ["file", "title", "text", "bytes", "pages"]
