"""Any function as a task: what it is given, which rows are of which item, and what becomes of its faults."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shardmill
from shardmill import make_spec, start
from shardmill.core import permission
from shardmill.core.errors import SpecError, StaleResume, TaskError, TooManyErrors, UsageError
from shardmill.run import Run
from shardmill.run.running import resume
from shardmill.testing import InProcessEngine
from tests.support import functions
from tests.support.cli import Cli, assert_told
from tests.support.corpora import fake_rows
from tests.support.libraries import needed

Write = Callable[..., Path]
ROWS = fake_rows(120)
FROM_FRAMES = """
import {library} as library

def measure(frame: library.DataFrame) -> library.DataFrame:
    {body}
"""


def run_over(
    source: Path | str, made: Any, out: Path, arguments: dict[str, Any] | None = None, **execution: Any
) -> Run:
    settings = {"shard_bytes": 1_000, "batch_tokens": 16, **execution}
    params = {"arguments": arguments} if arguments else {}
    spec = make_spec({"source": str(source), "id": "id", "task": made, "params": params}, settings)
    return start(spec, out, engine=InProcessEngine())


def verified(run: Run) -> pa.Table:
    report = run.verify()
    assert report.verified, report
    return run.table()


@pytest.fixture
def source(write_jsonl: Write) -> Path:
    return write_jsonl(ROWS)


EXPECTED = [
    {"row": i, "id": r["id"], "letters": len(r["text"]), "shout": r["text"].upper()} for i, r in enumerate(ROWS)
]


@pytest.mark.parametrize("made", [functions.measure, functions.measure_batch])
def test_one_row_per_item(made: Any, source: Path, tmp_path: Path) -> None:
    run = run_over(source, made, tmp_path / "run")
    assert len(run.plan.shards) > 3
    assert verified(run).to_pylist() == EXPECTED


MEASURES = {
    "pandas, new": "return library.DataFrame({'letters': frame.text.str.len(), 'shout': frame.text.str.upper()})",
    "pandas, the same": "frame['letters'], frame['shout'] = frame.text.str.len(), frame.pop('text').str.upper()\n"
    "    return frame.drop(columns='id')",
    "polars": "text = library.col('text').str\n"
    "    return frame.select('row', letters=text.len_chars().cast(int), shout=text.to_uppercase())",
}


@pytest.mark.parametrize("case", MEASURES)
def test_a_frame_by_annotation(case: str, source: Path, tmp_path: Path) -> None:
    library = case.partition(",")[0]
    needed(library)
    file = tmp_path / "frames.py"
    file.write_text(FROM_FRAMES.format(library=library, body=MEASURES[case]))
    run = start_file(source, f"{file}:measure", tmp_path / "run")
    assert verified(run).to_pylist() == EXPECTED


def start_file(source: Path, call: str, out: Path) -> Run:
    return shardmill.apply(str(source), call, id="id", out=out, shard_bytes=1_000, batch=16, workers=1)


def test_several_rows_and_none(source: Path, tmp_path: Path) -> None:
    run = run_over(source, functions.split, tmp_path / "run")
    kept = [(i, row) for i, row in enumerate(ROWS) if len(row["text"].split()) % 2 == 0]
    expected = [{"row": i, "id": row["id"], **piece} for i, row in kept for piece in functions.pieces(row["text"])]
    assert 0 < len(kept) < len(ROWS)
    assert verified(run).to_pylist() == expected
    status = run.status()
    assert (status.rows, status.made, status.dropped) == (120, len(expected), 120 - len(kept))
    assert run.merge(tmp_path / "all.parquet").rows == len(expected)


def test_rows_of_a_frame_are_found_by_their_numbers(source: Path, tmp_path: Path) -> None:
    long = verified(run_over(source, functions.keep_long, tmp_path / "long"))
    assert long.column("text").to_pylist() == [row["text"] for row in ROWS if len(row["text"]) > 20]
    twice = verified(run_over(source, functions.repeat_twice, tmp_path / "twice"))
    assert twice.column("row").to_pylist() == [i for i in range(120) for _ in range(2)]
    assert twice.column("text").to_pylist() == [row["text"] for row in ROWS for _ in range(2)]


def test_a_shard_left_with_no_row_is_done_and_holds_nothing(source: Path, tmp_path: Path) -> None:
    run = run_over(source, functions.nothing, tmp_path / "run")
    commits = run.ledger.commits.read()
    assert len(commits) == len(run.plan.shards) > 1
    assert all(c.rows == c.dropped > 0 and c.rows_in_part == 0 for c in commits.values())
    table = verified(run)
    assert table.num_rows == 0
    assert table.schema.names == ["row", "id", "piece", "letters"]
    assert run.merge(tmp_path / "all.parquet").rows == 0


def test_what_was_not_dropped_by_the_function_is_missed(source: Path, tmp_path: Path) -> None:
    """A part without the rows of an item, whose commit has not counted it, does not verify."""
    run = run_over(source, functions.split, tmp_path / "run")
    key = next(entry.key for entry in run.ledger.store.list("commits/"))
    commit = json.loads(run.ledger.store.get(key))
    run.ledger.store.put(key, json.dumps({**commit, "dropped": commit["dropped"] - 1}).encode())
    failed = {check.name for check in Run(tmp_path / "run").verify().checks if not check.ok}
    assert failed == {"items"}


def test_a_row_dropped_by_another_function_is_found_by_the_sample(source: Path, tmp_path: Path) -> None:
    run = run_over(source, functions.split, tmp_path / "run")
    functions_before, functions.split.__code__ = functions.split.__code__, functions.nothing.__code__
    try:
        failed = {check.name for check in run.verify(sample=1_000).checks if not check.ok}
    finally:
        functions.split.__code__ = functions_before
    assert failed == {"sample"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return [{'n': float(os.environ['SEEN'])} for row in rows]", 'agreement="none"'),
        ("return [[{'n': 1}] * int(os.environ['SEEN']) for row in rows]", 'agreement="none"'),
        ("return [{'n': 6 // (3 - int(os.environ['SEEN']))} for row in rows]", "again: ZeroDivisionError"),
    ],
)
def test_verify_says_what_a_function_does_now(
    body: str, said: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "seen.py"
    file.write_text(f"import os\ndef f(rows):\n    {body}\n")
    monkeypatch.setenv("SEEN", "2")
    run = start_file(source, f"{file}:f", tmp_path / "run")
    monkeypatch.setenv("SEEN", "3")
    failed = [check for check in run.verify().checks if not check.ok]
    assert [check.name for check in failed] == ["sample"]
    assert said in failed[0].seen


def test_a_class_is_made_once_per_worker_with_its_arguments(source: Path, tmp_path: Path) -> None:
    functions.Numbered.made = 0
    run = run_over(source, functions.Numbered, tmp_path / "run", {"times": 3})
    assert functions.Numbered.made == 1
    assert verified(run).slice(0, 1).to_pylist() == [
        {"row": 0, "id": "k0", "times": 3 * len(ROWS[0]["text"]), "device": "cpu", "text": ROWS[0]["text"]}
    ]


def test_a_class_is_closed_by_the_worker_that_made_it(source: Path, tmp_path: Path) -> None:
    mark, file = tmp_path / "closed", tmp_path / "closing.py"
    file.write_text(
        "class Closing:\n    columns = {'n': 'int64'}\n"
        "    def __call__(self, rows):\n        return [{'n': 1} for row in rows]\n"
        f"    def close(self):\n        open({str(mark)!r}, 'a').write('closed ')\n        raise OSError('in vain')\n"
    )
    run = start_file(source, f"{file}:Closing", tmp_path / "run")
    assert mark.read_text() == "closed "
    assert run.table().num_rows == 120


def test_rows_with_other_columns_than_the_first_are_set_aside(source: Path, tmp_path: Path) -> None:
    run = run_over(source, functions.change_its_mind, tmp_path / "run", max_errors="2%")
    table = verified(run)
    assert table.num_rows == 120
    assert [row["id"] for row in table.to_pylist() if row["letters"] is None] == ["k90", "k91"]
    errors = [error for commit in run.ledger.commits.read().values() for error in run.ledger.errors.read(commit)]
    assert [error["id"]["id"] for error in errors] == ["k90", "k91"]
    assert "returned the columns other; the plan has letters" in errors[0]["reason"]


def test_too_many_such_rows_end_the_run(source: Path, tmp_path: Path) -> None:
    with pytest.raises(TooManyErrors, match="returned the columns other"):
        run_over(source, functions.change_its_mind, tmp_path / "run", max_errors="1")


def test_a_row_that_fails_is_set_aside_alone(source: Path, tmp_path: Path) -> None:
    table = verified(run_over(source, functions.fail_at_ninety, tmp_path / "run"))
    assert [row["id"] for row in table.to_pylist() if row["letters"] is None] == ["k90"]


def test_a_function_out_of_memory_gets_smaller_batches(source: Path, tmp_path: Path) -> None:
    run = run_over(source, functions.hold_few, tmp_path / "run")
    assert [row["id"] for row in verified(run).to_pylist() if row["letters"] is None] == ["k90"]
    assert "even alone: tests.support.functions:hold_few: MemoryError" in next(iter(run.errors()))["reason"]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (functions.too_few, "returned 15 entries for a batch of 16 items"),
        (functions.lose_some, "returned 15 rows for a batch of 16 items"),
    ],
)
def test_rows_that_belong_to_no_item_end_the_run(made: Any, said: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=said):
        run_over(source, made, tmp_path / "run", lease_s=5)


def test_a_row_that_ends_the_process_is_set_aside_alone(source: Path, tmp_path: Path) -> None:
    """A worker that ends with status 0 looks like one that is done."""
    run = run_over(source, functions.exit_at_ninety, tmp_path / "run", max_errors="2")
    table = verified(run)
    assert [row["id"] for row in table.to_pylist() if row["letters"] is None] == ["k90"]
    assert [error["reason"] for error in run.errors()] == ["RuntimeError: it ends the process: sys.exit(0)"]


def test_a_function_of_dicts_may_return_a_frame_and_one_of_frames_a_list(source: Path, tmp_path: Path) -> None:
    for made in (functions.frame_of_dicts, functions.dicts_of_batch):
        table = verified(run_over(source, made, tmp_path / made.__name__))
        assert table.column("letters").to_pylist() == [row["letters"] for row in EXPECTED]


def _half_done(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A function's file and the module that it imports, after a run of which half of the commits were lost."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "apply_helper", raising=False)
    helper, file = folder / "apply_helper.py", folder / "mine.py"
    helper.write_text("VERSION = 1\n")
    file.write_text("import apply_helper\n\ndef f(rows):\n    return [{'v': apply_helper.VERSION} for _ in rows]\n")
    store = start_file(source, f"{file}:f", folder / "run").ledger.store
    for key in [entry.key for entry in store.list("commits/")][::2]:
        store.delete(key)
    return file, helper


def test_two_versions_of_an_imported_module_are_not_mixed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, helper = _half_done(source, tmp_path, monkeypatch)
    helper.write_text("VERSION = 2\n")
    with pytest.raises(StaleResume, match=r"code that mine\.py:f imports changed \(apply_helper \w+ -> apply_"):
        start_file(source, f"{file}:f", tmp_path / "run")
    with pytest.raises(StaleResume, match=r"function here is not the one .* \(imports differ\)"):
        resume(tmp_path / "run")
    helper.write_text("VERSION = 1\n")
    table = start_file(source, f"{file}:f", tmp_path / "run").table()
    assert set(table.column("v").to_pylist()) == {1}


def test_a_plan_that_does_not_say_what_is_imported_goes_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As versions up to 0.2.0 made them."""
    file, _ = _half_done(source, tmp_path, monkeypatch)
    plan = json.loads((tmp_path / "run/plan.json").read_text())
    del plan["fingerprint"]["imports"]
    (tmp_path / "run/plan.json").write_text(json.dumps(plan))
    run = start_file(source, f"{file}:f", tmp_path / "run")
    assert run.plan.id == plan["id"]
    assert verified(run).num_rows == len(ROWS)


