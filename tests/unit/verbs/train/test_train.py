"""The train task in whole runs: rows, model folder, verification, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import SourceError, SpecError, StaleResume, TooManyErrors
from shardmill.run import Run
from shardmill.run.carrying import carry_out
from shardmill.sources import ALL, Fields, discover, open_source, sort_groups
from shardmill.store import open_store
from shardmill.testing import FakeContext, InProcessEngine
from shardmill.verbs.train.task import TrainTask
from tests.support.cli import Cli
from tests.support.libraries import needed
from tests.support.training import CPU, a_model, a_network, topic_pairs

torch = needed("torch")
SentenceTransformer = needed("sentence_transformers").SentenceTransformer
ROWS = topic_pairs(40)
USUAL: dict[str, Any] = {"columns": ["question", "passage"], "batch": 8, "learning_rate": 1e-3, "held_out": 0.2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_model(tmp_path_factory.mktemp("model"))


def train(source: Path | str, folder: Path, out: Path | str, **params: Any) -> Run:
    work = {"source": str(source), "task": "train", "params": {"model": str(folder), **USUAL, **params}}
    return carry_out(work, {}, out, engine=InProcessEngine())


def test_a_run_leaves_figures_a_model_and_a_proof(
    folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    run = train(write_jsonl(ROWS), folder, tmp_path / "run", split_by="title", epochs=2, dims=[32, 16])
    (row,) = run.table().to_pylist()
    assert (row["items"], row["left_out"], row["unusable"]) == (40, 0, 0)
    assert row["trained_on"] + row["held_out"] == 40
    assert row["best"] == max(each["figure"] for each in json.loads(row["curve"])[1:])
    report = run.verify()
    assert report.verified, report
    made = SentenceTransformer(str(tmp_path / "run" / "model"), device="cpu")
    texts = [each["passage"] for each in ROWS[:4]]
    ours = a_network(tmp_path / "run" / "model").embed([("", text) for text in texts]).numpy()
    np.testing.assert_allclose(made.encode(texts), ours, atol=1e-5)
    before = a_network(folder).embed([("", text) for text in texts]).numpy()
    assert np.abs(ours - before).max() > 1e-3
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert f"mrr@10 on {row['held_out']} held-out items: {row['before']:.4f} before, {row['best']:.4f} after" in card
    assert "| dims | 32, 16 |" in card
    assert not list(run.ledger.store.list("checkpoints/"))


def test_the_share_that_was_held_out_is_told_and_where_it_is_far_from_what_was_asked(
    folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path], shardmill: Cli
) -> None:
    rows = [{**row, "title": "most" if i < 30 else f"t{i}"} for i, row in enumerate(ROWS)]
    words = ["--columns", "question,passage", "--model", folder, "--batch", 8, "--device", "cpu", "--held-out", 0.34]
    said = shardmill("train", write_jsonl(rows), *words, "--split-by", "title", "--out", tmp_path / "run")
    assert said.status == 0, said.err
    (row,) = Run(tmp_path / "run").table().to_pylist()
    share = f"{row['held_out'] / 40:.0%} of all, not 34% as asked for: items of one 'title' stay together"
    assert f"held-out items ({share})" in said.err
    assert "not 34% as asked for" in Path(Run(tmp_path / "run").report(tmp_path / "report.md")).read_text()
    assert share in (tmp_path / "run" / "model" / "README.md").read_text()
    options = TrainTask(**{**USUAL, "model": str(folder)}).options
    assert options.describe_held_out(79, 21) == "21% of all"


@pytest.mark.parametrize("kind", ["csv", "two files"])
def test_items_come_from_any_source(kind: str, folder: Path, tmp_path: Path) -> None:
    table, data = pa.Table.from_pylist(ROWS), tmp_path / "data"
    data.mkdir()
    if kind == "csv":
        pyarrow.csv.write_csv(table, data / "pairs.csv")
    else:
        pq.write_table(table.slice(0, 25), data / "a.parquet")
        pq.write_table(table.slice(25), data / "b.parquet")
    run = train(data, folder, tmp_path / "run")
    assert run.table().column("items").to_pylist() == [40]
    assert run.verify().verified


def test_the_same_items_in_another_format_lead_to_the_same_weights(
    folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "pairs.parquet")
    train(write_jsonl(ROWS), folder, tmp_path / "one")
    train(tmp_path / "pairs.parquet", folder, tmp_path / "two")
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert weights[0] == weights[1]


def test_triplets_and_labelled_pairs(folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    source = write_jsonl(ROWS)
    triplets = train(source, folder, tmp_path / "a", columns=["question", "passage", "negative"])
    assert triplets.table()["metric"].to_pylist() == ["mrr@10"]
    scored = train(source, folder, tmp_path / "b", label="score")
    assert scored.table()["metric"].to_pylist() == ["spearman"]


def test_pairs_without_a_partner_are_left_out_and_named(
    folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    rows: list[Any] = [*ROWS]
    rows[3] = {"question": "alone?", "title": "x"}
    rows[5] = {"question": " ", "passage": "no question", "title": "x"}
    rows[7] = "{broken"
    source = write_jsonl(rows)
    run = train(source, folder, tmp_path / "run", max_errors="10%")
    (row,) = run.table().to_pylist()
    assert row["trained_on"] + row["held_out"] == 37
    assert row["unusable"] == 3
    assert run.verify().verified
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "3 rows of the source were left out" in card
    assert "- row 3: no text in 'passage'\n" in card
    with pytest.raises(TooManyErrors, match=r"3 of 40.*row 3: no text in 'passage'; row 5: .*row 7: ") as caught:
        train(source, folder, tmp_path / "strict")
    assert "resumes" not in caught.value.hint
    assert "--fresh --max-errors 3" in caught.value.hint


def test_a_card_names_columns_as_they_are(folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    rows = [{"the_question": row["question"], "passage": row["passage"], "the_group": row["title"]} for row in ROWS]
    train(write_jsonl(rows), folder, tmp_path / "run", columns=["the_question", "passage"], split_by="the_group")
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "(`the_question`, `passage`)" in card
    assert "held out, by `the_group`: " in card
    again = {"columns": ["the_question", "passage"]}
    train(write_jsonl(rows), tmp_path / "run" / "model", tmp_path / "again", **again)
    assert "# run/model, fine-tuned" in (tmp_path / "again" / "model" / "README.md").read_text()


def test_labels_that_are_texts_are_numbers_or_left_out(
    folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    rows: list[Any] = [{**row, "score": str(row["score"])} for row in ROWS]
    rows[3] = {**rows[3], "score": "good"}
    run = train(write_jsonl(rows), folder, tmp_path / "run", label="score", max_errors="1")
    (row,) = run.table().to_pylist()
    assert (row["unusable"], row["metric"]) == (1, "spearman")
    assert "- row 3: no number in 'score'\n" in (tmp_path / "run" / "model" / "README.md").read_text()
    with pytest.raises(SpecError, match="'score' holds string, not numbers"):
        train(write_jsonl([{**row, "score": "good"} for row in ROWS]), folder, tmp_path / "none", label="score")


def test_a_loss_that_is_not_a_number_fails_the_run_with_its_step(
    folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    with pytest.raises(TooManyErrors, match="The loss is nan at step") as caught:
        train(write_jsonl(ROWS), folder, tmp_path / "run", learning_rate=1e30, warmup=0, held_out=0, epochs=3)
    assert "resumes" not in caught.value.hint
    assert "Lower --learning-rate" in str(caught.value)


def test_that_nothing_was_held_out_is_said(
    folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path], shardmill: Cli
) -> None:
    source = write_jsonl([{**row, "title": "one"} for row in ROWS[:4]])
    train(source, folder, tmp_path / "run", split_by="title")
    words = ["train", source, "--columns", "question,passage", "--split-by", "title", "--model", folder, "--batch", 8]
    said = shardmill(*words, "--learning-rate", 0.001, "--held-out", 0.2, "--out", tmp_path / "run")
    assert said.status == 0, said
    assert "4 items in 1 step" in said.err
    assert "No item was held out, so the model was not measured" in said.err


def test_pairs_without_columns_of_the_usual_names_say_what_to_type(
    folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path], shardmill: Cli
) -> None:
    said = shardmill("train", write_jsonl(ROWS), "--model", folder, "--out", tmp_path / "run")
    assert said.status == 2, said
    assert "no field 'anchor'" in said.err
    assert "Available: question, passage, negative, score, title. Name the columns" in said.err
    assert "--columns FIRST,SECOND" in said.err


def test_a_prompt_that_leaves_no_room_is_refused(
    folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    source = write_jsonl(ROWS)
    with pytest.raises(SpecError, match="prompt of 'question' fills all 64 tokens"):
        train(source, folder, tmp_path / "run", prompts={"question": "river " * 80})
    train(source, folder, tmp_path / "short", prompts={"question": "river " * 40})


def test_one_row_is_too_few(folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    with pytest.raises(SourceError, match="too few items to train on: 1") as caught:
        train(write_jsonl(ROWS[:1]), folder, tmp_path / "run")
    assert caught.value.hint == "Give a source with more rows."


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"columns": ["question"]}, "columns names 1, not two or three"),
        ({"columns": ["question", "passage"], "loss": "triplet"}, "needs three columns"),
        ({"loss": "cosent"}, "needs a label"),
        ({"loss": "in-batch", "label": "score"}, "takes no label"),
        ({"prompts": {"title": "x"}}, "not among the columns"),
        ({"columns": ["question", "question"]}, "named twice"),
        ({"dims": [64]}, "has 32 dimensions, not 64"),
        ({"max_errors": "few"}, "max_errors 'few' is neither a percentage"),
        ({"dims": [16, 0]}, "dims"),
        ({"dims": "16,-4"}, "dims"),
        ({"dims": "16,many"}, "dims is 16,many, and not whole numbers"),
        ({"prompts": {"Title": "x"}}, "train task: a prompt is for Title"),
        ({"bach": 3}, "bach"),
        ({"batch": 1}, "a batch of 1 teaches nothing: the loss in-batch compares"),
        ({"batch": 1, "label": "score"}, "a batch of 1 teaches nothing: the loss cosent compares"),
        ({"seed": 1 << 63}, "seed: input should be less than 9223372036854775808"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_runs(
    params: dict[str, Any], words: str, folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    with pytest.raises(SpecError, match=words):
        train(write_jsonl(ROWS), folder, tmp_path / "run", **params)
    assert not (tmp_path / "run" / "plan.json").exists()


def test_columns_that_hold_no_text_are_refused(folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    with pytest.raises(Exception, match="'score' holds double, not text"):
        train(write_jsonl(ROWS), folder, tmp_path / "run", columns=["question", "score"])


def test_other_parameters_do_not_resume_a_run(folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    source = write_jsonl(ROWS)
    train(source, folder, tmp_path / "run")
    with pytest.raises(StaleResume, match="batch was 8 and is 4"):
        train(source, folder, tmp_path / "run", batch=4)


def test_a_run_folder_in_a_store(folder: Path, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    run = train(write_jsonl(ROWS), folder, "memory://training")
    names = {entry.key for entry in open_store(run.ledger.url).list("model/")}
    assert {"model/model.safetensors", "model/README.md", "model/1_Pooling/config.json"} <= names


def test_a_task_that_is_stopped_keeps_and_goes_on(folder: Path, tmp_path: Path) -> None:
    from shardmill.tasks.context import TEXT, Stopped

    table = pa.Table.from_pylist([{"row": i, "why": None, **row} for i, row in enumerate(ROWS)])
    pq.write_table(table.set_column(1, "why", pa.nulls(40, pa.string())), tmp_path / "rows.parquet")
    item = {TEXT: str(tmp_path / "rows.parquet")}
    context = FakeContext()
    context.stop = True
    task = TrainTask(model=str(folder), **USUAL)
    task.open(CPU)
    with pytest.raises(Stopped):
        task.work(item, context)
    assert context.kept is not None
    context.stop = False
    assert task.work(item, context)["steps"] == 4
    assert "model.safetensors" in context.published


def test_all_rows_are_one_item(write_jsonl: Callable[..., Path], tmp_path: Path) -> None:
    source = write_jsonl([*ROWS[:5], "{broken", ""])
    fields = Fields(text="question", wanted=("question", "passage"), group_by=ALL)
    stat = sort_groups(discover([str(source)], fields), fields)
    opened = open_source(stat, fields)
    (shard,) = opened.shards(1)
    (batch,) = opened.read(shard)
    assert batch.kept.to_pylist() == [{"items": 5, "left_out": 1}]
    assert batch.line_count == 7
    stored = pq.read_table(batch.texts[0].as_py())
    assert stored.column_names == ["row", "why", "question", "passage"]
    assert stored["passage"].to_pylist()[:5] == [row["passage"] for row in ROWS[:5]]
