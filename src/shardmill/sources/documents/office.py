"""The text of Word and PowerPoint files and of EPUB books: zip archives of XML, which declare no entities."""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from shardmill.sources.documents.document import PAGE_BREAK, BadDocument, Document
from shardmill.sources.documents.html import parse_html

# What the XML of one document may come to when it is unpacked.
_MOST_BYTES = 256 << 20
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_SLIDE = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_LINK = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_HEADING = re.compile(r"heading (\d)")


class _Package:
    """The parts of a document, by name."""

    def __init__(self, data: bytes) -> None:
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, ValueError, NotImplementedError):
            raise BadDocument("it is not a whole file: its parts cannot be listed") from None
        self._left = _MOST_BYTES

    def read(self, name: str) -> bytes:
        try:
            about = self._zip.getinfo(name)
        except KeyError:
            raise BadDocument(f"it is not a whole file: it has no {name}") from None
        self._left -= about.file_size
        if self._left < 0:
            raise BadDocument(f"it unpacks to more than {_MOST_BYTES >> 20} MB")
        try:
            return self._zip.read(about)
        except RuntimeError:
            raise BadDocument("it is encrypted: it opens with a password alone") from None
        except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, zlib.error):
            raise BadDocument(f"it is damaged in {name}") from None

    def xml(self, name: str) -> Any:
        from defusedxml import DefusedXmlException
        from defusedxml.ElementTree import ParseError, fromstring

        try:
            return fromstring(self.read(name))
        except DefusedXmlException:
            raise BadDocument(f"it declares entities in {name}, as documents that bomb do") from None
        except ParseError as error:
            raise BadDocument(f"it is damaged in {name}: {error}") from None

    def links(self, part: str) -> dict[str, str]:
        """What a part refers to, by id."""
        folder, name = posixpath.split(part)
        there = f"{folder}/_rels/{name}.rels"
        if there not in self._zip.namelist():
            return {}
        return {each.get("Id", ""): _join(folder, each.get("Target", "")) for each in self.xml(there)}

    def title(self) -> str:
        if "docProps/core.xml" not in self._zip.namelist():
            return ""
        return _tidy(self.xml("docProps/core.xml").findtext(".//{http://purl.org/dc/elements/1.1/}title") or "")


def parse_docx(data: bytes) -> Document:
    package = _Package(data)
    body = package.xml("word/document.xml").find(f"{_WORD}body")
    levels = _heading_levels(package)
    blocks = [] if body is None else [text for text in _word_blocks(body, levels) if text.strip(" \t\n")]
    heading = next((text.lstrip("# ") for text in blocks if text.startswith("#")), "")
    # A break before a paragraph's text starts the page with it.
    text = re.sub(r"\s*\f\s*", PAGE_BREAK, "\n\n".join(blocks))
    return Document(text, package.title() or heading)


def _heading_levels(package: _Package) -> dict[str, int]:
    """The levels of styles, by id: a heading is named in English, whatever its id is called."""
    try:
        styles = package.xml("word/styles.xml")
    except BadDocument:
        return {}
    levels = {}
    for style in styles.iter(f"{_WORD}style"):
        named = style.find(f"{_WORD}name")
        name = (named.get(f"{_WORD}val") or "").lower() if named is not None else ""
        if name == "title":
            levels[style.get(f"{_WORD}styleId")] = 1
        elif found := _HEADING.fullmatch(name):
            levels[style.get(f"{_WORD}styleId")] = min(6, int(found[1]))
    return levels


def _word_blocks(parent: Any, levels: dict[str, int]) -> Iterator[str]:
    for node in parent:
        if node.tag == f"{_WORD}p":
            text = _word_text(node)
            style = node.find(f"{_WORD}pPr/{_WORD}pStyle")
            level = levels.get(style.get(f"{_WORD}val"), 0) if style is not None else 0
            if level and text.strip():
                text = f"{PAGE_BREAK if PAGE_BREAK in text else ''}{'#' * level} {_tidy(text)}"
            yield text
        elif node.tag == f"{_WORD}tbl":
            rows = []
            for row in node.iter(f"{_WORD}tr"):
                cells = [_tidy(" ".join(_word_blocks(cell, {}))) for cell in row.iter(f"{_WORD}tc")]
                rows.append(" | ".join(cells))
            yield "\n".join(rows)
        elif node.tag in (f"{_WORD}sdt", f"{_WORD}sdtContent"):
            yield from _word_blocks(node, levels)


def _word_text(paragraph: Any) -> str:
    pieces = []
    for node in paragraph.iter():
        if node.tag == f"{_WORD}t":
            pieces.append(node.text or "")
        elif node.tag == f"{_WORD}tab":
            pieces.append("\t")
        elif node.tag == f"{_WORD}lastRenderedPageBreak":
            pieces.append(PAGE_BREAK)
        elif node.tag == f"{_WORD}br" and node.get(f"{_WORD}type") != "page":
            pieces.append("\n")
    return "".join(pieces)


def parse_pptx(data: bytes) -> Document:
    """Each slide is a page, and its title a heading."""
    package = _Package(data)
    deck = "ppt/presentation.xml"
    links = package.links(deck)
    slides = [links.get(each.get(f"{_LINK}id"), "") for each in package.xml(deck).iter(f"{_SLIDE}sldId")]
    pages, titles = [], []
    for part in slides:
        blocks = []
        for shape in _shapes(package.xml(part)):
            kind = shape.find(f".//{_SLIDE}nvPr/{_SLIDE}ph")
            lines = [_tidy("".join(t.text or "" for t in p.iter(f"{_DRAWING}t"))) for p in shape.iter(f"{_DRAWING}p")]
            text = "\n".join(line for line in lines if line)
            if text and kind is not None and kind.get("type") in ("title", "ctrTitle"):
                titles.append(_tidy(text))
                text = f"# {titles[-1]}"
            blocks.append(text)
        pages.append("\n\n".join(block for block in blocks if block))
    if not any(pages):
        raise BadDocument("it has no text: perhaps its slides are pictures")
    return Document.of_pages(pages, package.title() or (titles[0] if titles else ""))


def _shapes(slide: Any) -> Iterator[Any]:
    return (node for node in slide.iter() if node.tag in (f"{_SLIDE}sp", f"{_SLIDE}graphicFrame"))


def parse_epub(data: bytes) -> Document:
    """The chapters in reading order."""
    package = _Package(data)
    root = next((n for n in package.xml("META-INF/container.xml").iter() if n.tag.endswith("}rootfile")), None)
    if root is None:
        raise BadDocument("it is not a whole file: it names no book")
    place = root.get("full-path", "")
    book = package.xml(place)
    files = {n.get("id"): n for n in book.iter() if n.tag.endswith("}item")}
    title = next((n.text or "" for n in book.iter() if n.tag.endswith("}title")), "")
    chapters = []
    for each in book.iter():
        item = files.get(each.get("idref")) if each.tag.endswith("}itemref") else None
        if item is not None and "html" in item.get("media-type", ""):
            name = _join(posixpath.dirname(place), unquote(item.get("href", "")))
            chapters.append(parse_html(package.read(name)).text)
    if not any(chapters):
        raise BadDocument("it has no text")
    return Document("\n\n".join(filter(None, chapters)), _tidy(title))


def _join(folder: str, target: str) -> str:
    return posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")


def _tidy(text: str) -> str:
    return " ".join(text.split())
