"""Every store keeps one contract."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest

from shardmill.core.errors import CorruptState, UsageError
from shardmill.store import Store, list_folders, local, locate, open_store, remote, replacing
from shardmill.store.local import LocalStore, try_lock


@pytest.fixture
def store(place: str) -> Store:
    return open_store(place)


def test_what_is_put_is_there(store: Store) -> None:
    store.put("a/b.json", b"one")
    store.put("a/b.json", b"two")
    assert store.get("a/b.json") == b"two"
    found = store.head("a/b.json")
    assert found is not None
    assert found.size == 3
    assert store.get_range("a/b.json", 1, 3) == b"wo"
    assert store.get_range("a/b.json", 1, 1) == b""


def test_what_is_missing_says_so(store: Store) -> None:
    with pytest.raises(FileNotFoundError):
        store.get("nothing")
    with pytest.raises(FileNotFoundError):
        store.get_tagged("nothing")
    assert store.head("nothing") is None
    store.delete("nothing")
    assert list(store.list("nothing/")) == []


def test_put_if_absent_has_one_winner(store: Store) -> None:
    for round_ in range(10):
        with ThreadPoolExecutor(6) as pool:
            won = list(pool.map(lambda i, r=round_: store.put_if_absent(f"race/{r}", b"by %d" % i), range(6)))
        assert sum(won) == 1
        assert store.get(f"race/{round_}") == b"by %d" % won.index(True)


def test_put_if_absent_knows_its_own_write(store: Store) -> None:
    """A repeated request, as after a time-out, finds our own bytes; that is a win on a store that retries."""
    assert store.put_if_absent("k", b"mine")
    assert not store.put_if_absent("k", b"other")
    assert store.get("k") == b"mine"


def test_put_if_absent_loses_to_an_object_that_is_deleted_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's claim is refused, and the holder commits and deletes its lease before the refusal is read back."""
    store.put("k", b"the holder's")

    def then_delete(write: Any) -> Any:
        def written(*args: Any, **options: Any) -> Any:
            try:
                return write(*args, **options)
            except Exception:
                store.delete("k")
                raise

        return written

    monkeypatch.setattr(os, "link", then_delete(os.link))
    monkeypatch.setattr(obstore, "put", then_delete(obstore.put))
    assert not store.put_if_absent("k", b"mine")
    assert store.put_if_absent("k", b"mine")


def test_replace_if_same_has_one_winner(store: Store) -> None:
    store.put("k", b"0")
    _, tag = store.get_tagged("k")
    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(lambda i: store.replace_if_same("k", b"by %d" % i, tag), range(6)))
    assert sum(won) == 1
    assert store.get("k") == b"by %d" % won.index(True)


def test_what_is_deleted_is_not_brought_back_by_a_replacement(store: Store) -> None:
    """In whichever order the two come, the object is gone."""
    store.put("race/first", b"0")
    assert store.replace_if_same("race/first", b"1", store.get_tagged("race/first")[1])
    for i in range(30):
        key = f"race/{i}"
        store.put(key, b"0")
        tag = store.get_tagged(key)[1]
        with ThreadPoolExecutor(2) as pool:
            pool.submit(store.replace_if_same, key, b"1", tag)
            pool.submit(store.delete, key)
        assert store.head(key) is None


def test_replace_if_same_refuses_what_changed_or_is_gone(store: Store) -> None:
    store.put("k", b"0")
    _, tag = store.get_tagged("k")
    store.put("k", b"1")
    assert not store.replace_if_same("k", b"2", tag)
    assert store.get("k") == b"1"
    store.delete("k")
    assert not store.replace_if_same("k", b"2", tag)


def test_a_folder_without_flock_swaps_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Lustre mounted without flock: take-overs and renewals must not end workers there."""

    def refuse(*args: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    store = open_store(str(tmp_path))
    for _ in range(20):
        test_replace_if_same_has_one_winner(store)
    test_replace_if_same_refuses_what_changed_or_is_gone(store)
    assert [p.name for p in tmp_path.iterdir() if p.name != ".lock"] == []


HOLDS = """
import fcntl, sys
with open(sys.argv[1], "ab") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_process_that_is_paused_with_the_lock_holds_nobody_up_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_PAUSED_S", 0.5)
    store = open_store(str(tmp_path))
    store.put("k", b"0")
    told: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path / ".lock")], **told) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        for _ in range(5):
            test_replace_if_same_has_one_winner(store)
        test_replace_if_same_refuses_what_changed_or_is_gone(store)
        holder.communicate()
    test_replace_if_same_has_one_winner(store)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "k"]


