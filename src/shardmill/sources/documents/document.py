"""A document: its text, and where its pages begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Columns: the text, and the character of it that each page begins with, for documents of pages.
TEXT, PAGES = "text", "pages"
# Between two pages of a text. A heading is a line that begins with #, after a blank line.
PAGE_BREAK = "\f"


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


def page_starts(text: str) -> list[int]:
    """The character that each page begins with.

    >>> page_starts("one\\ftwo")
    [0, 4]
    """
    starts = [0]
    while at := text.find(PAGE_BREAK, starts[-1]) + 1:
        starts.append(at)
    return starts