def test_a_changed_function_is_refused_by_name(source: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def f(rows):\n    return [{'n': 1} for row in rows]\n")
    call = f"{file}:f"
    start_file(source, call, tmp_path / "run")
    start_file(source, call, tmp_path / "run")
    file.write_text("def f(rows):\n    return [{'n': 2} for row in rows]\n")
    with pytest.raises(StaleResume, match=r"the function mine\.py:f changed"):
        start_file(source, call, tmp_path / "run")


def test_code_that_a_folder_brings_needs_permission(source: Path, tmp_path: Path, shardmill: Cli) -> None:
    mark, file = tmp_path / "imported", tmp_path / "mine.py"
    file.write_text(
        f"import pathlib\npathlib.Path({str(mark)!r}).touch()\ndef f(rows):\n    return [{{'n': 1}} for r in rows]\n"
    )
    said = shardmill("apply", source, "--call", f"{file}:f", "--out", tmp_path / "run")
    assert said.status == 0, said
    file.unlink()
    mark.unlink()
    permission._allowed.clear()
    for name in [name for name in sys.modules if name.startswith("shardmill_call_")]:
        del sys.modules[name]
    for verb in ("verify", "resume"):
        assert_told(shardmill(verb, tmp_path / "run"), 2, "brings code of its own", "--allow-code")
    assert not mark.exists()
    # A name of ours does not make the code that comes with it ours.
    plan = tmp_path / "run" / "plan.json"
    mine = plan.read_text()
    plan.write_text(mine.replace('"mine.py:f"', '"shardmill.texts.duplicates:pair_up"'))
    assert_told(shardmill("verify", tmp_path / "run"), 2, "brings code of its own", "--allow-code")
    assert not mark.exists()
    plan.write_text(mine)
    assert shardmill("verify", tmp_path / "run", "--allow-code").status == 0
    assert mark.exists()


def test_an_argument_may_have_the_name_of_a_parameter_of_the_task(source: Path, tmp_path: Path, shardmill: Cli) -> None:
    file = tmp_path / "coded.py"
    file.write_text("def f(rows, code, columns):\n    return [{'n': code + columns} for row in rows]\n")
    given = ("--param", "code=3", "--param", "columns=4")
    said = shardmill("apply", source, "--call", f"{file}:f", *given, "--out", tmp_path / "run")
    assert said.status == 0, said
    assert set(Run(tmp_path / "run").table().column("n").to_pylist()) == {7}


def test_a_spec_may_name_a_function_by_its_file(source: Path, tmp_path: Path, shardmill: Cli) -> None:
    file, spec = tmp_path / "mine.py", tmp_path / "mine.toml"
    file.write_text("def f(rows):\n    return [{'n': len(row['text'])} for row in rows]\n")
    spec.write_text(f'[work]\nsource = "{source}"\ntask = "apply"\nparams = {{ call = "{file}:f" }}\n')
    assert shardmill("plan", "--spec", spec).status == 0
    for verb in ("run", "apply"):
        said = shardmill(verb, "--spec", spec, "--out", tmp_path / verb)
        assert said.status == 0, said
    assert Run(tmp_path / "run").table() == Run(tmp_path / "apply").table()


def test_what_a_function_prints_is_no_part_of_json(source: Path, tmp_path: Path, shardmill: Cli) -> None:
    file = tmp_path / "talk.py"
    file.write_text("print('hello')\ndef f(rows):\n    print('hi')\n    return [{'n': 1} for row in rows]\n")
    said = shardmill("apply", source, "--call", f"{file}:f", "--out", tmp_path / "run", "--json")
    assert json.loads(said.out)["run"] == str(tmp_path / "run")
    assert json.loads(shardmill("verify", tmp_path / "run", "--allow-code", "--json").out)["verified"]
    assert "hello\nhi\n" in said.err


def test_what_fell_away_is_said(source: Path, tmp_path: Path, shardmill: Cli) -> None:
    call = "tests.support.functions:split"
    said = shardmill("apply", source, "--call", call, "--batch", "7", "--column", "text", "--out", tmp_path / "run")
    assert "120 items in 1 shard gave" in said.err
    assert "items gave none, 0 errors" in said.err


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def f(rows):\n    return [{'a': None} for row in rows]", "the column 'a' is null in the first result"),
        ("def f(rows):\n    return None", "returned nothing"),
        ("def f(rows):\n    return [1 for row in rows]", "returned a int for an item"),
        ("def f(rows):\n    return [None for row in rows]", "returned no row for the first items"),
        ("def f(rows):\n    return [{str(i): 1} for i, row in enumerate(rows)]", "rows with different columns"),
        ("def f(rows):\n    raise LookupError('no luck')", "fails on each of the first 64 rows: LookupError: no luck"),
        ("def f():\n    return []", "takes no batch"),
        ("def f(rows: int):\n    return []", "takes a batch of type builtins.int"),
        ("def g(rows):\n    return []", "cannot be found"),
        ("import nowhere_at_all", r"cannot be imported: ModuleNotFoundError.*\n.*must be installed on every machine"),
        ("from . import near", r"cannot be imported: ImportError.*\n.*--call package\.module:function"),
        ("f = 3", "is not a function or class"),
        ("def f(rows):\n    return [{'id': 1} for row in rows]", "has the name of one of the result's own columns"),
        ("def f(rows):\n    return [{'row': 1} for row in rows]", "returns a column 'row'"),
        ("import sys\ndef f(rows):\n    sys.exit()", r"it ends the process: sys\.exit\(\)"),
        ("def f(rows):\n    return [{} for row in rows]", "returned rows without a column"),
        ("import sys\nsys.exit(0)", r"bad\.py cannot be imported: .* sys\.exit\(0\)"),
        ("def f(rows):\n    return None", "returned nothing for a batch of 64 items"),
        ("def f(rows):\n    return [({'a': 1} for _ in range(2)) for row in rows]", "returned a generator for an item"),
        ("def f(rows):\n    return [{'a': 1} for row in rows[1:]]", "returned 63 entries for a batch of 64 items"),
        (
            "import pyarrow as pa\ndef f(t: pa.Table):\n    return t[1:].drop('row')",
            "returned 63 rows for a batch of 64",
        ),
        ("import pyarrow as pa\ndef f(t: pa.Table):\n    return pa.table([t[0], t[1]], ['a', 'a'])", "two columns 'a'"),
        ("def f(rows):\n    return [{1: 'a'} for row in rows]", "a column named 1, which is no text"),
        (
            "def f(rows):\n    return [{'a': 2**70} for row in rows]",
            "the column 'a' of its first result has no one type",
        ),
        ("def f(rows):\n    return [{'a': {1, 'b'}} for row in rows]", "the column 'a' of its first result"),
        ("def f(rows):\n    return [{'a': []} for row in rows]", r"the column 'a' is list<item: null> in the first"),
        ("def f(rows):\n    return [{'a': {}} for row in rows]", "the column 'a' cannot be written as struct<>"),
        ("def f(rows):\n    return [{'window': 1} for row in rows]", "returns a column 'window'"),
        ("def f(rows):\n    return [{'item_in_shard': 1} for row in rows]", "returns a column 'item_in_shard'"),
        ("async def f(rows):\n    return []", r"is async.\n.*asyncio\.run"),
        ("def f(row):\n    return {'a': row['id']}", "It is given a list of dicts with the keys id, text"),
        ("def f(rows, limit):\n    return []", r"missing a required argument: 'limit'.\n.*--param"),
        ("class f:\n    pass", "a class that cannot be called"),
        (
            "class f:\n  def __init__(self):\n    raise OSError('no GPU')\n  def __call__(self, rows):\n    pass",
            r"cannot be made: OSError: no GPU.\n.*columns = ",
        ),
        ("f = max", r"The parameters of bad\.py:f are unknown"),
        ("def f(rows: 'Batch'):\n    return []", r"cannot be read: name 'Batch' is not defined.\n.*TYPE_CHECKING"),
        ("def f(rows):\n    return []\nf.columns = ['a']", "names columns without their types"),
        ("def f(rows):\n    return []\nf.columns = {}", "names no column"),
        ("def f(rows):\n    return []\nf.columns = {'a': {'x': int}}", r"'a' has the type {.*\n.*list\[str\]"),
        ("def f(rows):\n    return []\nf.columns = {'a': 'list<string>'}", r"the type 'list<string>'.\n.*list\[str\]"),
        ("def f(rows):\n    return []\nf.agreement = 'often'", "has the agreement 'often'"),
    ],
)
def test_a_bad_function_is_refused_before_anything_runs(code: str, said: str, source: Path, tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(code)
    with pytest.raises((SpecError, TaskError, UsageError), match=said):
        start_file(source, f"{file}:f", tmp_path / "run")
    assert not (tmp_path / "run" / "plan.json").exists()


def test_a_frame_with_two_columns_of_a_name_is_refused(source: Path, tmp_path: Path) -> None:
    needed("pandas")
    file = tmp_path / "twice.py"
    file.write_text(
        "import pandas as pd\ndef f(t: pd.DataFrame):\n    return pd.concat([t[['id']], t[['id']]], axis=1)"
    )
    with pytest.raises(SpecError, match="Duplicate column names"):
        start_file(source, f"{file}:f", tmp_path / "run")


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"x", {1: 2}, Path("x"), object(), [object()]])
def test_an_argument_that_workers_would_get_as_another_is_refused(value: Any, source: Path, tmp_path: Path) -> None:
    call, out = "tests.support.functions:Numbered", tmp_path / "run"
    with pytest.raises(UsageError, match=r"The argument 'times' cannot be sent to workers: "):
        shardmill.apply(str(source), call, arguments={"times": value}, out=out)
    assert not out.exists()


