"""The text of one document. What is not plain text is parsed by processes with limits of time and memory."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

from shardmill.core.extras import missing_package
from shardmill.core.helpers import HelperLost, Helpers, helper_count
from shardmill.sources.documents.document import BadDocument, Document
from shardmill.sources.documents.names import PARSED, suffix_of
from shardmill.sources.documents.text import parse_markup, parse_text

# What one document may take. A PDF of a thousand pages takes some seconds.
_SECONDS, _MEMORY_BYTES = 60.0, 2 << 30

_MARKUP = (".md", ".markdown", ".rst")
_LIBRARIES = {"pdf": "pypdfium2", "docx": "defusedxml", "pptx": "defusedxml", "epub": "defusedxml"}


class Parser:
    """Parses documents; threads may call it at the same time. It has processes from the first that needs one."""

    def __init__(self, *, seconds: float = _SECONDS, memory_bytes: int = _MEMORY_BYTES) -> None:
        made = f"{__name__}:make_parser"
        self._helpers = Helpers(made, count=helper_count(), seconds=seconds, memory_bytes=memory_bytes)

    def close(self) -> None:
        self._helpers.close()

    def parse(self, path: str, data: bytes) -> Document:
        """The document in a file with this name and content; raises BadDocument."""
        suffix = suffix_of(path)
        kind = PARSED.get(suffix)
        if not data:
            raise BadDocument("the file is empty")
        if kind is None:
            found = parse_markup(data) if suffix in _MARKUP else parse_text(data)
        else:
            check_installed(path)
            try:
                found = self._helpers.call((kind, data))
            except HelperLost as lost:
                raise BadDocument(f"it cannot be parsed: the process that parsed it {lost.why}") from None
        return Document(found.text, found.title or posixpath.basename(path).partition(".")[0])


def check_installed(path: str) -> None:
    """Refuse a document whose library is missing."""
    library = _LIBRARIES.get(PARSED.get(suffix_of(path), ""))
    if library is not None and not _is_installed(library):
        raise missing_package(library)


@cache
def _is_installed(library: str) -> bool:
    return find_spec(library) is not None


def make_parser(given: None) -> Callable[[tuple[str, bytes]], Document]:
    """What a process does with each question: the kind of a document, and its content."""

    def answer(question: tuple[str, bytes]) -> Document:
        kind, data = question
        try:
            return _parser(kind)(data)
        except (BadDocument, MemoryError):
            raise
        except RecursionError:
            raise BadDocument("it is nested too deep") from None
        except Exception as error:
            raise BadDocument(f"it cannot be parsed: {type(error).__name__}: {error}"[:300]) from None

    return answer


def _parser(kind: str) -> Callable[[bytes], Document]:
    if kind == "pdf":
        from shardmill.sources.documents.pdf import parse_pdf

        return parse_pdf
    if kind == "html":
        from shardmill.sources.documents.html import parse_html

        return parse_html
    if kind == "eml":
        from shardmill.sources.documents.mail import parse_eml

        return parse_eml
    from shardmill.sources.documents import office

    return {"docx": office.parse_docx, "pptx": office.parse_pptx, "epub": office.parse_epub}[kind]
