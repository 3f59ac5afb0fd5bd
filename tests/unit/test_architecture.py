"""Who may import whom, what is public, and what an import costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shardmill
from shardmill.ledger import Ledger
from tests.support.imports import FILES, MODULES, SOURCE, find_circle, imports_of
from tests.support.ledgers import a_plan

# Every room, and the rooms that its files import. What stands further down is built on what stands above it.
MAY_IMPORT: dict[str, str] = {
    "_version": "",
    "errors": "",
    "cache": "",
    "console": "",
    "telemetry": "_version console",
    "passwords": "errors",
    "permission": "errors",
    "calls": "errors permission",
    "arrowtypes": "errors",
    "records": "errors",
    "ranges": "errors",
    "random": "errors",
    "batching": "errors",
    "template": "errors",
    "texts": "errors",
    "schema": "errors",
    "evaluation": "",
    "devices": "errors",
    "store": "errors",
    "retrieval": "errors cache store",
    "sizing": "errors cache devices",
    "spec": "errors passwords permission calls template",
    "postgres": "errors passwords retrieval",
    "endpoints": "errors console passwords permission schema",
    "augment": "errors random",
    # A model may be in a store.
    "models": "errors permission cache console devices random sizing store",
    "training": "errors devices spec store augment evaluation models retrieval",
    "plan": "errors permission records sizing spec",
    "ledger": "errors records store plan",
    # What a run made is a source of the next.
    "sources": "errors arrowtypes devices passwords permission ranges store template spec plan ledger postgres",
    "layout": "errors random store",
    "tuning": "errors store spec plan ledger",
    "tasks": "errors permission arrowtypes calls devices random augment models endpoints schema spec plan ledger "
    "postgres template texts retrieval training tuning layout",
    "sinks": "errors console store spec plan ledger postgres template",
    "status": "errors console store plan ledger postgres sinks",
    "maps": "errors permission console random store template plan ledger sources tasks sinks results layout",
    "steps": "errors console spec plan ledger sources tasks sinks results maps telemetry",
    "worker": "_version errors console batching devices spec plan ledger sources tasks sinks steps telemetry",
    "testing": "errors devices ledger tasks worker",
    # A host without a common disk is sent the bytes that its shards need, and the sources know which these are.
    # Of a study it is sent what its trials try, as it sees no other trials.
    "engines": "_version errors console passwords permission records ranges devices store spec plan ledger sources "
    "tuning",
    "split": "errors console passwords ranges store plan sources",
    "planner": "errors console devices sizing spec plan sources tasks",
    "costs": "errors console devices sizing models spec plan ledger sources tasks status planner",
    "results": "errors permission console ranges devices store retrieval evaluation models plan ledger sources tasks "
    "sinks",
    "reports": "_version errors console template store plan ledger status costs results tuning",
    "run": "errors permission calls console devices store template texts spec postgres plan planner ledger engines "
    "sources sinks tasks status costs results layout maps steps worker retrieval reports telemetry training tuning",
    "tables": "errors passwords permission console template devices store models spec plan planner postgres sources "
    "sinks tasks engines results run",
    "alerts": "errors console records store spec status endpoints",
    # It shows what folders say; only its search, a process of its own, opens a task.
    "monitor": "_version errors permission console store spec plan ledger tasks status costs results run alerts",
    "ray": "spec run",
    "api": "errors console spec run tables tasks",
    "bench": "errors console batching devices sizing store augment models sources tasks sinks costs run api",
    "__init__": "_version errors calls spec sizing split run api",
    "cli": "__init__ _version errors permission console store schema augment devices spec plan planner engines status "
    "costs split maps run tables api bench monitor tuning",
    "__main__": "cli",
}

# Functions of `shardmill` itself, present and coming. A submodule of that name would hide the function once imported.
FUNCTIONS = {
    "embed",
    "load",
    "prepare",
    "start",
    "work",
    "map",
    "train",
    "tune",
    "apply",
    "generate",
    "summarize",
    "answer",
    "ask",
    "evaluate",
    "task",
    "dedup",
}


def _room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _rooms(path: Path) -> set[str]:
    return {name.partition(".")[2].partition(".")[0] or "__init__" for name in imports_of(path)}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_room_imports_only_from_the_rooms_below_it(path: Path) -> None:
    room = _room(path)
    assert room in MAY_IMPORT, f"give the room {room} a rule, here and in CONTRIBUTING.md"
    assert _rooms(path) - {room} <= set(MAY_IMPORT[room].split())


def test_every_rule_is_of_a_room_that_exists() -> None:
    assert set(MAY_IMPORT) == {_room(path) for path in FILES}


def test_no_room_leads_back_to_itself() -> None:
    assert not find_circle({room: set(rooms.split()) for room, rooms in MAY_IMPORT.items()})


def test_no_module_leads_back_to_itself() -> None:
    assert not find_circle({module: imports_of(path) - {module} for module, path in MODULES.items()})


def test_a_circle_is_found() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]


def test_no_room_has_the_name_of_a_function() -> None:
    functions = {name for name in shardmill.__all__ if inspect.isroutine(getattr(shardmill, name))}
    assert functions < FUNCTIONS | {"make_spec", "calculate_optimal_chunks"}
    assert not (functions | FUNCTIONS) & set(MAY_IMPORT)


def test_a_class_has_its_name_for_itself() -> None:
    names = [
        node.name
        for path in FILES
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert {name for name in names if names.count(name) > 1} == set()


PUBLIC = [
    "shardmill.run:start",
    "shardmill.run:Run",
    "shardmill.spec:make_spec",
    "shardmill.api:embed",
    "shardmill.api:load",
    "shardmill.tasks.base:Task",
    "shardmill.tasks.base:Prepared",
    "shardmill.tasks.base:Output",
    "shardmill.tasks.base:WINDOW",
    "shardmill.augment:AugmentationConfig",
    "shardmill.augment:get_preset",
    "shardmill.augment:gen_augmentation_params",
    "shardmill.augment:stream_augmentation_chain",
    "shardmill.augment.loading:ElasticSampler",
    "shardmill.augment.images:apply",
    "shardmill.augment.adapters:apply_with_kornia",
    "shardmill.batching:BatchProcessor",
    "shardmill.batching:BatchStrategy",
    "shardmill.ranges:DistributedRangeSplitter",
    "shardmill.bench:BenchmarkRunner",
    "shardmill.bench:measure_time",
    "shardmill.testing:FakeTask",
    "shardmill.testing:InProcessEngine",
    "shardmill.ray:map_shards",
    "shardmill:calculate_optimal_chunks",
    "shardmill:StreamingDatasetSplitter",
    "shardmill.worker:Worker",
]


@pytest.mark.parametrize("path", PUBLIC)
def test_what_users_import_stays_where_it_is(path: str) -> None:
    module, _, name = path.partition(":")
    try:
        assert hasattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")


@pytest.mark.parametrize("module", ["shardmill.worker", "shardmill.postgres.embedded", "shardmill", "shardmill.cli"])
def test_what_is_started_by_name_can_be(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True)
    assert "No module named" not in done.stderr


def test_the_map_of_contributing_names_every_room() -> None:
    text = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`(\w+)/?`", text.partition("## Where things are")[2].partition("\n## ")[0]))
    assert {room for room in MAY_IMPORT if not room.startswith("_")} <= named


def test_no_module_is_long() -> None:
    lengths = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: n for name, n in lengths.items() if n > (250 if name.startswith("cli/") else 400)} == {}


def test_engines_and_workers_never_meet_but_on_a_command_line() -> None:
    for path in FILES:
        if _room(path) == "engines":
            assert "worker" not in _rooms(path)
        if _room(path) == "worker":
            assert "engines" not in _rooms(path)


def test_the_public_surface_is_exactly_all() -> None:
    assert set(dir(shardmill)) == set(shardmill.__all__)


@pytest.mark.parametrize("name", [n for n in shardmill.__all__ if not n.startswith("__")])
def test_a_public_name_is_there_and_has_a_docstring(name: str) -> None:
    assert inspect.getdoc(getattr(shardmill, name)), name
    assert vars(getattr(shardmill, name)).get("__doc__") or inspect.isfunction(getattr(shardmill, name))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'embedd'"):
        shardmill.embedd  # noqa: B018


def _run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


IMPORT = """
import sys, time
began = time.process_time()
import shardmill
took = time.process_time() - began
print(took, *{m.partition(".")[0] for m in sys.modules})
"""


def test_importing_the_package_is_quick_and_light() -> None:
    """150 ms of this process's own time: what else the machine does is not counted."""
    answers = [_run(IMPORT).split() for _ in range(3)]
    assert min(float(a[0]) for a in answers) < 0.150
    assert not {"torch", "transformers", "pyarrow", "ray", "psycopg", "obstore"} & set(answers[0][1:])


