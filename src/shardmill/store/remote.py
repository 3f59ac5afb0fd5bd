"""Object stores over obstore: memory, S3, GCS, Azure, HTTP."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import IO, Any, BinaryIO, TypeVar

from shardmill.errors import StoreError, UsageError
from shardmill.store.base import Entry

SCHEMES = {"s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss", "http", "https"}
_T = TypeVar("_T")


class ObjectStore:
    """An object store over obstore: memory, S3, GCS, Azure, HTTP."""

    def __init__(self, url: str, client: Any, prefix: str = "") -> None:
        self.url = url.rstrip("/")
        self._client = client
        self._prefix = prefix

    def get(self, key: str) -> bytes:
        import obstore

        return self._ask(key, lambda: bytes(obstore.get(self._client, self._prefix + key).bytes()))

    def get_tagged(self, key: str) -> tuple[bytes, str]:
        import obstore

        def ask() -> tuple[bytes, str]:
            answer = obstore.get(self._client, self._prefix + key)
            return bytes(answer.bytes()), str(answer.meta["e_tag"])

        return self._ask(key, ask)

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        import obstore

        if stop <= start:
            return b""
        return self._ask(key, lambda: bytes(obstore.get_range(self._client, self._prefix + key, start=start, end=stop)))

    def head(self, key: str) -> Entry | None:
        import obstore

        try:
            meta = self._ask(key, lambda: obstore.head(self._client, self._prefix + key))
        except FileNotFoundError:
            return None
        return Entry(key, int(meta["size"]), str(meta["e_tag"] or meta["last_modified"]))

    def put(self, key: str, data: bytes) -> None:
        import obstore

        self._ask(key, lambda: obstore.put(self._client, self._prefix + key, data))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Whether our bytes are the ones that stand there, however many times the request had to be sent.

        A request that timed out may have been carried out, and its repetition then answers "exists" about our own
        write. So the answer is settled by reading back; the bytes must say who wrote them.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            obstore.put(self._client, self._prefix + key, data, mode="create")
            return True
        except (AlreadyExistsError, PreconditionError):
            return self.get(key) == data
        except Exception as error:
            found = self.head(key)
            if found is None:
                raise self._explain(error, key) from error
            return self.get(key) == data

    def replace_if_same(self, key: str, data: bytes, tag: str) -> bool:
        import obstore
        from obstore.exceptions import PreconditionError

        try:
            obstore.put(self._client, self._prefix + key, data, mode={"e_tag": tag})
            return True
        except (PreconditionError, FileNotFoundError):
            try:
                return self.get(key) == data
            except FileNotFoundError:
                return False
        except Exception as error:
            raise self._explain(error, key) from error

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Everything whose key starts with `prefix`; obstore itself only lists whole folders."""
        import obstore

        folder = (self._prefix + prefix).rpartition("/")[0]
        pages = iter(obstore.list(self._client, prefix=folder or None))
        while (page := self._ask(prefix, lambda: next(pages, None))) is not None:
            for meta in page:
                key = meta["path"].removeprefix(self._prefix)
                if key.startswith(prefix):
                    yield Entry(key, int(meta["size"]), str(meta["e_tag"] or meta["last_modified"]))

    def delete(self, key: str) -> None:
        import obstore

        with contextlib.suppress(FileNotFoundError):
            self._ask(key, lambda: obstore.delete(self._client, self._prefix + key))

    def writer(self, key: str) -> IO[bytes]:
        import obstore

        upload: Any = self._ask(key, lambda: obstore.open_writer(self._client, self._prefix + key))
        return _Upload(self, key, upload)

    def reader(self, key: str) -> IO[bytes]:
        found = self.head(key)
        if found is None:
            raise FileNotFoundError(f"{self.url}/{key}")
        return io.BufferedReader(_RangeFile(self, key, found.size), buffer_size=1 << 20)

    def _ask(self, key: str, request: Callable[[], _T]) -> _T:
        try:
            return request()
        except FileNotFoundError:
            raise
        except Exception as error:
            raise self._explain(error, key) from error

    def _explain(self, error: Exception, key: str) -> StoreError:
        first = str(error).partition("\n")[0]
        if "169.254.169.254" in first:
            return StoreError(
                f"{self.url}/{key}: no credentials were found.",
                hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket.",
            )
        explained = StoreError(f"{self.url}/{key}: {first}")
        if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
            explained.retryable = False
            explained.hint = "Check the credentials in the environment and what they allow."
        return explained


class _RangeFile(io.RawIOBase):
    """A seekable file over range reads."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store, self._key, self._size, self._at = store, key, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        data = self._store.get_range(self._key, self._at, min(self._size, self._at + len(buffer)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class _Upload(io.RawIOBase, BinaryIO):
    """A file that is an object once it is closed, and nothing when it is dropped before."""

    def __init__(self, store: ObjectStore, key: str, upload: Any) -> None:
        self._store, self._key, self._upload, self._at = store, key, upload, 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any, /) -> int:
        size = memoryview(data).nbytes
        self._store._ask(self._key, lambda: self._upload.write(data))
        self._at += size
        return size

    def close(self) -> None:
        if not self.closed:
            try:
                self._store._ask(self._key, self._upload.close)
            finally:
                super().close()

    def __del__(self) -> None:
        pass


_memory: dict[str, Any] = {}


def memory_store(url: str) -> ObjectStore:
    """A store that lives as long as this process; every address under one name leads to the same."""
    from obstore.store import MemoryStore

    name, _, folder = url.removeprefix("memory://").strip("/").partition("/")
    return ObjectStore(url, _memory.setdefault(name, MemoryStore()), f"{folder}/" if folder else "")


def connect(url: str) -> Any:
    from obstore.store import from_url

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    plain = url.startswith("http://") or (url.startswith("s3") and endpoint.startswith("http://"))
    config: Any = {"endpoint": endpoint} if endpoint and url.startswith("s3") else {}
    try:
        return from_url(
            url,
            config=config or None,
            client_options={"allow_http": plain, "connect_timeout": "10s", "timeout": "120s"},
            retry_config={"max_retries": 6, "retry_timeout": timedelta(seconds=90)},
        )
    except Exception as error:
        raise UsageError(f"{url}: {str(error).partition(chr(10))[0]}") from error
