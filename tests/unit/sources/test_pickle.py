"""Pickles: what of them is read, and that a hostile one can do nothing but be refused."""

from __future__ import annotations

import collections
import contextlib
import datetime
import decimal
import io
import os
import pickle
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardmill.core.errors import SourceError
from shardmill.sources import Fields, discover, open_source
from shardmill.sources.pickle.safe import load
from shardmill.sources.pickle.standin import RefusedPickle

SOURCE = "shardmill.sources.pickle.source"
BODY = Fields(text="body")
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def read(data: bytes) -> Any:
    return load(io.BytesIO(data), len(data))


def refusal(data: bytes) -> str:
    with pytest.raises(RefusedPickle) as caught:
        read(data)
    return str(caught.value)


class Calls:
    """Pickles as a call of any function."""

    def __init__(self, function: Callable[..., object], *given: object) -> None:
        self.call = (function, given)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (os.system, "system"),
        (eval, "builtins.eval"),
        (exec, "builtins.exec"),
        (getattr, "builtins.getattr"),
        (open, "open"),
        (__import__, "__import__"),
        (subprocess.Popen, "subprocess.Popen"),
        (np.load, "numpy"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_pickle_that_runs_code_is_refused_by_name(
    protocol: int, function: Callable[..., object], name: str, tmp_path: Path
) -> None:
    name = name.replace("builtins", "__builtin__") if protocol < 3 else name
    flag = tmp_path / "ran"
    call = Calls(function, f"touch {flag}")
    place = tmp_path / "a.pkl"
    place.write_bytes(pickle.dumps([{"body": "x", "n": [call]}], protocol))
    with pytest.raises(SourceError) as caught:
        discover([str(place)], BODY)
    assert "a.pkl cannot be read as pickled records: it tries to load" in str(caught.value)
    assert "nothing was executed" in str(caught.value)
    assert name.rpartition(".")[2] in str(caught.value)
    assert not flag.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"(cos\nsystem\nS'true'\no.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x04\x8c\x08builtins\x8c\x0dset.__class__\x93.",
        b"\x80\x04\x8c\x08datetime\x8c\x1ddatetime.__init__.__globals__\x93.",
        b"\x80\x04\x8c\x08datetime\x8c\x03sys\x93.",
        b"cnumpy\n__builtins__\n.",
        b"cshardmill.sources.safepickle\npickle\n.",
        b"ccopyreg\n_reconstructor\n(cos\nsystem\ncos\nsystem\nNtR.",
    ],
)
def test_every_way_of_naming_code_is_refused(data: bytes) -> None:
    assert "it tries to load" in refusal(data)


STATES = [
    b"c_codecs\nencode\n(N}S'__defaults__'\n(S'utf16'\ntstb.",
    b"cnumpy\nndarray\n}S'__init__'\nI1\nsb.",
    b"cdatetime\ndate\n}S'today'\nI1\nsb.",
    b"]}S'x'\nI1\nsb.",
    b"cnumpy\ndtype\n(tb.",
]


@pytest.mark.parametrize("data", STATES)
def test_no_state_is_set_on_what_is_not_ours(data: bytes) -> None:
    assert "sets the state" in refusal(data)
    assert read(pickle.dumps(b"ab", 2)) == b"ab"


def test_what_points_out_of_the_file_is_refused() -> None:
    assert "objects outside the file" in refusal(b"Psome id\n.")
    assert "objects outside the file" in refusal(b"\x80\x02K\x01Q.")
    assert "extension code 7" in refusal(b"\x80\x02\x82\x07.")
    assert "extension code 70000" in refusal(b"\x80\x02\x84" + struct.pack("<i", 70000) + b".")
    assert "broken" in refusal(b"\x80\x05\x97.")


