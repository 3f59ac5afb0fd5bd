"""Datasets of the Hugging Face hub as folders to read: hf://datasets/OWNER/NAME[@REVISION][/PATH].

They are read over HTTP, in ranges, at the hub's own address for files. The library of the hub finds the user's token.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import quote

from shardmill.core.errors import UsageError
from shardmill.core.extras import missing_package

SCHEME = "hf"
_ADDRESS = re.compile(
    r"hf://datasets/(?P<repo>[^/@]+/[^/@]+)(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
)


class HubPlace(NamedTuple):
    """A file or a folder of a dataset, at a revision."""

    repo: str
    revision: str
    path: str

    @classmethod
    def parse(cls, url: str) -> HubPlace:
        """
        >>> HubPlace.parse("hf://datasets/acme/news@refs/convert/parquet/en/train")
        HubPlace(repo='acme/news', revision='refs/convert/parquet', path='en/train')
        """
        found = _ADDRESS.fullmatch(url)
        if found is None:
            raise UsageError(
                f"{url} does not name a dataset of the hub.",
                hint="Write hf://datasets/OWNER/NAME, with @REVISION and /PATH if needed.",
            )
        return cls(found["repo"], (found["revision"] or "main").replace("%2F", "/"), (found["path"] or "").strip("/"))

    def __str__(self) -> str:
        return f"hf://datasets/{self.repo}@{self.revision}" + (f"/{self.path}" if self.path else "")


def web_address(url: str) -> str:
    """Where the hub serves the files of a folder."""
    place = HubPlace.parse(url)
    folder = f"/{quote(place.path)}" if place.path else ""
    return f"{endpoint()}/datasets/{place.repo}/resolve/{quote(place.revision, safe='')}{folder}"


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"


def find_token() -> str:
    """The user's token, from HF_TOKEN or from `hf auth login`; "" without one."""
    try:
        from huggingface_hub import get_token
    except ImportError as error:
        raise missing_package("huggingface-hub") from error
    return get_token() or ""
