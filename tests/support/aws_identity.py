"""What AWS runs beside pods that have a role: STS for IRSA, and the agent of EKS Pod Identity.

Both hand out the keys of the tests' S3 server for a token that the cluster has signed for the right account.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.served import served

_EXPIRES = "2100-01-01T00:00:00Z"
_STS = "https://sts.amazonaws.com/doc/2011-06-15/"
# Whose a token is that was made for an audience; "" if it is no such token.
Review = Callable[[str, str], str]


class _Handler(BaseHTTPRequestHandler):
    review: Review
    account: str

    def do_GET(self) -> None:
        """The agent of EKS Pod Identity."""
        token = self.headers.get("Authorization", "")
        self._answer(token, "pods.eks.amazonaws.com", json.dumps({**_keys(), "Token": ""}))

    def do_POST(self) -> None:
        """STS: AssumeRoleWithWebIdentity."""
        asked = parse_qs(urlsplit(self.path).query)
        inner = "".join(f"<{name}>{value}</{name}>" for name, value in {**_keys(), "SessionToken": ""}.items())
        for name in ("Credentials", "AssumeRoleWithWebIdentityResult"):
            inner = f"<{name}>{inner}</{name}>"
        name = "AssumeRoleWithWebIdentityResponse"
        self._answer(asked["WebIdentityToken"][0], "sts.amazonaws.com", f'<{name} xmlns="{_STS}">{inner}</{name}>')

    def _answer(self, token: str, audience: str, keys: str) -> None:
        known = self.review(token, audience) == self.account
        body = (keys if known else "no such account").encode()
        self.send_response(200 if known else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def _keys() -> dict[str, str]:
    keys = {"AccessKeyId": os.environ["AWS_ACCESS_KEY_ID"], "SecretAccessKey": os.environ["AWS_SECRET_ACCESS_KEY"]}
    return {**keys, "Expiration": _EXPIRES}


@contextlib.contextmanager
def aws_identity(account: str, review: Review, certificate: Path | None = None) -> Iterator[str]:
    """A server for one account; with a certificate it speaks TLS, without which no client asks STS."""
    handler = type("Handler", (_Handler,), {"review": staticmethod(review), "account": account})
    with served(handler, certificate) as port:
        yield f"{'https://localhost' if certificate else 'http://127.0.0.1'}:{port}"
