"""Servers that take alerts, each in a process of its own: a webhook and a mail server. What they got is in a file."""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.services import free_port
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
USER, PASSWORD = "runs", "s3cret word"


class TargetServer:
    """A server as a test sees it. Paths of the webhook: /ok, and /down and /silent until `mend` is called."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "tests.support.alert_targets", kind, str(folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def mend(self) -> None:
        (self.folder / "mended").touch()

    def got(self) -> list[dict[str, Any]]:
        """What came, in order."""
        return read_lines(self.folder / "got.jsonl")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError):
        return [json.loads(line) for line in path.read_text().splitlines()]
    return []


@contextlib.contextmanager
def target_server(kind: str, folder: Path) -> Iterator[TargetServer]:
    server = TargetServer(kind, folder)
    try:
        yield server
    finally:
        server.kill()


def make_certificate(folder: Path, *, ca: bool = True) -> Path:
    """A certificate for localhost that signs itself, with its key, in one file. Rust's TLS takes none of a `ca`."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    path = folder / "certificate.pem"
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(made.public_bytes(encoding) + private)
    return path


def _record(folder: Path, got: dict[str, Any]) -> None:
    with open(folder / "got.jsonl", "a") as file:
        file.write(json.dumps(got) + "\n")


def _serve_webhook(folder: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            is_well = self.path == "/ok" or (folder / "mended").exists()
            if is_well or self.path == "/silent":
                _record(folder, {"path": self.path, **body})
            while self.path == "/silent" and not (folder / "mended").exists():
                time.sleep(0.02)
            self.send_response(200 if is_well else 503)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def _serve_mail(folder: Path) -> None:
    """A server that takes mail only with STARTTLS and the password, if there is a certificate; any mail otherwise."""
    from aiosmtpd.controller import Controller
    from aiosmtpd.smtp import AuthResult, LoginPassword

    class Handler:
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
            text = envelope.content.decode()
            _record(folder, {"from": envelope.mail_from, "to": envelope.rcpt_tos, "text": text})
            return "250 taken"

    def check(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        sound = isinstance(data, LoginPassword) and (data.login, data.password) == (USER.encode(), PASSWORD.encode())
        return AuthResult(success=sound)

    secure: dict[str, Any] = {}
    certificate = folder / "certificate.pem"
    if certificate.exists():
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        secure = {"tls_context": context, "require_starttls": True, "authenticator": check, "auth_required": True}
    controller = Controller(Handler(), hostname="127.0.0.1", port=free_port(), ready_timeout=PATIENCE_S, **secure)
    controller.start()
    print(controller.port, flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    {"webhook": _serve_webhook, "mail": _serve_mail}[sys.argv[1]](Path(sys.argv[2]))
