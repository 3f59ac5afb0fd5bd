"""A page about a run, in every state of a run; what comes from data stays text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from shardmill.core.errors import ShardmillError
from shardmill.core.template import NO_TEXT
from shardmill.ledger import ItemReport, ItemReports
from shardmill.plan.spec import make_spec
from shardmill.run import Run, prepare, start
from shardmill.run.carrying import carry_out, prepare_work
from shardmill.store import open_store
from shardmill.testing import InProcessEngine
from shardmill.verbs.tune.work import tune_study
from tests.support.corpora import fake_rows, fake_spec
from tests.support.libraries import needed
from tests.support.llm_server import MODEL, llm_server
from tests.support.studies import run_study
from tests.support.vectors import clusters, write_vectors

HOSTILE = '<script>alert("1")</script>|`[x](javascript:1)`\u202e\x1b[31m'


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not any(name.startswith("on") or name in ("src", "href", "style") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Sixty rows, two of which fail; the name of one is hostile."""
    folder = tmp_path_factory.mktemp("report")
    rows = fake_rows(60)
    rows[7] = {"id": HOSTILE, "text": "!raise"}
    rows[30] = {"id": "k30", "text": ""}
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    start(fake_spec(folder / "items.jsonl", price_in=3.0), folder / "run", engine=InProcessEngine(), quiet=True)
    made = Run(folder / "run", allow_code=True)
    made.verify(sample=4)
    return made


def test_a_page_says_what_ran_and_proves_it(run: Run, tmp_path: Path) -> None:
    assert run.report(tmp_path / "new" / "report.html") == str(tmp_path / "new" / "report.html")
    page = (tmp_path / "new" / "report.html").read_text()
    seen = _Tags(page)
    said = " ".join(seen.texts)
    assert {"script", "img", "link", "iframe"}.isdisjoint(seen.tags)
    assert "default-src 'none'" in page
    assert "shardmill.testing:FakeTask" in said
    assert "verified" in said
    assert run.plan.id in said
    proof = run.ledger.notes.report()
    assert proof is not None
    assert all(check["seen"] in said for check in proof["checks"])
    assert "this text is poison" in said
    assert "<script>alert" in said
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert json.loads(run.ledger.store.get("report.json")) == proof


def test_text_and_json_say_the_same(run: Run, tmp_path: Path) -> None:
    run.report(tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert "**verified** · complete" in text
    assert not re.search(r"(?<!\\)<script", text)
    tables = [line for line in text.splitlines() if line.startswith("|")]
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in tables}
    assert widths <= {3, 4, 6, 7}
    run.report(tmp_path / "report.txt", "json")
    said = json.loads((tmp_path / "report.txt").read_text())
    assert said["verdict"] == "verified"
    assert said["rows"] == 60
    assert said["errors"] == 2
    assert sum(reason["count"] for reason in said["reasons"]) == 2
    assert said["proof"]["verified"]
    assert "numpy" in said["libraries"]


def test_lengths_are_those_of_the_inputs(run: Run, tmp_path: Path) -> None:
    run.report(tmp_path / "report.json")
    lengths = json.loads((tmp_path / "report.json").read_text())["lengths"]
    texts = [row["text"] for row in fake_rows(60)]
    texts[7], texts[30] = "!raise", ""
    expected = [0] * len(lengths)
    for text in filter(None, texts):
        expected[len(text).bit_length() - 1] += 1
    assert lengths == expected


def test_without_a_file_it_lies_in_the_folder(run: Run) -> None:
    assert run.report() == f"{run.ledger.url}/report.html"
    assert b"<!doctype html>" in run.ledger.store.get("report.html")


def test_a_file_may_be_in_any_store(run: Run, place: str) -> None:
    run.report(f"{place}/reports/report.md")
    assert b"**verified**" in open_store(f"{place}/reports").get("report.md")


