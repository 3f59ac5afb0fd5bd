"""Object stores over obstore: memory, S3, GCS, Azure, HTTP.

obstore retries requests with back-off, and resumes an interrupted body of an object. This module handles the rest:
broken bodies of listings and of errors, and bodies shorter than announced.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import IO, Any, BinaryIO, TypeVar

from shardmill.core.errors import StoreChanged, StoreError
from shardmill.store import clients
from shardmill.store.base import MODIFIED, Entry, is_exact
from shardmill.store.clients import Clients, connect
from shardmill.store.rangefile import RangeFile
from shardmill.store.troubles import explain, is_about_bucket

_T = TypeVar("_T")
_TRIES, _PAUSE_S = 5, 0.1
# How many keys S3 deletes in one request.
_DELETED_AT_ONCE = 1000
# An object up to this size is sent in one request: a killed process leaves no half of an upload in the bucket.
ONE_PUT_BYTES = 32 << 20
# A client that gives up on a silent server counts the time in which it sends.
_QUICK_BYTES = 1 << 20
_BROKEN = ("response body error", "list response body", "invalid list response")


class ObjectStore:
    """An object store over obstore: memory, S3, GCS, Azure, HTTP."""

    def __init__(self, url: str, ways: Clients, prefix: str = "") -> None:
        self.url = url.rstrip("/")
        self._client, self._uploads = ways
        self._prefix = prefix

    def get(self, key: str) -> bytes:
        return self.get_tagged(key)[0]

    def get_tagged(self, key: str) -> tuple[bytes, str]:
        import obstore

        def ask() -> tuple[bytes, str]:
            answer = obstore.get(self._client, self._prefix + key)
            return bytes(answer.bytes()), _version_tag(answer.meta)

        return self._ask(key, ask)

    def get_if_changed(self, key: str, tag: str) -> tuple[bytes, str] | None:
        import obstore
        from obstore.exceptions import NotModifiedError

        options: Any = {"if_none_match": match} if (match := self._if_match(tag)) else {}

        def ask() -> tuple[bytes, str] | None:
            try:
                answer = obstore.get(self._client, self._prefix + key, options=options)
            except NotModifiedError:
                return None
            return bytes(answer.bytes()), str(answer.meta["e_tag"] or "")

        return self._ask(key, ask)

    def get_range(self, key: str, start: int, stop: int, tag: str = "") -> bytes:
        import obstore

        if stop <= start:
            return b""
        options: Any = {"range": (start, stop)}
        if match := self._if_match(tag):
            options["if_match"] = match

        def ask() -> bytes:
            answer = obstore.get(self._client, self._prefix + key, options=options)
            data = bytes(answer.bytes())
            begins, ends = answer.range
            if len(data) != ends - begins:
                raise _CutOff(f"{len(data):,} bytes arrived of {ends - begins:,} announced")
            return data

        return self._ask(key, ask)

    def _if_match(self, tag: str) -> str:
        """The tag as an If-Match or If-None-Match condition, "" if it cannot be one."""
        if not is_exact(tag):
            return ""
        return tag if self.url.startswith("memory:") else f'"{tag.strip(chr(34))}"'

    def head(self, key: str) -> Entry | None:
        import obstore

        try:
            meta = self._ask(key, lambda: obstore.head(self._client, self._prefix + key))
        except FileNotFoundError:
            return None
        return Entry(key, int(meta["size"]), _tag(meta))

    def put(self, key: str, data: bytes | bytearray) -> None:
        import obstore

        client = self._client if len(data) <= _QUICK_BYTES else self._uploads
        many = len(data) > ONE_PUT_BYTES
        self._ask(key, lambda: obstore.put(client, self._prefix + key, data, use_multipart=many))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Whether the object has our bytes, however often the request was sent.

        A request that timed out may have succeeded, and a retry then reports our own write as existing. So the object
        is read back to decide; the bytes must identify their writer. If no object exists, the request is sent again,
        because obstore does not retry a request that it considers not repeatable.
        """
        return self._settle(key, data, "create")

    def replace_if_same(self, key: str, data: bytes, tag: str) -> bool:
        """As `put_if_absent`: sent again after a time-out, so that the first request is refused if it comes late."""
        return self._settle(key, data, _read_version_tag(tag))

    def _settle(self, key: str, data: bytes, mode: Any) -> bool:
        """Send a conditional write until it is answered, and read back who won if it was refused."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        attempt = 0
        while True:
            attempt += 1
            try:
                obstore.put(self._client, self._prefix + key, data, mode=mode)
                return True
            except (AlreadyExistsError, PreconditionError):
                return self._holds(key, data)
            except Exception as error:
                gone = isinstance(error, FileNotFoundError) and mode != "create"
                if gone or (mode == "create" and self.head(key) is not None):
                    return self._holds(key, data)
                explained = self._explain(error, key)
                if attempt == _TRIES or not explained.retryable:
                    raise explained from error
            time.sleep(_PAUSE_S * 2**attempt)

    def _holds(self, key: str, data: bytes) -> bool:
        """Whether an object has these bytes; an object deleted meanwhile has none."""
        try:
            return self.get(key) == data
        except FileNotFoundError:
            return False

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        """List objects whose key starts with `prefix`; obstore itself only lists whole folders."""
        folder = (self._prefix + prefix).rpartition("/")[0]
        for path, meta in self._ask_list(prefix, folder, self._prefix + after if after else None):
            key = path.removeprefix(self._prefix)
            if key.startswith(prefix):
                yield Entry(key, int(meta["size"]), _tag(meta))

    def folders(self) -> Sequence[str]:
        """The names of the folders in this one, by a listing that stops at the next slash."""
        import obstore

        prefix = self._prefix.rstrip("/") or None
        found = self._ask("", lambda: obstore.list_with_delimiter(self._client, prefix=prefix))
        return sorted(str(each).removeprefix(self._prefix).strip("/") for each in found["common_prefixes"])

    def _ask_list(self, prefix: str, folder: str, last: str | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """List the objects of a folder, page by page; a page that failed is requested again, from the last key.

        Some servers of Azure's blobs ignore where a listing is to begin, so what comes before that is skipped.
        """
        import obstore

        pages: Iterator[Any] | None = None
        begin = ""

        def ask() -> Any:
            nonlocal pages, begin
            try:
                if pages is None:
                    begin = last or ""
                    pages = iter(obstore.list(self._client, prefix=folder or None, offset=last))
                return next(pages, None)
            except Exception:
                pages = None
                raise

        while (page := self._ask(prefix, ask)) is not None:
            for meta in page:
                if meta["path"] > begin:
                    last = meta["path"]
                    yield last, meta

    def delete(self, key: str) -> None:
        import obstore

        with contextlib.suppress(FileNotFoundError):
            self._ask(key, lambda: obstore.delete(self._client, self._prefix + key))

    def delete_all(self, keys: Iterable[str]) -> None:
        """Delete in bulk; one by one where the store cannot, or says that a key is gone."""
        import obstore

        every = list(keys)
        for first in range(0, len(every), _DELETED_AT_ONCE):
            some = every[first : first + _DELETED_AT_ONCE]
            try:
                self._ask(some[0], partial(obstore.delete, self._client, [self._prefix + key for key in some]))
            except (FileNotFoundError, StoreError):
                for key in some:
                    self.delete(key)

    def writer(self, key: str) -> IO[bytes]:
        return _Upload(self, key)

    def _upload(self, key: str) -> Any:
        import obstore

        return self._ask(key, lambda: obstore.open_writer(self._uploads, self._prefix + key))

    def reader(self, key: str) -> IO[bytes]:
        found = self.head(key)
        if found is None:
            raise FileNotFoundError(f"{self.url}/{key}")
        tag = found.tag
        return io.BufferedReader(
            RangeFile(lambda start, stop: self.get_range(key, start, stop, tag), found.size), buffer_size=1 << 20
        )

    def _ask(self, key: str, request: Callable[[], _T]) -> _T:
        """Send a request that may be repeated."""
        with self._explained(key):
            return _again(request)

    @contextlib.contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        from obstore.exceptions import PreconditionError

        try:
            yield
        except FileNotFoundError as error:
            if is_about_bucket(error):
                raise self._explain(error, key) from error
            raise
        except PreconditionError as error:
            raise StoreChanged(f"{self.url}/{key} has changed since it was first read.") from error
        except Exception as error:
            raise self._explain(error, key) from error

    def _explain(self, error: Exception, key: str) -> StoreError:
        return explain(f"{self.url}/{key}", error)


class _CutOff(Exception):
    """An incomplete response."""


def _again(request: Callable[[], _T]) -> _T:
    """Retry until the response is complete, for as long as obstore would."""
    give_up = time.monotonic() + clients.RETRY_S
    for attempt in range(1, _TRIES):
        try:
            return request()
        except Exception as error:
            broken = isinstance(error, _CutOff) or any(said in str(error) for said in _BROKEN)
            if not broken or time.monotonic() > give_up:
                raise
            time.sleep(_PAUSE_S * 2**attempt)
    return request()


def _tag(meta: Mapping[str, Any]) -> str:
    return str(meta["e_tag"] or f"{MODIFIED}{meta['last_modified'].isoformat()}")


def _version_tag(meta: Mapping[str, Any]) -> str:
    """A tag for a conditional update: GCS wants the object's version there, S3 and Azure its ETag."""
    return f"{meta['version'] or ''} {meta['e_tag'] or ''}"


