"""Processes that refresh, prune and go back are killed at steps of their code: campaigns/refresh_kills.py in small."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns.refresh_kills import run_once

KILLS, ROUNDS = 8, 1


def test_every_read_is_one_edition_and_whole(tmp_path: Path) -> None:
    is_whole("local", "", tmp_path)


@pytest.mark.services
def test_every_read_from_a_bucket_is_one_edition_and_whole(tmp_path: Path, s3_server: str) -> None:
    is_whole("s3", f"{s3_server}/refresh-kills", tmp_path)


def is_whole(kind: str, url: str, folder: Path) -> None:
    done = run_once(kind, url, KILLS, folder, 7, set(), ROUNDS)
    assert done.wrong == []
    assert done.verified
    assert done.killed > 0
    assert done.reads > 0