@pytest.mark.parametrize("module", ["shardmill.api", "shardmill.worker.pipeline", "shardmill.monitor"])
def test_no_command_and_no_worker_loads_pandas_to_begin(module: str) -> None:
    """pyarrow imports it with the first value made: half a second of each start."""
    assert "pandas" not in _run(f"import sys, {module}; print(*sys.modules)").split()


HELP = """
import sys
from shardmill import cli
sys.argv = ["shardmill", "--help"]
try:
    cli.main()
except SystemExit as end:
    assert not end.code, end.code
print("LOADED", *{m.partition(".")[0] for m in sys.modules})
"""


def test_help_loads_no_model_library() -> None:
    loaded = _run(HELP).rpartition("LOADED")[2].split()
    assert "typer" in loaded
    assert not {"torch", "transformers", "sentence_transformers", "pyarrow"} & set(loaded)


def test_a_status_loads_nothing_that_computes(tmp_path: Path) -> None:
    """Who looks at a run of a hundred thousand shards waits for what is read, not for libraries."""
    Ledger(tmp_path).create(a_plan())
    loaded = _run(HELP.replace('"--help"', f'"status", {str(tmp_path)!r}')).rpartition("LOADED")[2].split()
    assert "rich" in loaded
    assert not {"numpy", "pyarrow", "torch", "obstore"} & set(loaded)


SPLIT = """
import sys
from shardmill.split import split_files
split_files([sys.argv[1]], sys.argv[2], format="jsonl", quiet=True)
print("LOADED", *{m.partition(".")[0] for m in sys.modules})
"""


def test_splitting_lines_into_lines_loads_neither_arrow_nor_pydantic(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"text": "a"}\n')
    command = [sys.executable, "-c", SPLIT, str(source), str(tmp_path / "out")]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rpartition("LOADED")[2].split()
    assert "numpy" in loaded
    assert not {"pyarrow", "pydantic", "obstore"} & set(loaded)