def _read_version_tag(tag: str) -> Any:
    version, _, e_tag = tag.partition(" ")
    return {name: value for name, value in (("version", version), ("e_tag", e_tag)) if value}


class _Upload(io.RawIOBase, BinaryIO):
    """A file that becomes an object when it is closed.

    Dropped before that it creates none, but one larger than `ONE_PUT_BYTES` leaves an unfinished upload.
    """

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store, self._key, self._at = store, key, 0
        self._waiting = bytearray()
        self._upload: Any = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        self._at += len(view)
        if self._upload is None and self._at <= ONE_PUT_BYTES:
            self._waiting += view
            return len(view)
        if self._upload is None:
            self._upload = self._store._upload(self._key)
            self._send(self._waiting)
            self._waiting = bytearray()
        self._send(view)
        return len(view)

    def _send(self, data: Any) -> None:
        with self._store._explained(self._key):
            self._upload.write(data)

    def close(self) -> None:
        if not self.closed:
            try:
                if self._upload is None:
                    self._store.put(self._key, self._waiting)
                else:
                    with self._store._explained(self._key):
                        self._upload.close()
            finally:
                super().close()

    def __del__(self) -> None:
        pass


_memory: dict[str, Any] = {}


def memory_store(url: str) -> ObjectStore:
    """A store that lives as long as this process; all URLs with the same name share it."""
    from obstore.store import MemoryStore

    name, _, folder = url.removeprefix("memory://").strip("/").partition("/")
    client = _memory.setdefault(name, MemoryStore())
    return ObjectStore(url, Clients(client, client), f"{folder}/" if folder else "")


def forget_memory(url: str) -> None:
    """Free the store of a URL in memory, once all who use it have let go of it."""
    _memory.pop(url.removeprefix("memory://").partition("/")[0], None)


def object_store(url: str) -> ObjectStore:
    return ObjectStore(url, *connect(url))
