"""A document: its text, and where its pages begin."""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# Columns: the text; for documents of pages, the character of it that each page begins with, and the page of a row.
TEXT, PAGES, PAGE = "text", "pages", "page"
# Between two pages of a text. A heading is a line that begins with #, after a blank line.
PAGE_BREAK = "\f"
_PAGED = (".pdf", ".pptx")
_WORD = re.compile(r"\S")


class BadDocument(Exception):
    """A document that has no text; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Document:
    text: str
    title: str = ""

    @classmethod
    def of_pages(cls, pages: Sequence[str], title: str = "") -> Document:
        """A document of pages; a page has no page break inside."""
        return cls(PAGE_BREAK.join(page.replace(PAGE_BREAK, "\n") for page in pages), title)


def has_pages(path: str, text: str) -> bool:
    """Whether a document is one of pages: by its name, or by the breaks in its text."""
    return PAGE_BREAK in text or posixpath.splitext(path)[1].lower() in _PAGED


def page_starts(text: str) -> list[int]:
    """The character that each page begins with.

    >>> page_starts("one\\ftwo")
    [0, 4]
    """
    starts = [0]
    while at := text.find(PAGE_BREAK, starts[-1]) + 1:
        starts.append(at)
    return starts


def find_pages(text: str, places: Iterable[int]) -> list[int]:
    """The page, from 1, of the first word at or after each of these characters; of the last word if there is none.

    >>> find_pages("\\f one two \\fthree\\f", [0, 2, 10, 17])
    [2, 2, 3, 3]
    """
    starts, end = page_starts(text), len(text.rstrip()) - 1
    words = (_WORD.search(text, place) for place in places)
    return [bisect_right(starts, word.start() if word else end) for word in words]
