"""The text of a mail: who wrote to whom, when and about what, then its body."""

from __future__ import annotations

from email import message_from_bytes, policy
from email.message import EmailMessage, MIMEPart

from shardmill.sources.documents.document import BadDocument, Document
from shardmill.sources.documents.html import parse_html
from shardmill.sources.documents.text import decode

_HEADERS = ("From", "To", "Date", "Subject")


def parse_eml(data: bytes) -> Document:
    message = message_from_bytes(data, policy=policy.default)
    assert isinstance(message, EmailMessage)
    headers = {name: " ".join(str(message[name]).split()) for name in _HEADERS if message[name] is not None}
    body = message.get_body(("plain", "html"))
    if body is None and not headers:
        raise BadDocument("it is not a mail: it has neither headers nor a body")
    text = _read_body(body) if body is not None else ""
    said = "\n".join(f"{name}: {value}" for name, value in headers.items())
    return Document(f"{said}\n\n{text}".strip(), headers.get("Subject", ""))


def _read_body(body: MIMEPart) -> str:
    content = body.get_payload(decode=True)
    data = content if isinstance(content, bytes) else b""
    charset = body.get_content_charset() or ""
    if body.get_content_subtype() == "html":
        return parse_html(decode(data, charset).encode("utf-8", "replace")).text
    return decode(data, charset).replace("\r\n", "\n")
