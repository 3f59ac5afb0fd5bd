"""Documents: one item per file of every kind, in folders and archives. What is broken or hostile costs itself."""

from __future__ import annotations

import gc
import gzip
import io
import os
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardmill.core.errors import SourceError, StaleResume
from shardmill.plan.spec import Spec, make_spec
from shardmill.run import start
from shardmill.run.planner import make_plan
from shardmill.sources import Fields, discover, discovery, open_source
from shardmill.testing import InProcessEngine, check_source
from tests.support.documents import (
    as_docx,
    as_eml,
    as_epub,
    as_pdf,
    as_pptx,
    as_zip,
)
from tests.support.sources import put

KINDS: dict[str, tuple[bytes, str, str]] = {
    "note.txt": (b"Just a line.\r\nAnother.", "note", "Just a line.\r\nAnother."),
    "README": (b"Read me.", "README", "Read me."),
    "tea.md": (b"Before.\n\n# Green tea\n\nIt is a drink.", "Green tea", "Before.\n\n# Green tea\n\nIt is a drink."),
    "README.Debian": (b"Packaged.", "README", "Packaged."),
    "guide.rst": (b"The guide\n=========\n\nText.", "The guide", "The guide\n=========\n\nText."),
    "run.py": (b"# A comment\nprint(1)\n", "run", "# A comment\nprint(1)\n"),
    "page.html": (
        b"<title>A  page</title><style>p {}</style><h1>Top</h1><p>One<br>two &amp; three</p><ul><li>a<li>b</ul>",
        "A page",
        "# Top\n\nOne\ntwo & three\n\n- a\n- b",
    ),
    "paper.pdf": (
        as_pdf(["Methods\nWe brewed tea.", "It was good."], "On tea", {"Methods": 0}),
        "On tea",
        "# Methods\nWe brewed tea.\fIt was good.",
    ),
    "letter.docx": (
        as_docx([("berschrift1", "Chapter"), ("x", "Some text."), ("berschrift2", "\fPart"), ("x", "More.")], "Letter"),
        "Letter",
        "# Chapter\n\nSome text.\f## Part\n\nMore.\n\nleft | right",
    ),
    "talk.pptx": (as_pptx([("Hello", "one"), ("Bye", "two")]), "Hello", "# Hello\n\none\f# Bye\n\ntwo"),
    "book.epub": (as_epub(["<h1>I</h1><p>Once.</p>", "<h1>II</h1>"], "Tale"), "Tale", "# I\n\nOnce.\n\n# II"),
    "mail.eml": (
        as_eml("Lunch", "", "<p>At <b>noon</b>?</p>"),
        "Lunch",
        "From: Ann <ann@example.org>\nTo: bob@example.org\nSubject: Lunch\n\nAt noon?",
    ),
}
BAD: dict[str, tuple[bytes, str]] = {
    "empty.md": (b"", "the file is empty"),
    "blank.md": (b" \n", "the text is blank"),
    "program.txt": (b"\x7fELF\0\0\0\0\1\2\3", "it is not text: it has zero bytes"),
    "scan.pdf": (as_pdf(["", ""]), "it has no text layer: 2 pages of pictures"),
    "cut.pdf": (as_pdf(["text"])[:300], "it is not a whole PDF"),
    "page-not-found.pdf": (b"<html>404</html>", "it is not a whole PDF"),
    "cut.docx": (as_docx([("x", "text")])[:200], "it is not a whole file"),
    "other.docx": (as_zip({"a.txt": "b"}), "it has no word/document.xml"),
    "laughs.docx": (
        as_zip({"word/document.xml": '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><x>&b;</x>'}),
        "it declares entities",
    ),
    "deep.epub": (as_epub([""], "x"), "it has no text"),
}
FIELDS = Fields("text", id=("file",), keep=("title", "bytes", "pages"))


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        put(str(folder), name, data)
    return folder


def read(places: list[Path], target_bytes: int = 1 << 40, **how: Any) -> dict[str, tuple[str | None, str, str]]:
    """By file: the text, the title and why it is bad."""
    opened = open_source(discover([str(p) for p in places], FIELDS, **how), FIELDS)
    found = {}
    for shard in opened.shards(target_bytes):
        for batch in opened.read(shard):
            for row, kept in enumerate(batch.kept.to_pylist()):
                found[kept["file"]] = batch.texts[row].as_py(), kept["title"], batch.bad.get(row, "")
    return found


