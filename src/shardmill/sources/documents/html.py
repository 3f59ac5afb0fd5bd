"""The text of HTML: headings, lists, tables and code stay recognizable, scripts and styles are left out."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from shardmill.sources.documents.document import Document
from shardmill.sources.documents.text import decode

_HIDDEN = {"script", "style", "noscript", "template", "svg", "math", "select", "button", "iframe", "object"}
_BLOCKS = {
    *("p", "div", "section", "article", "header", "footer", "main", "aside", "nav", "blockquote", "figure", "form"),
    *("ul", "ol", "dl", "table", "pre", "hr", "address", "figcaption", "details", "summary", "fieldset", "body"),
}
_LINES = {"br", "tr", "dt", "dd", "li", "option"}
_HEADING = re.compile("h[1-6]")
_CHARSET = re.compile(rb"""<meta[^>]{0,200}charset\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE)


def parse_html(data: bytes) -> Document:
    said = _CHARSET.search(data[:4096])
    return read_html(decode(data, said[1].decode("ascii") if said else ""))


def read_html(text: str) -> Document:
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return Document(reader.text(), " ".join((reader.title or reader.heading).split()))


class _Reader(HTMLParser):
    """Collects the text. What is never closed ends with the document."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = self.heading = ""
        self._pieces: list[str] = []
        self._hidden: list[str] = []
        self._in_title = self._in_heading = False
        self._code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._hidden or tag in _HIDDEN:
            if tag in _HIDDEN:
                self._hidden.append(tag)
        elif tag == "title":
            self._in_title = not self.title
        elif _HEADING.fullmatch(tag):
            self._pieces.append("\n\n" + "#" * int(tag[1]) + " ")
            self._in_heading = not self.heading
        elif tag in _BLOCKS:
            self._pieces.append("\n\n")
            self._code += tag == "pre"
        elif tag in _LINES:
            self._pieces.append("\n- " if tag == "li" else "\n")
        elif tag in ("td", "th"):
            self._pieces.append(" | ")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _HIDDEN:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            if tag == self._hidden[-1]:
                self._hidden.pop()
        elif tag == "title":
            self._in_title = False
        elif tag in _BLOCKS or _HEADING.fullmatch(tag):
            self._pieces.append("\n\n")
            self._in_heading = False
            self._code = max(0, self._code - (tag == "pre"))

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        if self._in_title:
            self.title += data
            return
        if self._in_heading:
            self.heading += data
        self._pieces.append(data if self._code else re.sub(r"\s+", " ", data))

    def text(self) -> str:
        joined = "".join(self._pieces)
        joined = re.sub(r"[ \t]*\n[ \t]*(?=\n|\||$)", "\n", joined)
        joined = re.sub(r"\n (?=\S)", "\n", joined)
        joined = re.sub(r"\n \| ", "\n", joined)
        return re.sub(r"\n{3,}", "\n\n", re.sub(r"[ \t]+\n", "\n", joined)).strip()
