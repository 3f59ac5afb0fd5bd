"""Compiling and trying kernels: when the work that is left is worth it, and what becomes of a cache that is no use."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.devices import Device
from shardmill.models import paying
from shardmill.models.arithmetic import count_arithmetic
from shardmill.models.paying import Paying

H200 = Device("cuda", "NVIDIA H200", 16)
TEXT_BYTES = 470
QWEN = {
    "model_type": "qwen3", "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "hidden_size": 1024, "head_dim": 128, "intermediate_size": 3072, "rms_norm_eps": 1e-6,
    "architectures": ["Qwen3ForCausalLM"],
}  # fmt: skip
BERT = {
    "model_type": "bert", "num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768,
    "intermediate_size": 3072,
}  # fmt: skip
MINILM = {**BERT, "num_hidden_layers": 6, "hidden_size": 384, "intermediate_size": 1536}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/shardmill/compiling.json"


def model(config: dict[str, Any], work_bytes: int, *, device: Device = H200, name: str = "model") -> Paying:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    width = config["num_attention_heads"] * config.get("head_dim", hidden // config["num_attention_heads"])
    kept = config.get("num_key_value_heads", config["num_attention_heads"]) * width // config["num_attention_heads"]
    each = [(hidden, width), (hidden, kept), (hidden, kept), (width, hidden), *[(hidden, inner)] * 2]
    each += [(hidden, inner)] * ("rms_norm_eps" in config)
    shapes = [(f"{i}.{j}", shape) for i in range(config["num_hidden_layers"]) for j, shape in enumerate(each)]
    return Paying(replace(device, work_bytes=work_bytes), config, count_arithmetic(config, shapes), name)


def test_it_is_the_seconds_that_count_not_the_bytes() -> None:
    assert model(QWEN, 60_000 * TEXT_BYTES).compiling()
    assert not model(MINILM, 32 << 20).compiling()
    assert not model(QWEN, 200 * TEXT_BYTES).compiling()
    assert model(BERT, 4 << 30).compiling()
    assert not model(BERT, 0).compiling()


def test_what_is_left_for_a_share_of_a_gpu_takes_as_long_as_the_whole() -> None:
    whole = model(QWEN, 60_000 * TEXT_BYTES)
    half = model(QWEN, 30_000 * TEXT_BYTES, device=replace(H200, sharing=2))
    assert half.saved_s() == pytest.approx(whole.saved_s())


def test_writing_counts_the_steps() -> None:
    reading, writing = (model(QWEN, 4 << 20).saved_s(new_tokens=n) for n in (0, 100))
    assert writing > 2 * reading
    assert model(QWEN, 16 << 20).compiling(new_tokens=100)


@pytest.mark.parametrize("kind", ["t5", "mt5", "umt5"])
def test_an_encoder_that_compiling_slows_down_is_not_compiled(kind: str) -> None:
    t5 = {**QWEN, "model_type": kind}
    assert not model(t5, 1 << 40).compiling()
    assert model(t5, 1 << 40).compiling(new_tokens=100)


def test_a_cpu_goes_by_what_it_measured() -> None:
    cpu = Device("cpu", "cpu", 2)
    assert model(MINILM, 64 << 20, device=cpu).compiling(token_s=3e-5)
    assert not model(MINILM, 1 << 20, device=cpu).compiling(token_s=3e-5)


def test_a_few_hundred_rows_try_nothing() -> None:
    for config in (MINILM, BERT, QWEN):
        assert not model(config, 200 * TEXT_BYTES).trying
        assert model(config, 1_000_000 * TEXT_BYTES).trying
    assert model(BERT, 0).trying


def test_a_model_that_cannot_be_counted_is_tried_and_not_compiled() -> None:
    one = Paying(replace(H200, work_bytes=1), QWEN, count_arithmetic({"model_type": "?"}, []), "model")
    assert one.trying
    assert not one.compiling()


def test_a_damaged_list_of_devices_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "shardmill").mkdir()
    (tmp_path / "shardmill/devices.toml").write_text("[[device]")
    assert model(QWEN, 60_000 * TEXT_BYTES).compiling()


def test_a_chip_that_is_not_known_is_a_usual_one() -> None:
    assert model(QWEN, 60_000 * TEXT_BYTES, device=replace(H200, name="Some GPU")).compiling()


def test_what_it_took_last_time_decides(cache: Path) -> None:
    work = 60_000 * TEXT_BYTES
    with model(QWEN, work).timed():
        pass
    assert model(QWEN, work).compiling_s < 10, "not the 12 s that are guessed"
    assert model(BERT, 64 << 20).compiling()
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.parent.stat().st_mode) == 0o700
    held = json.loads(cache.read_text())
    held["seconds"]["model"] = 300.0
    cache.write_text(json.dumps(held))
    assert not model(QWEN, work).compiling()
    assert model(QWEN, work, name="another").compiling()


def test_what_failed_is_not_kept(cache: Path) -> None:
    with pytest.raises(RuntimeError), model(QWEN, 1).timed():
        raise RuntimeError
    assert not cache.exists()


@pytest.mark.parametrize("held", ["", "{", '{"version": 9, "seconds": {"model": 300}}', "[]", "\0" * 9])
def test_a_cache_of_another_version_or_half_written_is_none(cache: Path, held: str) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(held)
    assert model(QWEN, 60_000 * TEXT_BYTES).compiling()


@pytest.mark.parametrize("seconds", ["12", None, True, -1, 1e9, float("nan"), [1]])
def test_seconds_that_cannot_be_are_none(cache: Path, seconds: Any) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps({"version": 1, "seconds": {"model": seconds}}))
    assert model(QWEN, 1).compiling_s == 12.0


def test_a_cache_that_cannot_be_written_is_told_and_nothing_else(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    one = model(QWEN, 60_000 * TEXT_BYTES)
    with one.timed():
        pass
    assert one.trouble == "compiling.json in the user's cache cannot be written (No space left on device)"
    assert one.compiling()


def test_names_differ_by_chip_model_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {paying._name(device, model) for device in (H200, replace(H200, name="T4")) for model in "ab"}
    monkeypatch.setattr(paying, "__version__", "9.9")
    assert len(names | {paying._name(H200, "a")}) == 5
