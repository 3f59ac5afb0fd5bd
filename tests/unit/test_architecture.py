"""Who may import whom, what is public, and what an import costs."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import shardmill
from shardmill.ledger import Ledger
from shardmill.plugins import find_verb
from shardmill.plugins.builtin import BUILTIN
from tests.support.imports import (
    FILES,
    MODULES,
    SOURCE,
    closure_of,
    find_circle,
    imports_of,
    module_of,
    parts_of,
    verb_of,
)
from tests.support.ledgers import a_plan
from tests.support.names import find_names
from tools.rooms import MAY_IMPORT, THIN

# The object of a run says what type its methods return; nothing of it is imported.
FOR_TYPES = {("run/result.py", "verbs")}

# Who may import the folder of a verb, besides its own files: what users call, in Python and in a shell. The door names
# declarations.
USE_VERBS = ("__init__", "bench", "cli")
# The functions are generated, the table names every declaration, and `load` has the parameters of `embed`.
MAY_NAME_VERBS = ("verbs/functions.py", "plugins/builtin.py", "verbs/load/options.py")
# The rooms that a task may bring along: a worker opens tasks of any verb, and a task knows nothing of workers and runs.
LOW = {"_version", "core", "plugins", "store", "augment", "plan", "ledger", "postgres", "models"}
LOW |= {"sources", "sinks", "tasks"}

# Verbs of tasks; commands such as `run` and `show` have names that are words of their own.
VERBS = [name for name in BUILTIN["verbs"] if find_verb(name).task or name in ("dedup", "load")]
# Where a word is asked for that is also the name of a verb, by file and name, with the reason.
_SAME_WORD = "a worker's record has the load of its machine"
_FUNCTION = "a public function has the name of its verb"
_MEASURED = "a benchmark measures these verbs and no others"
MAY_ASK: dict[tuple[str, str], str] = {
    **{("__init__.py", name): _FUNCTION for name in VERBS if name not in ("augment", "embed-sparse", "embed-tokens")},
    ("plugins/builtin.py", "map"): "the table of all verbs",
    **{("bench/tasks.py", name): _MEASURED for name in ("embed", "summarize", "answer")},
    ("bench/embed.py", "load"): _SAME_WORD,
    ("worker/pipeline.py", "load"): _SAME_WORD,
    ("verbs/answer/show.py", "score"): _SAME_WORD,
    ("watch/monitor/searching.py", "score"): _SAME_WORD,
    ("cli/app.py", "embed"): "an option that a command had, or that another has",
    ("cli/app.py", "load"): "an option that a command had, or that another has",
}

# Functions of `shardmill` itself, present and coming. A submodule of that name would hide the function once imported.
FUNCTIONS = {
    "peek",
    "refresh",
    "migrate",
    "audit",
    "embed",
    "embed_sparse",
    "embed_tokens",
    "load",
    "prepare",
    "start",
    "work",
    "map",
    "train",
    "tune",
    "apply",
    "classify",
    "generate",
    "summarize",
    "answer",
    "ask",
    "evaluate",
    "score",
    "task",
    "dedup",
    "receipt",
}


def _room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _rooms(path: Path) -> set[str]:
    found = {name.partition(".")[2].partition(".")[0] or "__init__" for name in imports_of(path)}
    return {room for room in found if (path.relative_to(SOURCE).as_posix(), room) not in FOR_TYPES}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_room_imports_only_from_the_rooms_below_it(path: Path) -> None:
    room = _room(path)
    assert room in {**MAY_IMPORT, **THIN}, f"give the room {room} a rule, here and in CONTRIBUTING.md"
    assert _rooms(path) - {room} <= set({**MAY_IMPORT, **THIN}[room].split())


def test_every_rule_is_of_a_room_that_exists() -> None:
    assert {*MAY_IMPORT, *THIN} == {_room(path) for path in FILES}


def test_there_are_at_most_twenty_rooms() -> None:
    assert len([room for room in MAY_IMPORT if not room.startswith("_")]) <= 20


def test_a_thin_module_holds_nothing_of_its_own() -> None:
    for name in THIN:
        body = ast.parse((SOURCE / f"{name}.py").read_text()).body
        kinds = (ast.Expr, ast.ImportFrom, ast.Assign)
        assert all(isinstance(node, kinds) for node in body), name


def test_a_room_imports_only_what_stands_above_it_in_the_rule() -> None:
    rooms = [room for room in MAY_IMPORT if room != "__init__"]
    for i, room in enumerate(rooms):
        assert set(MAY_IMPORT[room].split()) - {"__init__"} <= set(rooms[:i]), room


def test_no_room_leads_back_to_itself() -> None:
    assert not find_circle({room: set(rooms.split()) for room, rooms in MAY_IMPORT.items()})


def test_no_module_leads_back_to_itself() -> None:
    assert not find_circle({module: imports_of(path) - {module} for module, path in MODULES.items()})


def test_a_circle_is_found() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]


def _other_verbs(path: Path, module: str) -> set[str]:
    """The verbs whose folders a module imports, or names to be imported later, and that are not its own."""
    return {verb_of(name) for name in imports_of(path) | parts_of(path)} - {"", verb_of(module)}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_the_folder_of_a_verb_is_its_own(path: Path) -> None:
    place = path.relative_to(SOURCE).as_posix()
    if _room(path) not in USE_VERBS and place not in MAY_NAME_VERBS and (place, "verbs") not in FOR_TYPES:
        assert not _other_verbs(path, module_of(path))


def test_an_import_of_another_verb_is_found(tmp_path: Path) -> None:
    copy = tmp_path / "task.py"
    copy.write_text((SOURCE / "verbs" / "answer" / "task.py").read_text())
    assert not _other_verbs(copy, "shardmill.verbs.answer.task")
    assert _other_verbs(copy, "shardmill.models.pairs") == {"answer"}
    copy.write_text(copy.read_text() + "\n\ndef later():\n    from shardmill.verbs.embed.task import EmbedTask\n")
    assert _other_verbs(copy, "shardmill.verbs.answer.task") == {"embed"}
    copy.write_text('PLACE = "shardmill.verbs.tune.task:TuneTask"\n')
    assert _other_verbs(copy, "shardmill.verbs.answer.task") == {"tune"}


def test_only_types_are_imported_where_only_types_may_be() -> None:
    for name, room in FOR_TYPES:
        tree = ast.parse((SOURCE / name).read_text())
        blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        inside = {each for block in blocks for each in ast.walk(block) if isinstance(each, ast.ImportFrom)}
        every = {each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
        assert not [each for each in every - inside if f"{each.module}.".startswith(f"shardmill.{room}.")], name


@pytest.mark.parametrize("verb", [verb for verb in VERBS if find_verb(verb).task])
def test_a_task_brings_low_rooms_only(verb: str) -> None:
    brought = closure_of(find_verb(verb).task.partition(":")[0])
    high = {
        name: by
        for name, by in brought.items()
        if name.split(".")[1] not in LOW and verb_of(name) != verb and name != "shardmill.verbs"
    }
    assert high == {}


def test_what_a_module_brings_is_followed_to_its_end() -> None:
    brought = closure_of("shardmill.verbs.summarize.task")
    assert {"shardmill.models.embedder", "shardmill.models.kernels", "shardmill.models.decoding"} <= brought.keys()
    assert brought["shardmill.verbs.summarize.extractive"] == "shardmill.verbs.summarize.base"
    assert "shardmill.run.running" in closure_of("shardmill.verbs.summarize.groups")


def test_a_declaration_imports_nothing() -> None:
    for verb in VERBS:
        assert imports_of(SOURCE / "verbs" / verb.replace("-", "_") / "__init__.py") == {"shardmill.plugins.base"}, verb


def _asked_names(root: Path) -> set[tuple[str, str]]:
    """The names of verbs that files below a folder compare with or look up, outside the folder of the verb."""
    found = set()
    for path in root.rglob("*.py"):
        place = path.relative_to(root).as_posix()
        asked = {name for _, name in find_names(path.read_text(), VERBS)}
        found |= {(place, name) for name in asked if not place.startswith(f"verbs/{name}/")}
    return found


def test_no_verb_is_asked_for_by_name() -> None:
    asked = _asked_names(SOURCE)
    assert asked - MAY_ASK.keys() == set(), "ask its declaration for a trait (plugins/base.py)"
    assert MAY_ASK.keys() - asked == set(), "these exceptions are of no use any more"


@pytest.mark.parametrize(
    "line",
    [
        'found = plan.work.task == "tune"',
        'found = "tune" != plan.work.task',
        'found = plan.work.task in ("train", "tune")',
        'found = plan.work.task not in {"tune"}',
        'match plan.work.task:\n    case "map" | "tune":\n        pass',
        'found = {"tune": 1}[plan.work.task]',
        'found = KINDS["tune"]',
        'found = KINDS.get("tune", 1)',
        'found = find_verb("tune").extras',
        'LONG = ("train", "tune")\nfound = plan.work.task in LONG',
    ],
)
def test_a_verb_that_is_asked_for_by_name_is_found(line: str, tmp_path: Path) -> None:
    for name in ("run/changes.py", "verbs/map/making.py", "verbs/tune/task.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text((SOURCE / name).read_text())
    assert _asked_names(tmp_path) == set()
    for path in sorted(tmp_path.rglob("*.py")):
        path.write_text(f"{path.read_text()}\n\n{line}\n")
    asked = {place for place, name in _asked_names(tmp_path) if name == "tune"}
    assert asked == {"run/changes.py", "verbs/map/making.py"}


def test_a_name_that_is_only_passed_on_is_not_asked_for() -> None:
    passed = (
        'start({"task": "tune"}, task="tune")\nextras = missing_package("torch", "embed")\nkey = make_key(1, "augment")'
    )
    assert find_names(passed, VERBS) == []


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
    "shardmill.plan.spec:make_spec",
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
    "shardmill.core.batching:BatchProcessor",
    "shardmill.core.batching:BatchStrategy",
    "shardmill.core.ranges:DistributedRangeSplitter",
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


def test_the_map_of_contributing_is_the_rule() -> None:
    from tools.generate import render_map

    assert render_map() == (SOURCE.parents[1] / "CONTRIBUTING.md").read_text(), "run python -m tools.generate"


def test_no_module_is_long() -> None:
    lengths = {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in FILES}
    lengths.pop("verbs/functions.py")  # It is generated.
    assert {name: n for name, n in lengths.items() if n > (250 if name.startswith("cli/") else 420)} == {}


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
import sys
before = set(sys.modules)
import shardmill
print(*set(sys.modules) - before)
"""


def test_importing_the_package_is_light() -> None:
    """A few modules, none of them of another package: that takes milliseconds on every machine."""
    brought = _run(IMPORT).split()
    assert {name.partition(".")[0] for name in brought} - {"shardmill"} <= sys.stdlib_module_names
    assert len(brought) < 60


@pytest.mark.parametrize("module", ["shardmill.api", "shardmill.worker.pipeline", "shardmill.watch.monitor"])
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
    assert "click" in loaded
    assert not {"torch", "transformers", "sentence_transformers", "pyarrow"} & set(loaded)


def test_a_status_loads_nothing_that_computes(tmp_path: Path) -> None:
    """Who looks at a run of a hundred thousand shards waits for what is read, not for libraries."""
    Ledger(tmp_path).create(a_plan())
    loaded = _run(HELP.replace('"--help"', f'"status", {str(tmp_path)!r}')).rpartition("LOADED")[2].split()
    assert "rich" in loaded
    assert not {"numpy", "pyarrow", "torch", "obstore"} & set(loaded)


SPLIT = """
import sys
from shardmill.verbs.split import split_files
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