def test_a_batch_of_no_items_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"must be at least 1 \(got 0\)"):
        shardmill.apply(str(source), "tests.support.functions:measure", batch=0, out=tmp_path / "run")


def test_a_file_that_starts_its_run_when_imported_is_told_so(source: Path, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(
        f"import shardmill\ndef f(rows):\n    return [{{'n': 1}} for r in rows]\n"
        f"shardmill.apply({str(source)!r}, 'script.py:f', out={str(tmp_path / 'run')!r})\n"
    )
    with pytest.raises((SpecError, UsageError), match=r"script\.py"):
        start_file(source, f"{file}:f", tmp_path / "other")
    assert not (tmp_path / "run").exists()


def test_a_function_that_no_worker_can_import_is_refused() -> None:
    with pytest.raises(UsageError, match="not a function or class of a module"):
        shardmill.task(lambda rows: rows)


def test_columns_are_given_whatever_their_names(tmp_path: Path) -> None:
    """A folder that had just been made was said to hold a different run."""
    source, file = tmp_path / "odd.csv", tmp_path / "seen.py"
    source.write_text('id,"x,y",,a b\nk,1,2,3\n')
    file.write_text("def f(rows):\n    return [{'seen': list(row)} for row in rows]\n")
    run = shardmill.apply(str(source), f"{file}:f", out=tmp_path / "run", workers=1)
    assert verified(run).column("seen").to_pylist() == [["id", "x,y", "", "a b"]]


def test_a_typed_dict_may_have_others(source: Path, tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(
        "from typing import TypedDict\nclass Inner(TypedDict):\n    x: int\n"
        "class Outer(TypedDict):\n    one: Inner\n    more: list[Inner] | None\n"
        "def f(rows) -> list[Outer]:\n    return [{'one': {'x': 1}, 'more': None} for row in rows]\n"
    )
    run = start_file(source, f"{file}:f", tmp_path / "run")
    inner = pa.struct([("x", pa.int64())])
    assert [run.table().schema.field(n).type for n in ("one", "more")] == [inner, pa.list_(pa.field("element", inner))]


def test_text_and_columns_are_given_as_asked(source: Path, tmp_path: Path) -> None:
    file = tmp_path / "seen.py"
    file.write_text("def f(rows):\n    return [{'seen': sorted(row), 'said': row['text']} for row in rows]\n")
    run = shardmill.apply(str(source), f"{file}:f", text="{id}: {text}", column="id", out=tmp_path / "run", workers=1)
    first = verified(run).slice(0, 1).to_pylist()
    assert first == [{"row": 0, "seen": ["id", "text"], "said": f"k0: {ROWS[0]['text']}"}]
