"""What a file is, by its name: which documents are read, and which of them are archives."""

from __future__ import annotations

import os
import re

# Documents by suffix, and what parses them. Any other text is read as it is.
PARSED = {
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".pdf": "pdf",
    ".docx": "docx",
    ".pptx": "pptx",
    ".epub": "epub",
    ".eml": "eml",
}
_PLAIN = (".md", ".markdown", ".rst", ".adoc", ".org", ".tex")
_CODE = (
    *(".py", ".pyi", ".js", ".mjs", ".ts", ".tsx", ".jsx", ".java", ".kt", ".scala", ".c", ".h", ".cc", ".cpp", ".hpp"),
    *(".cu", ".cs", ".go", ".rs", ".swift", ".rb", ".php", ".pl", ".lua", ".r", ".jl", ".hs", ".ml", ".ex", ".erl"),
    *(".clj", ".sh", ".sql", ".css"),
)
_ZIP, TARS = (".zip",), (".tar", ".tgz", ".tzst")
ARCHIVES = (*_ZIP, *TARS)
# Without --format, files with these suffixes are documents.
SUFFIXES = (*PARSED, *_PLAIN, *_CODE, *ARCHIVES)
# Files without text, which lie among documents: pictures, sound, fonts, programs and arrays.
_NO_TEXT = (
    *(".png", ".jpg", ".jpeg", ".gif", ".bmp", ".ico", ".webp", ".tif", ".tiff", ".svg", ".psd", ".heic"),
    *(".mp3", ".mp4", ".m4a", ".avi", ".mov", ".mkv", ".webm", ".wav", ".flac", ".ogg"),
    *(".ttf", ".otf", ".woff", ".woff2", ".eot"),
    *(".exe", ".dll", ".so", ".dylib", ".o", ".a", ".pyc", ".class", ".jar", ".whl", ".bin", ".iso", ".deb", ".rpm"),
    *(".parquet", ".arrow", ".feather", ".npy", ".npz", ".pkl", ".pt", ".safetensors", ".onnx", ".db", ".sqlite"),
)
_PACKED = (".gz", ".zst", ".zstd", ".bz2", ".xz")


def suffix_of(path: str) -> str:
    """The suffix of a file without that of its compression.

    >>> suffix_of("papers/Notes.MD"), suffix_of("papers.tar.gz"), suffix_of("README")
    ('.md', '.tar', '')
    """
    stem, suffix = os.path.splitext(path)
    if suffix.lower() in _PACKED:
        suffix = os.path.splitext(stem)[1]
    return suffix.lower()


def is_document(path: str) -> bool:
    """Whether a file in a folder is read, by its suffix: an unknown one may be that of a text, as README.Debian."""
    return suffix_of(path) not in _NO_TEXT


def is_zip(path: str) -> bool:
    return suffix_of(path) in _ZIP


def is_tar(path: str) -> bool:
    return suffix_of(path) in TARS


def is_archive(path: str) -> bool:
    return suffix_of(path) in ARCHIVES


def is_member(path: str) -> bool:
    """Whether a member of an archive is an item: as a file in a folder, but an archive inside is not opened."""
    parts = path.split("/")
    hidden = any(part.startswith(".") and part not in ("", ".", "..") for part in parts) or parts[0] == "__MACOSX"
    return not hidden and is_document(path) and not is_archive(path)


def leaves_folder(path: str) -> bool:
    """Whether a member's name would lead out of the folder that it is unpacked into.

    >>> leaves_folder("../etc/passwd"), leaves_folder("/etc/passwd"), leaves_folder("a/..b")
    (True, True, False)
    """
    return path.startswith(("/", "\\")) or bool(re.match(r"[A-Za-z]:[\\/]", path)) or ".." in re.split(r"[/\\]", path)


def printable(path: str) -> str:
    """A path as text: bytes that are not UTF-8 are written as \\xNN."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
