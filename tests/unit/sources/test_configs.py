"""Datasets of several configs, which a README.md declares or folders have: one is read, not all of them unasked."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from shardmill import make_spec, start
from shardmill.core.errors import MissingExtra, SourceError
from shardmill.sources import Fields, discover, list_columns
from shardmill.sources.configs import Config, read_configs
from tests.support.libraries import needed

needed("yaml")

DECLARED = """---
license: mit
configs:
- config_name: en
  data_files:
  - split: train
    path: "en/*.jsonl"
  - split: heldout
    path: ["more/en-?.jsonl", "more/both.jsonl"]
  default: true
- config_name: fr
  data_dir: fr
  data_files: "**/*.jsonl"
- config_name: whole
  data_dir: ./de
---
# News
"""
FILES = (
    *("en/a.jsonl", "en/b.jsonl", "more/en-1.jsonl", "more/both.jsonl"),
    *("fr/x/a.jsonl", "de/train.jsonl", "de/test.jsonl"),
)


def write(folder: Path, *names: str, readme: str = "") -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"text": name}) + "\n")
    if readme:
        (folder / "README.md").write_text(readme)
    return folder


def names(place: object, config: str = "", split: str = "") -> list[str]:
    found = discover([str(place)], Fields("text", config=config, split=split))
    return [file.place.removeprefix(f"{place}/") for file in found.files]


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    return write(tmp_path / "news", *FILES, readme=DECLARED)


def test_one_declared_config_is_asked_for(declared: Path) -> None:
    with pytest.raises(SourceError, match="several configs: en, fr, whole") as caught:
        names(declared, split="train")
    assert "--config en" in str(caught.value)
    assert names(declared, "en", "train") == ["en/a.jsonl", "en/b.jsonl"]
    assert names(declared, "en", "heldout") == ["more/both.jsonl", "more/en-1.jsonl"]
    assert len(names(declared, "en", "all")) == 4
    assert names(declared, "fr") == ["fr/x/a.jsonl"]
    assert names(declared, "whole", "test") == ["de/test.jsonl"]
    assert len(names(declared, "all", "all")) == len(FILES)
    with pytest.raises(SourceError, match="several splits: heldout, train"):
        names(declared, "en")
    with pytest.raises(SourceError, match="no config 'ne'") as caught:
        names(declared, "ne")
    assert "Did you mean 'en'?" in str(caught.value)


def test_one_config_that_is_declared_is_read(tmp_path: Path) -> None:
    readme = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: data/*\n---\n"
    folder = write(tmp_path / "news", "data/a.jsonl", "old/b.jsonl", readme=readme)
    assert names(folder) == ["data/a.jsonl"]
    assert names(folder, "all") == ["data/a.jsonl", "old/b.jsonl"]


def test_folders_with_splits_are_configs(tmp_path: Path) -> None:
    folder = write(tmp_path / "news", "en/train-00000.jsonl", "en/test-00000.jsonl", "fr/train.jsonl")
    with pytest.raises(SourceError, match="several configs: en, fr"):
        names(folder, split="train")
    assert names(folder, "en", "train") == ["en/train-00000.jsonl"]
    assert len(names(folder, "all", "train")) == 2
    assert names(folder / "en", "", "train") == ["train-00000.jsonl"]


@pytest.mark.parametrize(
    "files",
    [
        ("data/train-00000-of-00001.jsonl", "data/more/a.jsonl"),
        ("train/a.jsonl", "train/b.jsonl"),
        ("2024/a.jsonl", "2025/b.jsonl"),
        ("lang=en/train.jsonl", "lang=fr/train.jsonl"),
        ("en/train.jsonl", "others.jsonl"),
    ],
)
def test_other_folders_are_none(tmp_path: Path, files: tuple[str, ...]) -> None:
    folder = write(tmp_path / "news", *files)
    assert len(names(folder)) == 2
    with pytest.raises(SourceError, match="no config 'en'") as caught:
        names(folder, "en")
    assert "omit --config" in str(caught.value)


def test_only_whole_folders_have_configs(declared: Path) -> None:
    assert len(names(declared / "*" / "*.jsonl")) == 6
    for place in (declared / "en" / "a.jsonl", declared / "*" / "*.jsonl"):
        with pytest.raises(SourceError, match="--config en has no meaning"):
            names(place, "en")
    with pytest.raises(SourceError, match="--config en has no meaning for what is not a folder"):
        discover(["range:0:5"], Fields("sample_id", config="en"))


def test_a_run_from_before_configs_goes_on(declared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = {"source": str(declared), "text": "text", "split": "all", "task": "shardmill.testing:FakeTask"}
    with monkeypatch.context() as before:
        before.setattr("shardmill.sources.discovery.ALL_CONFIGS", "")
        begun = start(make_spec(work, {}), tmp_path / "run")
    assert len(begun.table()) == len(FILES)
    assert '"config":' not in (tmp_path / "run" / "plan.json").read_text()
    assert start(make_spec(work, {}), tmp_path / "run").plan.id == begun.plan.id
    with pytest.raises(SourceError, match="several configs"):
        start(make_spec(work, {}), tmp_path / "another")
    chosen = start(make_spec({**work, "config": "fr"}, {}), tmp_path / "another")
    assert chosen.table(["row"]).num_rows == 1
    assert chosen.verify().verified


def test_columns_are_those_of_the_config(tmp_path: Path) -> None:
    folder = write(tmp_path / "news", "en/train.jsonl")
    (folder / "fr").mkdir()
    (folder / "fr" / "train.csv").write_text("texte\nun\n")
    assert list(list_columns([str(folder)], config="fr")) == ["texte"]


@pytest.mark.parametrize(
    ("head", "configs"),
    [
        ("", []),
        ("configs: []", []),
        ("configs:\n- data_files: [a.csv, b.csv]", [Config("default", (("train", ("a.csv", "b.csv")),))]),
        ("configs:\n- config_name: 1\n  data_files: {test: ./a.csv}", [Config("1", (("test", ("a.csv",)),))]),
    ],
)
def test_what_a_readme_declares(head: str, configs: list[Config]) -> None:
    assert read_configs("x", f"---\n{head}\n---\n".encode()) == configs
    assert read_configs("x", f"# A heading\n---\n{head}\n---\n".encode()) == []


@pytest.mark.parametrize("head", ["configs: 3", "configs:\n- 3", "configs:\n- data_files: [{path: a}]", "configs: [\n"])
def test_a_readme_that_cannot_be_read_is_refused(tmp_path: Path, head: str) -> None:
    folder = write(tmp_path / "news", "a.jsonl", readme=f"---\n{head}\n---\n")
    with pytest.raises(SourceError, match=r"the configs in its README\.md cannot be read"):
        names(folder)
    assert names(folder, "all") == ["a.jsonl"]


def test_files_that_are_not_there_and_a_missing_package(declared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (declared / "fr" / "x" / "a.jsonl").unlink()
    with pytest.raises(SourceError, match=r"no file is where its README\.md says that 'fr' is"):
        names(declared, "fr")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtra, match="pyyaml is not installed"):
        names(declared, "en")
