"""The ids of plans that were written down once: a run is found again by its plan, so an id stays to the byte.

An id changes with its source, its work and the fingerprint of its model or function. Where one changes on purpose, say
so in CHANGELOG.md and write the file anew: `python -m tests.golden.test_plan_ids`.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import shardmill
from tests.golden.plan_cases import KEYS, LOADS, SOURCES, STUDIES, TASKS, TRAININGS
from tests.support.libraries import needed
from tests.support.tensors import with_head

GOLDEN = Path(__file__).with_name("plan_ids.json")
DATA = Path(__file__).parents[1] / "data"
KEPT = DATA / "earlier" / "0.2.0"
MTIME_NS = 1_700_000_000_123_456_789
PLANNED = {**SOURCES, **KEYS, **TASKS}
COMMANDED = {**TRAININGS, **LOADS}
# How a file is named is no part of an id.
SAME = [["jsonl", "glob"]]
# Libraries that planning needs, by the start of a case's name.
LIBRARIES = {"zstd": "zstandard", "summarize reference": "rouge_score", "dedup": "datasketch"}


def lay_out(folder: Path) -> None:
    """The sources, with the times of their files, the models, and the runs that others build on."""
    shutil.copytree(DATA / "plans", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        os.utime(path, ns=(MTIME_NS, MTIME_NS))
    for name in ("functions.py", "objectives.py"):
        shutil.copy(KEPT / "sources" / name, folder / name)
    shutil.copytree(KEPT / "models", folder / "models")
    write_models(folder / "models")
    shutil.copytree(KEPT / "runs/embed", folder / "runs/embed")
    shutil.copytree(next((KEPT / "runs/map/fit").iterdir()), folder / "FIT")


def write_models(folder: Path) -> None:
    """Those of later verbs, made of the ones that were kept."""
    reader = folder / "reader"
    for name, kind, labels in (
        ("classifier", "Sequence", ["bad", "good"]),
        ("entailer", "Sequence", ["contradiction", "neutral", "entailment"]),
        ("ranker", "Sequence", ["score"]),
        ("tagger", "Token", ["O", "B-PLACE", "I-PLACE"]),
    ):
        named = {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
        pooler: dict[str, tuple[int, ...]] = {"bert.pooler.dense.weight": (16, 16), "bert.pooler.dense.bias": (16,)}
        head = {"classifier.weight": (len(labels), 16), "classifier.bias": (len(labels),)}
        config = {"architectures": [f"BertFor{kind}Classification"], **named}
        with_head(reader, folder / name, config, {**(pooler if kind == "Sequence" else {}), **head})
    words = "cls.predictions"
    steps: dict[str, tuple[int, ...]] = {f"{words}.transform.dense.weight": (16, 16), f"{words}.bias": (125,)}
    steps |= {f"{words}.transform.{name}": (16,) for name in ("dense.bias", "LayerNorm.weight", "LayerNorm.bias")}
    with_head(reader, folder / "sparse", {"architectures": ["BertForMaskedLM"]}, steps)
    with_head(reader, folder / "colbert", {"architectures": ["HF_ColBERT"]}, {"linear.weight": (8, 16)})
    (folder / "colbert/artifact.metadata").write_text('{"query_token_id": "[CLS]", "doc_token_id": "[SEP]"}')


def plan_here(work: Mapping[str, Any], out: Path) -> str:
    """The id of the plan that is written into a run folder; nobody is placed."""
    spec = shardmill.make_spec(dict(work), {"device": "cpu", "workers": 1})
    shardmill.prepare(spec, out)
    return read_id(out)


def read_id(run: Path) -> str:
    return str(json.loads((run / "plan.json").read_text())["id"])


def command(*words: str | Path) -> str:
    """What the command says, in this process."""
    from shardmill.cli import main

    before, said = sys.argv, io.StringIO()
    sys.argv = ["shardmill", *map(str, words)]
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.argv = before
    return said.getvalue()


def plan_by_command(work: Mapping[str, Any], out: Path) -> str:
    """The id that `shardmill plan` says. A training is settled when its folder is written."""
    out.parent.mkdir(parents=True, exist_ok=True)
    spec = out.with_suffix(".toml")
    spec.write_text(to_toml({"work": dict(work), "execution": {"device": "cpu", "workers": 1}}))
    where = ("--out", out) if work["task"] == "train" else ()
    return str(json.loads(command("plan", "--spec", spec, "--json", *where))["id"])


def to_toml(table: Mapping[str, Any], above: str = "") -> str:
    """A table of tables, as TOML.

    >>> print(to_toml({"work": {"text": "body", "params": {"k": 3}}}))
    [work]
    text = "body"
    [work.params]
    k = 3
    """
    own = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in table.items() if not isinstance(value, dict)]
    own = [line.replace('"', "", 2) if line.split('"')[1].isidentifier() else line for line in own]
    below = [to_toml(value, f"{above}{name}.") for name, value in table.items() if isinstance(value, dict)]
    head = [f"[{above.removesuffix('.')}]"] if above else []
    return "\n".join([*head, *own, *below])


def find_library(name: str) -> str:
    return next((library for start, library in LIBRARIES.items() if name.startswith(start)), "pyarrow")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    needed("torch")
    folder = tmp_path_factory.mktemp("plans")
    lay_out(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(KEPT / "code"))
        yield folder
    forget_code()


def forget_code() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "kept"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text())
    return found


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_has_the_id_that_it_had(place: Path, golden: dict[str, Any], name: str) -> None:
    needed(find_library(name))
    assert plan_here(PLANNED[name], place / "planned" / name.replace(" ", "-")) == golden["ids"][name]


@pytest.mark.parametrize("name", COMMANDED)
def test_a_plan_of_the_command_has_the_id_that_it_had(place: Path, golden: dict[str, Any], name: str) -> None:
    assert plan_by_command(COMMANDED[name], place / "planned" / name.replace(" ", "-")) == golden["ids"][name]


@pytest.mark.parametrize("name", STUDIES)
def test_a_plan_of_a_study_has_the_id_that_it_had(place: Path, golden: dict[str, Any], name: str) -> None:
    needed("optuna")
    if (here := importlib.metadata.version("optuna")) != golden["optuna"]:
        pytest.skip(f"the plan of a study has the version of Optuna, which was {golden['optuna']} and is {here}")
    assert plan_here(STUDIES[name], place / "planned" / name.replace(" ", "-")) == golden["ids"][name]


def test_no_two_plans_have_one_id_but_for_what_is_no_part_of_it(golden: dict[str, Any]) -> None:
    same: dict[str, list[str]] = {}
    for name, id in golden["ids"].items():
        same.setdefault(id, []).append(name)
    assert {*golden["ids"]} == {*PLANNED, *COMMANDED, *STUDIES}
    assert sorted(names for names in same.values() if len(names) > 1) == SAME


def main() -> None:
    sys.path.insert(0, str(KEPT / "code"))
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        lay_out(folder)
        os.chdir(folder)
        ids, wrong = {}, []
        for cases, plan in ((PLANNED, plan_here), (COMMANDED, plan_by_command), (STUDIES, plan_here)):
            for name, work in cases.items():
                try:
                    ids[name] = plan(work, folder / "planned" / name.replace(" ", "-"))
                except Exception as error:
                    wrong.append(f"{name}: {error}")
        os.chdir("/")
    if wrong:
        raise SystemExit("\n".join(wrong))
    GOLDEN.write_text(json.dumps({"optuna": importlib.metadata.version("optuna"), "ids": ids}, indent=1) + "\n")


if __name__ == "__main__":
    main()