def test_a_run_that_has_not_begun_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in fake_rows(5)))
    prepare(fake_spec(tmp_path / "items.jsonl"), tmp_path / "run")
    Run(tmp_path / "run").report(tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert "**not complete** · planned" in text
    assert text.count("Not recorded.") == 2


def test_a_task_that_reads_no_text_names_none(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    work = {"source": str(write_jsonl(fake_rows(3))), "text": NO_TEXT, "task": "shardmill.testing:FakeTask"}
    made = prepare(make_spec(work), tmp_path / "run")
    text = Path(made.report(tmp_path / "report.md")).read_text()
    assert "| source |" in text
    assert "| text |" not in text


def test_a_proof_of_another_plan_proves_nothing(run: Run, tmp_path: Path) -> None:
    proof = run.ledger.notes.report()
    assert proof is not None
    try:
        run.ledger.notes.put_report({**proof, "plan": "another"})
        run.report(tmp_path / "report.json")
    finally:
        run.ledger.notes.put_report(proof)
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == "not verified"


@pytest.mark.parametrize(
    ("out", "format", "said"),
    [
        ("report.pdf", "", "'pdf'"),
        ("x", "", "''"),
        ("report.html", "htm", "'htm'"),
        ("/proc/x/y.md", "", "/proc/x cannot be created"),
    ],
)
def test_what_cannot_be_written_is_refused(run: Run, out: str, format: str, said: str) -> None:
    with pytest.raises(ShardmillError, match=re.escape(said)) as refused:
        run.report(out, format)
    assert refused.value.hint


def test_the_page_of_a_study_shows_its_best_trial_and_charts(tmp_path: Path) -> None:
    needed("optuna")
    study = run_study(tmp_path / "run", "sometimes_broken", metrics={HOSTILE: "minimize"}).study()
    run = Run(tmp_path / "run")
    seen = _Tags(Path(run.report(tmp_path / "study.html")).read_text())
    said = " ".join(seen.texts)
    assert {"script", "img", "b"}.isdisjoint(seen.tags)
    assert seen.tags.count("circle") == 6 * 4
    assert f"{study.best[0].values[0]:.6g}" in said
    assert "ValueError: no such <b>model</b>" in said
    text = Path(run.report(tmp_path / "study.md")).read_text()
    assert "| best trial |" in text
    assert "| 12 of 12 |" in text
    assert "\n| items | 12 |\n" in text
    assert not re.search("per million rows|rows per second|range:0|## Lengths", text), "a trial is no row"
    assert len(json.loads(Path(run.report(tmp_path / "study.json")).read_text())["study"]["trials"]) == 12


def test_the_page_of_a_long_study_says_what_it_leaves_out(tmp_path: Path) -> None:
    needed("optuna")
    space = {"way": [f"{n}-{'long' * 20}" for n in range(24)], "x": {"low": 0.0, "high": 1.0}, "n": [1, 2]}
    metrics = {"value": "minimize", "speed": "minimize"}
    work = {"call": "tests.support.objectives:one_best", "trials": 110, "generation": 55, "metrics": metrics}
    study = {"work": {**work, "sampler": "random"}, "space": space}
    run = tune_study(study, {}, {"device": "cpu"}, tmp_path / "run", engine=InProcessEngine())
    page = Path(run.report(tmp_path / "study.html")).read_text()
    assert "The table has 100 of them, the best first. All: shardmill study RUN --json" in page
    assert page.count('<th scope="row">speed</th>') == 1
    under = re.findall(r'text-anchor="\w+">(\d+-long[^<]*)</text>', page)
    assert 2 < len(under) <= 10
    assert max(map(len, under)) < 20


def test_the_page_of_a_training_run_shows_its_figures_and_curves(tmp_path: Path) -> None:
    needed("torch")
    from tests.support.training import a_model, topic_pairs

    source = tmp_path / "pairs.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in topic_pairs(24)))
    params = {"model": str(a_model(tmp_path / "model")), "columns": "question,passage", "batch": 8, "epochs": 3}
    work = {"source": str(source), "task": "train", "params": params}
    run = prepare_work(work, {}, tmp_path / "run")
    run.ledger.reports.put(0, 0, ItemReports([ItemReport(0, 0.0, {"mrr@10": 0.25}), ItemReport(2, 1.0, {"loss": 0.5})]))
    early = Path(run.report(tmp_path / "early.md")).read_text()
    assert "Not complete: at step 2." in early
    assert "| 2 | 0.5000 |" in early
    run = carry_out(work, {}, tmp_path / "run", engine=InProcessEngine())
    row = run.table().to_pylist()[0]
    seen = _Tags(Path(run.report(tmp_path / "run.html")).read_text())
    said = " ".join(seen.texts)
    assert "mrr@10 by step" in said
    assert seen.tags.count("circle") == 3 + 4
    assert f"{row['best']:.4f}, at step {row['best_step']}" in said
    assert f"{row['before']:.4f} → {row['best']:.4f}" in said
    assert not re.search("per million rows|rows per second|Lengths", said), "a training is no row"
    told = json.loads(Path(run.report(tmp_path / "run.json")).read_text())["training"]
    assert [each["step"] for each in told["curve"]] == [0, 3, 6, 9]


def test_the_page_of_a_map_shows_its_clusters_and_how_far_it_can_be_trusted(tmp_path: Path) -> None:
    needed("umap")
    needed("fast_hdbscan")
    from shardmill.verbs.map.making import make_map

    vectors = [*clusters(400), None]
    source = write_vectors(tmp_path / "in.parquet", vectors, rows_in_group=50)
    wanted = {"source": str(source), "text": "body", "id": "id", "sample": 200}
    run = make_map(wanted, {}, tmp_path / "map", engine=InProcessEngine())
    table = pq.read_table(tmp_path / "map" / "coordinates.parquet").slice(0, 400)
    found = Counter(table.column("cluster_1").to_pylist())
    noise = found.pop(None, 0)
    told = json.loads(Path(run.report(tmp_path / "map.json")).read_text())["map"]
    assert (told["points"], told["rows"], told["levels"][0]["noise"]) == (400, 401, noise)
    assert {number: size for number, _, size in told["levels"][0]["sizes"]} == dict(found)
    text = Path(run.report(tmp_path / "map.md")).read_text()
    assert text.splitlines()[4].startswith("| points | clusters | in no cluster | true neighbours kept | time |")
    assert "## The map" in text
    assert "| points | 400 of 401 rows |" in text
    assert "| without a place | 1 |" in text
    assert re.search(r"\| method \| umap of .* in 16 dimensions, seed 0 \|", text)
    assert f"| 1 | {len(found)} | {noise} |" in text
    for name, size in Counter(name for name in table.column("cluster_name_1").to_pylist() if name).items():
        assert f"| {name} | {size} |" in text
    said = " ".join(_Tags(Path(run.report(tmp_path / "map.html")).read_text()).texts)
    assert told["quality"]["verdict"] in said
    figures = tmp_path / "map" / "map.json"
    whole = json.loads(figures.read_text())
    for damaged in ({**whole, "quality": 7}, {**whole, "notes": None}, {**whole, "clusters": [4] * 9}, {}):
        figures.write_text(json.dumps(damaged))
        assert "map" not in json.loads(Path(run.report(tmp_path / "map.json")).read_text())
    figures.write_text(json.dumps(whole))
    (tmp_path / "map" / "coordinates.parquet").unlink()
    assert "map" not in json.loads(Path(run.report(tmp_path / "map.json")).read_text())


def test_the_page_of_generated_texts_says_why_they_ended(tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    source = write_jsonl([{"id": i, "body": f"Prompt {i}"} for i in range(20)])
    with llm_server() as server:
        params = {"model": MODEL, "endpoint": server.url, "max_tokens": 64}
        work = {"source": str(source), "text": "Say:\n\n{body}", "id": "id", "task": "generate", "params": params}
        run = start(make_spec(work, {"shard_bytes": 200}), tmp_path / "run", engine=InProcessEngine())
    table = run.table()
    seen = _Tags(Path(run.report(tmp_path / "report.html")).read_text())
    assert "What was generated" in seen.texts
    told = json.loads(Path(run.report(tmp_path / "report.json")).read_text())["generation"]
    assert told["answers"] == 20
    assert told["tokens"] == sum(table.column("tokens_out").to_pylist()) > 0
    assert told["reasons"] == dict(Counter(table.column("finish_reason").to_pylist()))
    assert sum(told["lengths"]) + told["empty"] == 20
    text = Path(run.report(tmp_path / "report.md")).read_text()
    assert f"| tokens made | {told['tokens']:,} |" in text
    assert "| Say: ↵ {body} |" in text
    for part in (tmp_path / "run" / "parts").iterdir():
        part.unlink()
    assert "generation" not in json.loads(Path(run.report(tmp_path / "report.json")).read_text())