def test_who_was_paused_with_the_lock_looks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it was paused another has replaced the object without the lock."""
    store, other = LocalStore(tmp_path), LocalStore(tmp_path)
    store.put("k", b"0")
    tag = store.get_tagged("k")[1]
    clock, read = [0.0], local._read

    def paused(path: Path) -> bytes:
        found = read(path)
        if path.name == "k" and not clock[0]:
            clock[0] = 60.0
            other.put("k", b"of another")
        return found

    monkeypatch.setattr(local, "_read", paused)
    monkeypatch.setattr(local, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=time.sleep))
    assert not store.replace_if_same("k", b"1", tag)
    assert store.get("k") == b"of another"


def test_nobody_waits_for_the_disk_with_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was paused while it wrote a lease kept all others from theirs."""
    store = open_store(str(tmp_path))
    store.put("k", b"0")
    free, fsync = [], os.fsync

    def look(handle: int) -> None:
        with open(tmp_path / ".lock", "ab") as lock:
            free.append(try_lock(lock.fileno()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", look)
    assert store.replace_if_same("k", b"1", store.get_tagged("k")[1])
    store.delete("k")
    assert free
    assert all(free)


def test_list_is_by_prefix(store: Store) -> None:
    for key in ("a/1", "a/2", "ab/3", "b/c/4"):
        store.put(key, b"x")
    assert sorted(e.key for e in store.list("a/")) == ["a/1", "a/2"]
    assert sorted(e.key for e in store.list("")) == ["a/1", "a/2", "ab/3", "b/c/4"]
    assert sorted(e.key for e in store.list("b/")) == ["b/c/4"]


def test_a_listing_begins_after_a_key_and_is_in_order(store: Store) -> None:
    for key in ("a/000010.x", "a/000009.x", "a/000011.x", "b/000012.x"):
        store.put(key, b"x")
    assert [e.key for e in store.list("a/", "a/000009.x")] == ["a/000010.x", "a/000011.x"]
    assert [e.key for e in store.list("a/", "a/000010")] == ["a/000010.x", "a/000011.x"]
    assert list(store.list("a/", "a/000012")) == []


def test_a_tag_changes_with_the_content(store: Store) -> None:
    store.put("k", b"one")
    _, before = store.get_tagged("k")
    store.put("k", b"two")
    assert store.get_tagged("k")[1] != before


@pytest.mark.parametrize("one_put_bytes", [32 << 20, 1 << 20])
def test_large_objects_are_written_and_read_in_pieces(
    store: Store, monkeypatch: pytest.MonkeyPatch, one_put_bytes: int
) -> None:
    monkeypatch.setattr(remote, "ONE_PUT_BYTES", one_put_bytes)
    data = bytes(range(256)) * 50_000
    with store.writer("big") as file:
        for start in range(0, len(data), 1_000_000):
            file.write(data[start : start + 1_000_000])
    with store.reader("big") as file:
        file.seek(-10, 2)
        assert file.read() == data[-10:]
        file.seek(1_234_567)
        assert file.read(1000) == data[1_234_567:1_235_567]
    assert store.get("big") == data


def test_what_a_killed_process_left_of_a_file_is_removed_by_the_next(tmp_path: Path) -> None:
    """A file that is being written by a live process stays."""
    script = (
        "import os, signal, sys\nfrom shardmill.store import replacing\n"
        "with replacing(sys.argv[1]) as file:\n    file.write(b'half')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    target = tmp_path / "all.parquet"
    subprocess.run([sys.executable, "-c", script, str(target)], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with replacing(target) as first:
        first.write(b"first")
        with replacing(target) as second:
            second.write(b"second")
            assert len(list(tmp_path.iterdir())) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["all.parquet"]
    assert target.read_bytes() == b"first"


def test_an_object_is_located_by_its_whole_address(place: str, store: Store) -> None:
    store.put("folder/file.txt", b"x")
    found, key = locate(f"{place}/folder/file.txt")
    assert found.get(key) == b"x"


def test_an_unknown_scheme_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="ftp:// is not supported"):
        open_store("ftp://host/x")


def test_what_has_not_changed_is_not_fetched_again(store: Store) -> None:
    store.put("k", b"one")
    found = store.get_if_changed("k", "")
    assert found is not None
    data, tag = found
    assert data == b"one"
    assert store.get_if_changed("k", tag) is None
    store.put("k", b"two")
    again = store.get_if_changed("k", tag)
    assert again is not None
    assert again[0] == b"two"
    with pytest.raises(FileNotFoundError):
        store.get_if_changed("nothing", "")


def test_many_are_deleted_at_once_and_missing_ones_are_skipped(store: Store) -> None:
    for i in range(5):
        store.put(f"a/{i}", b"")
    store.delete_all([f"a/{i}" for i in range(1, 7)])
    assert [entry.key for entry in store.list()] == ["a/0"]
    store.delete_all([])


@pytest.mark.parametrize("arrived", [True, False])
def test_a_swap_whose_answer_is_lost_is_sent_again(arrived: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first request may come late, and undo what was decided since."""
    from obstore.exceptions import GenericError

    store, put, sent = open_store(f"memory://{uuid.uuid4().hex}"), obstore.put, []

    def lose_first(*args: Any, **kwargs: Any) -> Any:
        sent.append(args[1])
        if len(sent) == 1:
            if arrived:
                put(*args, **kwargs)
            raise GenericError("error sending request: timed out")
        return put(*args, **kwargs)

    store.put("k", b"old")
    tag = store.get_tagged("k")[1]
    monkeypatch.setattr(obstore, "put", lose_first)
    assert store.replace_if_same("k", b"new", tag)
    assert (len(sent), store.get("k")) == (2, b"new")


def test_folders_are_listed_one_level_deep(place: str, store: Store) -> None:
    for key in ("runs.json", "b/plan.json", "b/parts/1", "a/deep/er/x", "ab/x"):
        store.put(key, b"x")
    assert list_folders(place) == [f"{store.url}/{name}" for name in ("a", "ab", "b")]


@pytest.mark.timeout(60)
def test_only_regular_files_are_opened_and_nobody_is_waited_for(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    os.mkfifo(tmp_path / "state.json")
    os.mkfifo(tmp_path / ".lock")
    for read in (store.get, store.get_tagged, store.reader, lambda key: store.get_if_changed(key, "")):
        with pytest.raises(CorruptState, match=r"state\.json is not a regular file"):
            read("state.json")
    with pytest.raises(CorruptState, match="not a regular file"):
        store.get_range("state.json", 0, 1)
    with pytest.raises(CorruptState, match=r"\.lock is not a regular file"):
        store.replace_if_same("state.json", b"", "")
    (tmp_path / "link.json").symlink_to(tmp_path / "there.json")
    (tmp_path / "there.json").write_bytes(b"there")
    assert store.get("link.json") == b"there"