def as_tar(files: Mapping[str, bytes], link: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
        if link:
            about = tarfile.TarInfo("link.txt")
            about.type, about.linkname = tarfile.SYMTYPE, link
            archive.addfile(about)
    return out.getvalue()


ARCHIVES = {
    "docs.zip": as_zip,
    "docs.tar": as_tar,
    "docs.tar.gz": lambda files: gzip.compress(as_tar(files)),
    "docs.tgz": lambda files: gzip.compress(as_tar(files)),
    "docs.tar.zst": lambda files: bytes(pa.compress(as_tar(files), codec="zstd", asbytes=True)),
}


def test_documents_of_every_kind_have_their_text_and_title(tmp_path: Path) -> None:
    write(tmp_path / "docs", {f"a/{name}": data for name, (data, _, _) in KINDS.items()})
    write(tmp_path / "docs", {"picture.png": b"\x89PNG", "a/.hidden.md": b"no"})
    wanted = {f"a/{name}": (text, title, "") for name, (_, title, text) in KINDS.items()}
    assert read([tmp_path / "docs"], format="files") == wanted
    assert read([tmp_path / "docs"], 1, format="files") == wanted


@pytest.mark.parametrize("name", ["folder", *ARCHIVES])
def test_documents_keep_the_contract(name: str, tmp_path: Path) -> None:
    files = {f"{n:02d}.md": f"# Item {n}\n\n{'long ' * (n % 40)}end".encode() for n in range(30)}
    place = tmp_path / name
    write(place, files) if name == "folder" else write(tmp_path, {name: ARCHIVES[name](files)})
    rows = [{"file": file, "text": data.decode()} for file, data in files.items()]
    assert check_source([place], rows=rows, text="text", id="file") >= 20


def test_what_has_no_text_is_a_bad_row_with_its_name(tmp_path: Path) -> None:
    write(tmp_path, {name: data for name, (data, _) in BAD.items()} | {"good.md": b"good"})
    found = read([tmp_path], format="files")
    assert found.pop("good.md") == ("good", "good", "")
    assert {*found} == {*BAD}
    for name, (_, reason) in BAD.items():
        assert found[name][0] is None
        assert reason in found[name][2], found[name]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("\ufeffé".encode(), "é"),
        ("é €".encode("cp1252"), "é €"),
        (b"\x81 \xe9", "\x81 é"),
        ("é".encode("utf-16"), "é"),
        ("plain é".encode("utf-16-le"), "plain é"),
    ],
)
def test_encodings_are_detected(data: bytes, text: str, tmp_path: Path) -> None:
    write(tmp_path, {"a.md": data, "b.md": b"b"})
    assert read([tmp_path])["a.md"][0] == text


def test_html_says_its_encoding(tmp_path: Path) -> None:
    write(tmp_path, {"a.html": '<meta charset="koi8-r"><p>Чай</p>'.encode("koi8-r")})
    assert read([tmp_path])["a.html"][0] == "Чай"


@pytest.mark.parametrize("name", ARCHIVES)
def test_members_of_an_archive_are_documents(name: str, tmp_path: Path) -> None:
    kinds = {name: KINDS[name] for name in ("note.txt", "tea.md", "paper.pdf")}
    files = {f"a/{name}": data for name, (data, _, _) in kinds.items()}
    write(tmp_path, {name: ARCHIVES[name]({**files, "x.png": b"", ".git/x.md": b"", "inner.zip": b""})})
    wanted = {f"a/{name}": (text, title, "") for name, (_, title, text) in kinds.items()}
    assert read([tmp_path / name]) == read([tmp_path / name], 1) == wanted
    write(tmp_path, {"other.md": b"other"})
    assert read([tmp_path / name, tmp_path / "other.md"]) == {
        **{f"{name}/{file}": row for file, row in wanted.items()},
        "other.md": ("other", "other", ""),
    }


