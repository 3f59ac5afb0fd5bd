"""Summaries that a model writes: map over windows, reduce over their summaries, whatever order they come in."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import bert, pooling, transformers, write_model  # isort: skip  # skips without torch

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError, SpecError
from shardmill.models.decoding.generator import Generator
from shardmill.models.decoding.options import GenerationOptions
from shardmill.tasks import open_task
from shardmill.tasks.base import StreamingTask
from shardmill.verbs.summarize.method import find_method
from shardmill.verbs.summarize.windows import cut_windows
from tests.support.generative_models import write_generative

CPU = Device("cpu", "a CPU", precise=True)
SHORT = "A train left Lyon at 08:14. Nobody had been told why."
LONG = " ".join(f"Sentence {i} says that the {i}th train left late." for i in range(40))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("writers")
    return {"bart": write_generative(root / "bart", "Bart"), "llama": write_generative(root / "llama")}


def opened(folder: Path, **params: Any) -> Any:
    task = open_task("summarize", {"method": "generative", "model": str(folder), "max_tokens": 8, **params})
    assert isinstance(task, StreamingTask)
    task.open(CPU)
    return task


@functools.cache
def generator_of(folder: Path) -> Generator:
    return Generator.open(folder, CPU, GenerationOptions(max_new_tokens=8))


def written(folder: Path, text: str) -> str:
    """What the model makes of one prompt."""
    generator = generator_of(folder)
    ((_, made),) = next(iter(generator.stream(iter([(0, generator.encode([text]).prompts[0])]))))  # type: ignore[list-item]
    return made.text.strip()  # type: ignore[union-attr]


def test_a_short_text_is_one_prompt(folders: dict[str, Path]) -> None:
    task = opened(folders["bart"])
    prepared = task.prepare([SHORT, None, "..."])
    assert set(prepared.bad) == {2}
    (row,) = task.run([prepared.inputs[0]]).rows.to_pylist()
    assert row["summary"] == written(folders["bart"], SHORT)
    assert (row["windows"], row["tokens_out"]) == (1, 8)
    assert row["finish_reason"] in ("stop", "length")
    asked = opened(folders["llama"], sentences=2)
    (row,) = asked.run(asked.prepare([SHORT]).inputs).rows.to_pylist()
    request = "Summarize the text below in at most 2 sentences. Answer with the summary alone.\n\n"
    assert row["summary"] == written(folders["llama"], request + SHORT)


def test_a_long_text_is_mapped_and_reduced(folders: dict[str, Path]) -> None:
    task = opened(folders["bart"], window_tokens=200)
    prepared = task.prepare([LONG, SHORT])
    windows = [task._replies.generator.decode(prompt.ids) for prompt in prepared.inputs[0].prompts]
    assert len(windows) > 2
    assert all(len(prompt.ids) <= 200 for prompt in prepared.inputs[0].prompts)
    assert " ".join(windows) == LONG
    long, short = task.run(prepared.inputs).rows.to_pylist()
    summaries = [written(folders["bart"], window) for window in windows]
    assert long["summary"] == written(folders["bart"], "\n".join(summaries))
    assert (long["windows"], short["windows"]) == (len(windows), 1)
    assert long["tokens_out"] == 8 * (len(windows) + 1)
    assert long["tokens_in"] > sum(len(prompt.ids) for prompt in prepared.inputs[0].prompts)


def test_texts_join_and_leave_while_others_are_reduced(folders: dict[str, Path]) -> None:
    task = opened(folders["bart"], window_tokens=200)
    texts = [LONG, SHORT, LONG[:900], SHORT[:27], LONG[300:]]
    inputs = task.prepare(texts).inputs
    expected = [task.run([one]).rows.to_pylist()[0] for one in inputs]

    def feed() -> Iterator[tuple[int, Any] | None]:
        for number, one in enumerate(inputs):
            yield number, one
            yield None

    found = {
        n: row
        for numbers, output in task.stream(feed())
        for n, row in zip(numbers, output.rows.to_pylist(), strict=True)
    }
    assert [found[n] for n in range(len(texts))] == expected


def test_summaries_that_do_not_get_shorter_are_set_aside(folders: dict[str, Path]) -> None:
    task = opened(folders["bart"], window_tokens=16, max_tokens=40)
    output = task.run(task.prepare([LONG[:120], "It is."]).inputs)
    assert list(output.bad) == [0]
    assert "ask for fewer tokens" in output.bad[0]


def test_the_method_is_that_of_the_model(folders: dict[str, Path], tmp_path: Path) -> None:
    vectors = write_model(tmp_path / "vectors", bert(), [pooling("mean")])
    assert find_method(str(folders["bart"]), None) == "generative"
    assert find_method(str(vectors), None) == "extractive"
    assert find_method("anything", "http://localhost:1/v1") == "generative"
    assert find_method(None, None) == "extractive"
    reader = transformers.BertForQuestionAnswering._from_config(bert())
    reader.save_pretrained(tmp_path / "reader")
    with pytest.raises(ModelError, match="finds answers"):
        find_method(str(tmp_path / "reader"), None)
    with pytest.raises(ModelError, match=r"makes no vectors: .*QuestionAnswering") as refused:
        open_task("summarize", {"method": "extractive", "model": str(tmp_path / "reader")}).fingerprint()
    assert "shardmill answer --reader" in refused.value.hint
    with pytest.raises(ModelError, match="bart is an encoder-decoder model") as refused:
        open_task("summarize", {"method": "extractive", "model": str(folders["bart"])}).open(Device("cpu", "cpu"))
    assert "summarize --method generative" in refused.value.hint
    with pytest.raises(SpecError, match="max_tokens is for a model that writes"):
        open_task("summarize", {"max_tokens": 9})
    with pytest.raises(SpecError, match="No model"):
        open_task("summarize", {"method": "generative"})
    with pytest.raises(SpecError, match="method: input should be"):
        open_task("summarize", {"method": "guess"})


def test_windows_end_with_sentences_and_lose_nothing() -> None:
    windows = cut_windows(LONG, 30, lambda window: len(window) <= 100)
    assert " ".join(windows) == LONG
    assert all(window.startswith("Sentence") and window.endswith(".") for window in windows)
    words = "word " * 99 + "word"
    assert " ".join(cut_windows(words, 1_000, lambda window: len(window) <= 50)) == words
    assert "".join(cut_windows("x" * 100, 1_000, lambda window: len(window) <= 9)) == "x" * 100