LENGTHS = {
    "LONG4": b"\x8b" + struct.pack("<i", 2**31 - 1),
    "BINBYTES8": b"\x8e" + struct.pack("<Q", 2**40),
    "BINUNICODE8": b"\x8d" + struct.pack("<Q", 2**40),
    "BYTEARRAY8": b"\x96" + struct.pack("<Q", 2**36),
    "FRAME": b"\x95" + struct.pack("<Q", 2**40),
    "BINSTRING": b"T" + struct.pack("<i", 2**31 - 1),
    "LONG_BINPUT": b"Nr" + struct.pack("<I", 2**31 - 1) + b"0",
    "PUT": b"Np99999999999\n0",
    "zeros": b"c__builtin__\nbytearray\n(I99999999999\ntR",
    "zero bytes": b"c__builtin__\nbytes\n(I99999999999\ntR",
    "empty texts": b"cnumpy.core.numeric\n_frombuffer\n(C\x00cnumpy\ndtype\n(S'U0'\ntR(I99999999999\ntS'C'\ntR",
    "copies": b"C\xff" + b"x" * 255 + b"q\x000" + b"](" + b"c__builtin__\nbytearray\n(h\x00tR" * 9000 + b"e",
}


@pytest.mark.parametrize("name", LENGTHS)
def test_no_memory_is_set_aside_for_what_does_not_come(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = b"\x80\x05" + LENGTHS[name] + b"]."
    if name in ("LONG_BINPUT", "PUT"):
        assert read(data) == []
    else:
        assert refusal(data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_numbers_with_too_many_digits_are_refused() -> None:
    assert "broken" in refusal(b"L" + b"9" * 100_000 + b"L\n.")
    assert "broken" in refusal(b"I" + b"9" * 100_000 + b"\n.")


def test_deep_nesting_ends_no_process(tmp_path: Path) -> None:
    deep = b"N" + b"\x85" * 200_000
    assert "tuples as keys" in refusal(b"\x80\x04}" + deep + b"Ns.")
    assert "tuples as keys" in refusal(b"\x80\x04}(" + deep + b"Nu.")
    assert "tuples as keys" in refusal(b"\x80\x04(" + deep + b"Nd.")
    read(b"\x80\x04\x8f(" + deep + b"\x90.")
    read(b"\x80\x04(" + deep + b"\x91.")
    record = b"\x80\x04](}(\x8c\x04body" + deep + b"u}(\x8c\x04body\x8c\x01bue."
    assert bad_rows(tmp_path, record) == ["'body' is nested too deep or too large", None]


def test_records_that_hold_themselves_or_unfold_without_end(tmp_path: Path) -> None:
    row: dict[str, object] = {"body": "a"}
    row["n"] = [row]
    laughs: list[object] = ["ha"]
    for _ in range(40):
        laughs = [laughs, laughs]
    fields = Fields(text="body", keep=("n:string",))
    reasons = bad_rows(tmp_path, pickle.dumps([row, {"body": "b", "n": laughs}, {"body": "c", "n": 1}]), fields)
    assert reasons == ["'n' is nested too deep or too large"] * 2 + [None]


def bad_rows(tmp_path: Path, data: bytes, fields: Fields = BODY) -> list[str | None]:
    (tmp_path / "a.pkl").write_bytes(data)
    source = open_source(discover([str(tmp_path / "a.pkl")], fields), fields)
    batches = [batch for shard in source.shards(10**9) for batch in source.read(shard)]
    return [batch.bad.get(i) for batch in batches for i in range(len(batch))]


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=40), at=st.integers(0, 10**6), junk=st.binary(min_size=1, max_size=4))
def test_junk_is_refused_or_read_and_nothing_else(data: bytes, at: int, junk: bytes) -> None:
    good = pickle.dumps([{"body": "text", "n": 1, "a": np.arange(3)}])
    at %= len(good)
    for hostile in (data, good[:at] + junk + good[at + len(junk) :]):
        with contextlib.suppress(RefusedPickle):
            read(hostile)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_values_are_read_as_they_were(protocol: int) -> None:
    values = {
        "text": "é界\n",
        "numbers": [1, -(2**70), 1.5, True, None, 2**31],
        "bytes": b"\x00\xff",
        "none": b"",
        "tuple": (1, (2,), ()),
        "dates": [datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC), datetime.date(2024, 1, 2), datetime.timedelta(1)],
        "decimal": decimal.Decimal("1.50"),
        "ordered": collections.OrderedDict(a=1),
        "scalar": np.float32(1.5),
        "word": np.str_("a"),
    }
    assert read(pickle.dumps(values, protocol)) == values
    assert read(pickle.dumps(collections.defaultdict(list, a=[1]), protocol)) == {"a": [1]}
    assert sorted(read(pickle.dumps({1, 2}, protocol))) == [1, 2]
    assert read(pickle.dumps(frozenset([1]), protocol)) == [1]
    assert read(pickle.dumps(bytearray(b"ab"), protocol)) == b"ab"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.arange(6, dtype=">f4").reshape(3, 2, order="F"),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array(["a", "bé", ""]),
        np.array([True, False]),
        np.array(["a", None], object),
        np.array(["2024-01-02"], "M8[ns]").astype("M8[us]"),
        np.array([], np.float64),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_numpy_arrays_become_lists(protocol: int, array: np.ndarray[Any, Any]) -> None:
    assert read(pickle.dumps(array, protocol)).values == array.tolist()


