"""Datasets of the hub as a source, from a small server with its routes: redirects, tokens, throttling, commits."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardmill import Spec, make_spec, start
from shardmill.core.errors import SourceError
from shardmill.sources import Fields, discover, open_source
from shardmill.testing import check_source
from tests.support.hub_server import Files, Hub, running_hub
from tests.support.libraries import needed

pytestmark = pytest.mark.services
needed("huggingface_hub")

REPO = "acme/news"
PLACE = f"hf://datasets/{REPO}"
FIELDS = Fields("text", id=("id",))


def rows(split: str, count: int = 40) -> list[dict[str, object]]:
    return [{"id": f"{split}-{i}", "text": f"item {i} of {split}"} for i in range(count)]


def parquet(found: list[dict[str, object]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(found), file, row_group_size=10)
    return file.getvalue()


def dataset() -> Files:
    return {
        "README.md": b"# News",
        ".gitattributes": b"*.parquet filter=lfs",
        "data/train-00000-of-00002.parquet": parquet(rows("train")[:30]),
        "data/train-00001-of-00002.parquet": parquet(rows("train")[30:]),
        "data/test-00000-of-00001.parquet": parquet(rows("test")),
    }


def with_configs() -> Files:
    configs = ("en", "fr")
    told = [
        f"- config_name: {name}\n  data_files: [{{split: train, path: {name}/a*}}, {{split: test, path: {name}/b*}}]\n"
        for name in configs
    ]
    files = {f"{name}/{file}.parquet": parquet(rows(name + file)) for name in configs for file in ("a1", "a2", "b")}
    return {"README.md": f"---\nconfigs:\n{''.join(told)}---\n".encode(), **files}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        hub.push(REPO, dataset())
        yield hub


def spec_of(place: str) -> Spec:
    task = "shardmill.testing:FakeTask"
    work = {"source": place, "text": "text", "id": "id", "task": task, "split": "train", "keep": ["file"]}
    return make_spec(work, {"shard_bytes": 800})


def texts(place: str, split: str = "train", config: str = "") -> list[str]:
    fields = Fields("text", split=split, config=config)
    source = open_source(discover([place], fields), fields)
    return [text for shard in source.shards(500) for batch in source.read(shard) for text in batch.texts.to_pylist()]


def test_it_is_a_source(hub: Hub) -> None:
    places = [f"{PLACE}/data/train-{n:05d}-of-00002.parquet" for n in range(2)]
    assert check_source(places, rows=rows("train"), text="text", id="id") > 20


def test_a_run_pins_the_commit_and_is_verified(hub: Hub, tmp_path: Path) -> None:
    commit = hub.branches[REPO]["main"]
    spec = spec_of(PLACE)
    run = start(spec, tmp_path / "run")
    assert run.table(["id"]).column("id").to_pylist() == [row["id"] for row in rows("train")]
    assert {*run.table(["file"]).column("file").to_pylist()} == {f"train-0000{n}-of-00002.parquet" for n in range(2)}
    assert all(f"@{commit}/" in file.place for file in run.plan.stat.files)
    # A branch that moves on changes nothing of what is there.
    hub.push(REPO, {"data/train-00000-of-00001.parquet": parquet(rows("other"))})
    assert run.verify().verified
    assert start(spec_of(f"{PLACE}@{commit}"), tmp_path / "run")
    with pytest.raises(Exception, match="different run"):
        start(spec, tmp_path / "run")


def test_the_same_content_has_the_same_plan(hub: Hub, tmp_path: Path) -> None:
    before = discover([PLACE], Fields("text", split="train"))
    hub.push(REPO, {**dataset(), "README.md": b"# More news"})
    after = discover([PLACE], Fields("text", split="train"))
    assert [file.edges for file in before.files] == [file.edges for file in after.files]
    assert before.files != after.files


def test_splits_are_not_mixed(hub: Hub) -> None:
    with pytest.raises(SourceError, match="several splits: test, train") as caught:
        discover([PLACE], Fields("text"))
    assert "--split train" in str(caught.value)
    assert texts(PLACE, "test") == [row["text"] for row in rows("test")]
    assert len(texts(PLACE, "all")) == 80
    with pytest.raises(SourceError, match="no split 'trian'"):
        discover([PLACE], Fields("text", split="trian"))


def test_configs_are_not_mixed(hub: Hub) -> None:
    hub.push(REPO, with_configs())
    with pytest.raises(SourceError, match="several configs: en, fr") as caught:
        discover([PLACE], Fields("text", split="train"))
    assert "--config en" in str(caught.value)
    assert texts(PLACE, "train", "en") == [f"item {i} of en{name}" for name in ("a1", "a2") for i in range(40)]
    assert texts(PLACE, "all", "all") == [
        f"item {i} of {config}{name}" for config in ("en", "fr") for name in ("a1", "a2", "b") for i in range(40)
    ]


def test_folders_files_and_patterns(hub: Hub) -> None:
    hub.push(REPO, {"fr/a b#1.jsonl": b'{"text": "un"}\n', "fr/c.jsonl": b'{"text": "deux"}\n', "en/a.jsonl": b"{}"})
    assert texts(f"{PLACE}/fr", "") == ["un", "deux"]
    assert texts(f"{PLACE}/fr/*.jsonl", "") == ["un", "deux"]
    assert texts(f"{PLACE}/fr/a b#1.jsonl", "") == ["un"]
    with pytest.raises(SourceError, match="no such file or folder"):
        texts(f"{PLACE}/de")
    with pytest.raises(SourceError, match="matches no file"):
        texts(f"{PLACE}/de/*.jsonl")


def test_a_token_goes_to_the_hub_alone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.private.add(REPO)
    hub.tokens.add("hf_secret")
    with pytest.raises(SourceError, match="no such dataset, or you may not see it"):
        texts(PLACE)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert len(texts(PLACE)) == 40
    assert hub.leaked == []


def test_a_busy_hub_is_asked_again(hub: Hub) -> None:
    fields = Fields("text", split="train")
    source = open_source(discover([PLACE], fields), fields)
    hub.refused = 3
    assert sum(len(batch) for shard in source.shards(1 << 30) for batch in source.read(shard)) == 40


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("hf://acme/news", "does not name a dataset"),
        (f"{PLACE}@nowhere", "no revision 'nowhere'"),
        ("hf://datasets/acme/nothing", "no such dataset"),
        ("hf://datasets/acme/closed", "whom its owners let in"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_line(hub: Hub, place: str, said: str) -> None:
    hub.gated.add("acme/closed")
    with pytest.raises(Exception, match=said) as caught:
        texts(place)
    assert "\n" in str(caught.value), "no hint"


@pytest.mark.parametrize(("config", "split"), [("", "train"), ("en", "train"), ("fr", "test")])
def test_datasets_reads_the_same_rows(hub: Hub, tmp_path: Path, config: str, split: str) -> None:
    needed("datasets")
    if config:
        hub.push(REPO, with_configs())
    asked = f"{REPO!r}, {config or None!r}, split={split!r}, cache_dir={str(tmp_path / 'cache')!r}"
    script = f"""
import json, datasets
for row in datasets.load_dataset({asked}):
    print(json.dumps(row["text"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == texts(PLACE, split, config)
