"""A model in an S3 bucket: fetched once, whole, by any number of workers; never half."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardmill.core.cache import cache_folder
from shardmill.core.errors import ModelError
from shardmill.models import fetching
from shardmill.models.location import find_model
from shardmill.plan.spec import make_spec
from shardmill.run import start
from shardmill.store import open_store
from shardmill.tasks import open_task
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_rows
from tests.support.tiny_models import bert, pooling, write_model
from tests.support.waiting import PATIENCE_S

KILLED = """
import os, signal, sys
from shardmill.models import fetching
from shardmill.models.location import find_model
seen, copy = [], fetching._copy
def copy_some(store, entry, into):
    if len(seen) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    seen.append(entry)
    yield from copy(store, entry, into)
fetching._copy = copy_some
find_model(sys.argv[1])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny", bert(vocab_size=30522), [pooling("mean")])


@pytest.fixture
def url(folder: Path, s3_server: str, request: pytest.FixtureRequest) -> str:
    url = f"{s3_server}/{request.node.name}/tiny"
    store = open_store(url)
    for file in (f for f in folder.rglob("*") if f.is_file()):
        store.put(file.relative_to(folder).as_posix(), file.read_bytes())
    store.put("README.md", b"not for us")
    return url


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _partials() -> list[Path]:
    return list(cache_folder().rglob("*.partial"))


def test_a_run_with_it_is_that_of_its_folder(
    folder: Path, url: str, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    there, here = (open_task("embed", {"model": str(model)}).fingerprint() for model in (url, folder))
    assert there == here
    work = {"source": str(write_jsonl(fake_rows(12))), "text": "text", "id": "id", "params": {"model": url}}
    run = start(make_spec(work, {"device": "cpu"}), tmp_path / "run", engine=InProcessEngine())
    assert run.plan.fingerprint == here
    assert run.verify().verified


def test_it_is_fetched_once_by_many_and_again_if_damaged_or_changed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched, fetch = [], fetching._fetch
    monkeypatch.setattr(fetching, "_fetch", lambda *args: (fetched.append(1), fetch(*args)))
    with ThreadPoolExecutor(8) as pool:
        (found,) = set(pool.map(lambda _: find_model(url).path, range(8)))
    assert len(fetched) == 1
    assert found.name == "tiny"
    assert not (found / "README.md").exists()
    weights = (found / "model.safetensors").read_bytes()
    (found / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert (find_model(url).path / "model.safetensors").read_bytes() == weights
    assert len(fetched) == 2
    open_store(url).put("vocab.txt", b"another\n")
    assert find_model(url).path != found
    assert len(fetched) == 3


def test_what_a_killed_process_has_fetched_is_not_taken_for_the_model(folder: Path, url: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, url], capture_output=True, timeout=PATIENCE_S)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert _partials()
    found = find_model(url).path
    assert (found / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert not _partials()


def test_a_folder_without_a_model_is_refused(s3_server: str) -> None:
    with pytest.raises(ModelError, match=r"holds no model"):
        find_model(f"{s3_server}/nothing/there")