def test_what_is_no_list_of_records_is_refused(tmp_path: Path) -> None:
    def refused(value: object) -> str:
        (tmp_path / "a.pkl").write_bytes(value if isinstance(value, bytes) else pickle.dumps(value))
        with pytest.raises(SourceError) as caught:
            discover([str(tmp_path / "a.pkl")], BODY)
        return str(caught.value)

    assert "its columns have different lengths (body 2, n 1)" in refused({"body": ["a", "b"], "n": [1]})
    assert "list(records.values())" in refused({"a": {"body": "x"}})
    assert "it holds a number" in refused(7)
    assert "the record is text, not a dict" in refused(["a", "b"])
    assert "no rows" in refused([])
    assert "no rows" in refused({"body": []})
    assert "no field 'body'" in refused([{"text": "a"}])
    assert "bytes follow its first object" in refused(pickle.dumps([{"body": "a"}]) * 2)
    assert "truncated" in refused(pickle.dumps([{"body": "a"}])[:-3])
    assert "df.to_parquet" in refused(b"cpandas.core.frame\nDataFrame\n.")
    assert "neither numbers nor text" in refused([{"body": "a", "n": np.array([1 + 2j])}])
    assert "array of" in refused([{"body": "a", "n": np.zeros(2, [("x", "i4")])}])


def test_records_with_mixed_columns_are_bad_rows(tmp_path: Path) -> None:
    rows = [
        {"body": "a", "when": datetime.date(2024, 1, 2), "tags": ("x", "y")},
        {"text": "b"},
        {"body": b"bytes"},
        "not a record",
        {"body": 7},
        {3: 4, "body": "c", "tags": np.array([1, 2])},
    ]
    fields = Fields(text="body", keep=("when", "tags"))
    assert bad_rows(tmp_path, pickle.dumps(rows), fields) == [
        None,
        "no field 'body'",
        "'body' is binary, which a record cannot hold",
        "the record is text, not a dict",
        "'body' is a number, not text",
        None,
    ]
    source = open_source(discover([str(tmp_path / "a.pkl")], fields), fields)
    kept = next(source.read(source.shards(10**9)[0])).kept.to_pylist()
    assert kept[0] == {"when": "2024-01-02", "tags": '["x", "y"]'}
    assert kept[5] == {"when": None, "tags": "[1, 2]"}


def test_a_worker_loads_a_pickle_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([{"body": f"text {i}"} for i in range(1000)]))
    source = open_source(discover([str(tmp_path / "a.pkl")], BODY), BODY)
    shards = source.shards(1000)
    loads: list[int] = []
    monkeypatch.setattr(f"{SOURCE}.load", lambda file, size: loads.append(size) or load(file, size))
    assert sum(len(batch) for shard in shards for batch in source.read(shard)) == 1000
    assert len(shards) > 10
    assert len(loads) == 1


def test_a_pickle_too_large_to_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardmill.sources.whole.MOST_BYTES", 10)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([{"body": "a"}]))
    with pytest.raises(SourceError, match="each worker loads a pickle whole"):
        discover([str(tmp_path / "a.pkl")], BODY)


def test_reading_a_pickle_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(b"cantigravity\nfly\n.")
    code = f"""
import sys
from shardmill.sources import Fields, discover
try:
    discover([{str(tmp_path / "a.pkl")!r}], Fields(text="body"))
except Exception as error:
    print(error)
print("antigravity" in sys.modules)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "it tries to load antigravity.fly" in out
    assert out.endswith("False\n")
