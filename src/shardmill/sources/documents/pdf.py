"""The text of a PDF, page by page, with the headings of its outline."""

from __future__ import annotations

import re
from typing import Any

from shardmill.sources.documents.document import BadDocument, Document

# A hyphen at the end of a line, which is no part of the word.
_HYPHEN = re.compile("[\x02\ufffe](?:\r?\n)?")
_DEEPEST = 6


def parse_pdf(data: bytes) -> Document:
    import pypdfium2

    try:
        pdf = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as error:
        why = str(error)
        if "password" in why.lower():
            raise BadDocument("it is encrypted: it opens with a password alone") from None
        raise BadDocument(f"it is not a whole PDF ({_plain(why)})") from None
    pages, broken = [], 0
    for number in range(len(pdf)):
        try:
            page = pdf[number]
            said = page.get_textpage().get_text_bounded()
            # With it goes what it has drawn: a document may have many pages.
            page.close()
        except pypdfium2.PdfiumError:
            said, broken = "", broken + 1
        pages.append(_HYPHEN.sub("", said).replace("\r\n", "\n").strip())
    if not any(pages):
        if not pages or broken:
            raise BadDocument("it is not a whole PDF: no page of it can be read")
        count = "1 page" if len(pages) == 1 else f"{len(pages):,} pages"
        raise BadDocument(f"it has no text layer: {count} of pictures, perhaps a scan; recognize its text first (OCR)")
    _mark_headings(pdf, pages)
    return Document.of_pages(pages, " ".join(pdf.get_metadata_dict().get("Title", "").split()))


def _mark_headings(pdf: Any, pages: list[str]) -> None:
    """Lines that are entries of the outline, on the page that it names, become headings."""
    for entry in pdf.get_toc(max_depth=_DEEPEST):
        target, title = entry.get_dest(), " ".join(entry.get_title().split())
        number = target.get_index() if target is not None else None
        if number is None or not title or not number < len(pages):
            continue
        line = re.compile(rf"^\s*{re.escape(title)}\s*$".replace(r"\ ", r"\s+"), re.MULTILINE)
        heading = f"\n{'#' * (entry.level + 1)} {title}"
        pages[number] = line.sub(heading.replace("\\", r"\\"), pages[number], count=1).lstrip("\n")


def _plain(why: str) -> str:
    return re.sub(r"^Failed to load document \(PDFium: (.*)\)\.$", r"\1", why).rstrip(".").lower()
