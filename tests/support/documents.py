"""Small documents of every kind, written by a few lines each."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from email.message import EmailMessage

PAGE = "\f"


def as_pdf(pages: Sequence[str], title: str = "", outline: Mapping[str, int] | None = None, raw: bytes = b"") -> bytes:
    """A PDF of these pages, a line of text per line; `outline` has entries with the number of their page from 0.

    `raw` is drawn on the first page after its text, compressed.
    """
    objects: dict[int, bytes] = {3: b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"}
    kids = []
    for number, page in enumerate(pages):
        lines = "".join(f"({_escape(line)}) Tj T*\n" for line in page.split("\n"))
        drawn = f"BT /F1 12 Tf 14 TL 50 800 Td\n{lines}ET\n".encode("latin-1") + (raw if number == 0 else b"")
        at = 10 + 2 * number
        kids.append(at)
        objects[at] = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {at + 1} 0 R "
            f"/Resources << /Font << /F1 3 0 R >> >> >>"
        ).encode()
        packed = zlib.compress(drawn)
        objects[at + 1] = _stream(packed, "/Filter /FlateDecode")
    objects[2] = f"<< /Type /Pages /Count {len(kids)} /Kids [{' '.join(f'{k} 0 R' for k in kids)}] >>".encode()
    entries = list((outline or {}).items())
    first = 10 + 2 * len(pages)
    for i, (name, page_number) in enumerate(entries):
        after = f"/Next {first + i + 1} 0 R" if i + 1 < len(entries) else ""
        objects[first + i] = (
            f"<< /Title ({_escape(name)}) /Parent 4 0 R /Dest [{kids[page_number]} 0 R /Fit] {after} >>".encode()
        )
    if entries:
        last = first + len(entries) - 1
        objects[4] = f"<< /Type /Outlines /First {first} 0 R /Last {last} 0 R /Count {len(entries)} >>".encode()
    objects[1] = f"<< /Type /Catalog /Pages 2 0 R {'/Outlines 4 0 R' if entries else ''} >>".encode()
    objects[5] = f"<< /Title ({_escape(title)}) >>".encode()
    return _write_objects(objects)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")


def _stream(data: bytes, more: str) -> bytes:
    return f"<< /Length {len(data)} {more} >>\nstream\n".encode() + data + b"\nendstream"


def _write_objects(objects: Mapping[int, bytes]) -> bytes:
    out = bytearray(b"%PDF-1.4\n")
    places = {}
    for number in sorted(objects):
        places[number] = len(out)
        out += f"{number} 0 obj\n".encode() + objects[number] + b"\nendobj\n"
    table = len(out)
    size = max(objects) + 1
    out += f"xref\n0 {size}\n".encode()
    for number in range(size):
        out += f"{places[number]:010d} 00000 n \n".encode() if number in places else b"0000000000 65535 f \n"
    out += f"trailer\n<< /Size {size} /Root 1 0 R /Info 5 0 R >>\nstartxref\n{table}\n%%EOF\n".encode()
    return bytes(out)


def as_bomb_pdf(unpacked_bytes: int = 4 << 30) -> bytes:
    """A PDF of some megabytes whose page unpacks to gigabytes."""
    pack = zlib.compressobj(9)
    block = b"0 0 m " * (1 << 20)
    packed = b"".join(pack.compress(block) for _ in range(unpacked_bytes // len(block))) + pack.flush()
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R >>"
    return _write_objects(
        {
            1: b"<< /Type /Catalog /Pages 2 0 R >>",
            2: b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>",
            3: page,
            4: _stream(packed, "/Filter /FlateDecode"),
            5: b"<< >>",
        }
    )


def as_slow_pdf(pages: int = 100_000) -> bytes:
    """A PDF of less than a megabyte whose tree has the same full page very many times."""
    lines = "".join(f"(line {n} of a page full of text that is there again and again) Tj T*\n" for n in range(400))
    return _write_objects(
        {
            1: b"<< /Type /Catalog /Pages 2 0 R >>",
            2: b"<< /Type /Pages /Count %d /Kids [%s] >>" % (pages, b"3 0 R " * pages),
            3: b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R "
            b"/Resources << /Font << /F1 6 0 R >> >> >>",
            4: _stream(f"BT /F1 2 Tf 2 TL 50 820 Td\n{lines}ET".encode(), ""),
            5: b"<< >>",
            6: b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        }
    )


def as_zip(parts: Mapping[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return out.getvalue()


def as_docx(blocks: Sequence[tuple[str, str]], title: str = "") -> bytes:
    """A Word file of paragraphs, each with the id of its style; a text that begins with a form feed starts a page."""
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    body = "".join(
        f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr><w:r>'
        f"{'<w:lastRenderedPageBreak/>' * text.startswith(PAGE)}<w:t>{text.strip(PAGE)}</w:t></w:r></w:p>"
        for style, text in blocks
    )
    table = (
        "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>left</w:t></w:r></w:p></w:tc>"
        "<w:tc><w:p><w:r><w:t>right</w:t></w:r></w:p></w:tc></w:tr></w:tbl>"
    )
    styles = (
        '<w:style w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>'
        '<w:style w:styleId="berschrift2"><w:name w:val="Heading 2"/></w:style>'
    )
    types = (
        '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/><Override PartName="/word/document.xml" '
        'ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'
    )
    links = (
        '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1" '
        'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" '
        'Target="word/document.xml"/></Relationships>'
    )
    return as_zip(
        {
            "[Content_Types].xml": types,
            "_rels/.rels": links,
            "word/document.xml": f"<w:document {space}><w:body>{body}{table}</w:body></w:document>",
            "word/styles.xml": f"<w:styles {space}>{styles}</w:styles>",
            "docProps/core.xml": f'<c xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></c>',
        }
    )


def as_pptx(slides: Sequence[tuple[str, str]]) -> bytes:
    """Slides of a title and a text; the first is stored last."""
    space = (
        'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
        'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
        'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
    )
    parts: dict[str, str | bytes] = {}
    ids = links = ""
    for i, (title, text) in enumerate(slides):
        number = len(slides) - i
        shapes = "".join(
            f"<p:sp><p:nvSpPr><p:nvPr>{kind}</p:nvPr></p:nvSpPr>"
            f"<p:txBody><a:p><a:r><a:t>{said}</a:t></a:r></a:p></p:txBody></p:sp>"
            for kind, said in (('<p:ph type="title"/>', title), ("", text))
        )
        parts[f"ppt/slides/slide{number}.xml"] = f"<p:sld {space}><p:cSld>{shapes}</p:cSld></p:sld>"
        ids += f'<p:sldId r:id="r{i}"/>'
        links += f'<Relationship Id="r{i}" Target="slides/slide{number}.xml"/>'
    parts["ppt/presentation.xml"] = f"<p:presentation {space}><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>"
    parts["ppt/_rels/presentation.xml.rels"] = f'<Relationships xmlns="x">{links}</Relationships>'
    return as_zip(parts)


def as_epub(chapters: Sequence[str], title: str) -> bytes:
    """A book of chapters in HTML."""
    items = "".join(
        f'<item id="c{i}" href="text/chapter%20{i}.xhtml" media-type="application/xhtml+xml"/>'
        for i in range(len(chapters))
    )
    spine = "".join(f'<itemref idref="c{i}"/>' for i in range(len(chapters)))
    book = (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">'
        f"<dc:title>{title}</dc:title></metadata><manifest>{items}</manifest><spine>{spine}</spine></package>"
    )
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
    )
    pages = {
        f"OEBPS/text/chapter {i}.xhtml": f"<!DOCTYPE html><html><body>{c}</body></html>" for i, c in enumerate(chapters)
    }
    return as_zip({"META-INF/container.xml": container, "OEBPS/book.opf": book, **pages})


def as_eml(subject: str, text: str, html: str = "") -> bytes:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "Ann <ann@example.org>", "bob@example.org", subject
    if text:
        message.set_content(text)
    if html:
        message.add_alternative(html, subtype="html") if text else message.set_content(html, subtype="html")
    return message.as_bytes()