def test_hostile_members_are_set_aside(tmp_path: Path) -> None:
    files = {"../up.txt": b"x", "/etc/abs.txt": b"x", "a/ok..txt": b"fine", "zeros.txt": bytes(3 << 20)}
    write(tmp_path, {"a.zip": as_zip({**files, "C:\\w.txt": b"x"}), "a.tar": as_tar(files, link="/etc/passwd")})
    for name in ("a.zip", "a.tar"):
        found = read([tmp_path / name])
        assert found["a/ok..txt"][0] == "fine"
        assert "leads out" in found["../up.txt"][2]
        assert "leads out" in found["/etc/abs.txt"][2]
    assert "leads out" in read([tmp_path / "a.zip"])["C:\\w.txt"][2]
    assert "times its size, as bombs do" in read([tmp_path / "a.zip"])["zeros.txt"][2]
    assert "is a link" in read([tmp_path / "a.tar"])["link.txt"][2]
    assert not (tmp_path.parent / "up.txt").exists()


@pytest.mark.parametrize("name", ["docs.zip", "docs.tar", "docs.tar.gz"])
def test_a_truncated_archive_is_refused(name: str, tmp_path: Path) -> None:
    whole = ARCHIVES[name]({f"{n}.md": os.urandom(400).hex().encode() for n in range(9)})
    write(tmp_path, {name: whole[: len(whole) // 2]})
    with pytest.raises(SourceError, match=r"docs\.\w+.*(whole|truncated)"):
        read([tmp_path / name])


@pytest.mark.parametrize("how", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_member_costs_itself(how: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "docs.zip", "w", how) as archive:
        archive.writestr("a.md", b"a" * 50 + os.urandom(400).hex().encode())
        archive.writestr("b.md", b"b")
    whole = bytearray((tmp_path / "docs.zip").read_bytes())
    whole[120] ^= 0xFF
    write(tmp_path, {"docs.zip": bytes(whole)})
    found = read([tmp_path / "docs.zip"])
    assert "damaged in the archive" in found["a.md"][2]
    assert found["b.md"][0] == "b"


def test_a_member_without_a_name_is_set_aside(tmp_path: Path) -> None:
    whole = bytearray(as_zip({"a.md": b"a", "n": b"b"}))
    entry = whole.rindex(b"PK\x01\x02")
    # The lengths of its name and of what follows the name.
    whole[entry + 28 : entry + 32] = b"\0\0\1\0"
    write(tmp_path, {"docs.zip": bytes(whole)})
    found = read([tmp_path / "docs.zip"])
    assert found["a.md"][0] == "a"
    assert "damaged in the archive" in found[""][2]


def test_a_link_out_of_the_folder_is_refused_and_one_inside_is_read(tmp_path: Path) -> None:
    docs = write(tmp_path / "docs", {"a.md": b"a"})
    (docs / "same.md").symlink_to("a.md")
    assert {*read([docs])} == {"a.md", "same.md"}
    write(tmp_path, {"secret.md": b"s"})
    (docs / "out.md").symlink_to(tmp_path / "secret.md")
    with pytest.raises(SourceError, match=r"out\.md is a link out of"):
        read([docs])
    assert read([docs / "*.md"])["out.md"][0] == "s"


def test_names_of_other_encodings_are_written_as_bytes(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/caf\xe9.md", "wb") as file:
        file.write(b"text")
    assert read([tmp_path]) == {"caf\\xe9.md": ("text", "caf\\xe9", "")}


def test_a_file_that_grows_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"a.md": b"a"})
    opened = open_source(discover([str(tmp_path)], FIELDS), FIELDS)
    shard = opened.shards(1)[0]
    with open(tmp_path / "a.md", "ab") as file:
        file.write(b"more")
    with pytest.raises(StaleResume, match=r"a\.md changed during the run"):
        list(opened.read(shard))


def test_documents_beside_data_are_not_read_with_it(tmp_path: Path) -> None:
    write(tmp_path, {"data.jsonl": b'{"text": "row"}\n', "README.md": b"about"})
    stat = discover([str(tmp_path)], Fields("text"))
    assert (stat.format, [file.name for file in stat.files]) == ("jsonl", ["data.jsonl"])


def test_a_run_is_proved_and_says_what_was_set_aside(tmp_path: Path) -> None:
    good = {f"a/{name}": data for name, (data, _, _) in KINDS.items()}
    write(tmp_path / "docs", good | {f"b/{name}": data for name, (data, _) in BAD.items()})
    run = start(spec_of(tmp_path / "docs"), tmp_path / "run", engine=InProcessEngine())
    files = run.table().column("file").to_pylist()
    assert sorted(files) == files == sorted([*good, *(f"b/{name}" for name in BAD)])
    assert {e["file"] for e in run.errors()} == {f"b/{name}" for name in BAD}
    report = run.verify()
    assert report.verified, [c for c in report.checks if not c.ok]
    # What a run holds refers to itself; with it end the processes that parse.
    gc.collect()
    assert f"all {len(files)} lines" in " ".join(c.seen for c in report.checks)


def spec_of(source: Path | str, **work: Any) -> Spec:
    wanted = {"text": "text", "id": "file", "keep": "title,bytes,pages", "task": "shardmill.testing:FakeTask"}
    return make_spec(
        {"source": str(source), **wanted, "format": "files", **work}, {"max_errors": "100%", "shard_bytes": 4_000}
    )


def texts(folder: Path, count: int = 12) -> Path:
    return write(folder, {f"{n:02d}.txt": f"line one of {n}\nline two".encode() for n in range(count)})


def test_many_small_text_files_must_be_said_to_be_lines_or_files(tmp_path: Path) -> None:
    docs = texts(tmp_path / "docs")
    unclear = spec_of(docs, id=None, keep=None, format=None)
    with pytest.raises(SourceError, match="12 small text files: is a line an item, or a file") as refused:
        start(unclear, tmp_path / "run", engine=InProcessEngine())
    assert "--format text" in refused.value.hint
    assert "--format files" in refused.value.hint
    for format, rows in (("text", 24), ("files", 12)):
        begun = start(spec_of(docs, id=None, keep=None, format=format), tmp_path / format, engine=InProcessEngine())
        assert len(begun.table()) == rows
        # The same command without --format goes on as the run began.
        assert start(unclear, tmp_path / format, engine=InProcessEngine()).plan.id == begun.plan.id


def test_a_run_of_lines_that_an_earlier_version_began_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unclear = spec_of(texts(tmp_path / "docs"), id=None, keep=None, format=None)
    with monkeypatch.context() as earlier:
        earlier.setattr(discovery, "refuse_unclear", lambda *_: None)
        begun = start(unclear, tmp_path / "run", engine=InProcessEngine())
    assert start(unclear, tmp_path / "run", engine=InProcessEngine()).plan.id == begun.plan.id
    assert len(begun.table()) == 24


@pytest.mark.parametrize(("answer", "rows"), [("file", 12), ("l", 24)])
def test_the_user_is_asked_at_a_terminal(
    answer: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    plan = make_plan(spec_of(texts(tmp_path), id=None, keep=None, format=None), [], quiet=False)
    source = open_source(plan.stat, Fields.of(plan.work))
    assert sum(len(batch) for shard in plan.shards for batch in source.read(shard)) == rows


def test_a_text_file_among_documents_must_be_said_to_be_lines_or_a_file(tmp_path: Path) -> None:
    docs = write(tmp_path / "docs", {"notes.txt": b"one\ntwo\n", "a.md": b"# A\n\nA text.", "b.html": b"<p>B</p>"})
    with pytest.raises(SourceError, match=r"has 1 small text file and 2 other documents: is a line an item, or a file"):
        discover([str(docs)], Fields("text"))
    (docs / "b.html").unlink()
    assert discover([str(docs)], Fields("text")).format == "text"


def test_few_or_large_or_named_text_files_are_lines(tmp_path: Path) -> None:
    few, large = texts(tmp_path / "few", 9), write(tmp_path / "large", {f"{n}.txt": b"x\n" * 40_000 for n in range(12)})
    many = texts(tmp_path / "many")
    for places in ([few], [large], sorted(many.iterdir())):
        assert discover([str(p) for p in places], Fields("text")).format == "text"
