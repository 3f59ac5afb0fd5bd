"""Catalogue, shapes, memory and speed: the arithmetic of an estimate, against what is known otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import ModelError, SpecError, UsageError
from shardmill.models.arithmetic import count_arithmetic
from shardmill.models.folder import read_folder
from shardmill.models.heads import stored_shapes
from shardmill.plan.sizing.catalogue import load_catalogue
from shardmill.plan.sizing.chunks import BART_LARGE, BERT_BASE, calculate_optimal_chunks, chip_with
from shardmill.plan.sizing.memory import CONTEXT_BYTES, embedding_need, generation_need, kv_bytes, training_need
from shardmill.plan.sizing.options import Workload, choose, estimate_option, fewest
from shardmill.plan.sizing.profile import Measured
from shardmill.plan.sizing.shape import read_shape
from shardmill.plan.sizing.speed import estimated_speed, find_speed, measured_speed, training_s, writing_s
from tests.support.tiny_models import bert, qwen3, write_model, xlm_roberta

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

QWEN = {
    "vocab_size": 151669,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
MODELS: list[tuple[Any, Any]] = [
    (transformers.BertConfig(), transformers.BertModel),
    (bert(), transformers.BertModel),
    (qwen3(), transformers.Qwen3Model),
    (xlm_roberta(), transformers.XLMRobertaModel),
    (transformers.Qwen3Config(**QWEN), transformers.Qwen3Model),
    (transformers.Qwen2Config(**SMALL, num_key_value_heads=2), transformers.Qwen2Model),
    (transformers.LlamaConfig(**SMALL), transformers.LlamaModel),
    (transformers.MPNetConfig(**SMALL), transformers.MPNetModel),
    (transformers.ModernBertConfig(**SMALL), transformers.ModernBertModel),
    (transformers.DistilBertConfig(), transformers.DistilBertModel),
    (transformers.T5Config(num_decoder_layers=3), transformers.T5ForConditionalGeneration),
    (transformers.T5Config(feed_forward_proj="gated-gelu"), transformers.T5ForConditionalGeneration),
    (transformers.BartConfig(encoder_layers=2, d_model=64), transformers.BartForConditionalGeneration),
]
BERT, BART = read_shape(BERT_BASE), read_shape(BART_LARGE)
WORK = Workload(100_000, 12_800_000, 128)


@pytest.mark.parametrize(("config", "kind"), MODELS, ids=lambda m: getattr(m, "model_type", ""))
def test_parameters_by_the_config_are_those_of_the_model(config: Any, kind: Any) -> None:
    with torch.device("meta"):
        model = kind(config)
    assert read_shape(config.to_dict()).parameters == sum(p.numel() for p in model.parameters())


def test_the_known_sizes() -> None:
    assert BERT.parameters == 109_482_240
    assert read_shape(transformers.Qwen3Config(**QWEN).to_dict()).parameters == 595_776_512
    assert BART.parameters == 406_291_456


@pytest.mark.parametrize("config", [bert(), qwen3()], ids=["bert", "qwen3"])
def test_arithmetic_by_the_config_is_that_of_the_weights(config: Any, tmp_path: Path) -> None:
    folder = read_folder(write_model(tmp_path / "model", config))
    counted = count_arithmetic(folder.config, stored_shapes(folder))
    assert read_shape(folder.config).flops(50) == pytest.approx(counted.flops(50, 2500))


def test_a_model_that_is_not_known_is_said_so() -> None:
    with pytest.raises(ModelError, match="mamba"):
        read_shape({"model_type": "mamba"})
    with pytest.raises(ModelError, match="intermediate_size"):
        read_shape({"model_type": "bert", "hidden_size": 8})


def test_memory_depends_on_the_batch_and_on_attention() -> None:
    need = embedding_need(BERT)
    assert need.weights_bytes == 2 * BERT.parameters
    assert need.bytes(0, 1) == CONTEXT_BYTES + need.weights_bytes
    assert need.batch_bytes(64, 128) == pytest.approx(2 * need.batch_bytes(32, 128))
    eager = embedding_need(BERT, fused=False)
    assert eager.batch_bytes(8, 512) - need.batch_bytes(8, 512) == pytest.approx(1.2 * 8 * 512**2 * 12 * 4)


def test_writing_keeps_keys_and_values_of_every_token() -> None:
    assert kv_bytes(BART) == 2 * 12 * 1024 * 2
    need = generation_need(BART, 64)
    more = generation_need(BART, 65)
    assert more.batch_bytes(4, 800) - need.batch_bytes(4, 800) == pytest.approx(1.2 * 4 * kv_bytes(BART))


def test_training_keeps_gradients_and_two_moments() -> None:
    assert training_need(BERT).weights_bytes == 18 * BERT.parameters
    assert training_need(BERT, fused=False).batch_bytes(1, 512) > training_need(BERT).batch_bytes(1, 512)


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA RTX A6000", "A6000"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA A100 80GB PCIe", "A100-80"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA L40S", "L40S"),
        ("cpu", "CPU"),
    ],
)
def test_a_device_is_found_by_the_name_its_driver_gives(name: str, chip: str) -> None:
    found = load_catalogue().find(name)
    assert found is not None
    assert found.name == chip


def test_every_price_has_a_date_and_a_source() -> None:
    listed = load_catalogue().listed
    assert [c.name for c in listed] == [
        *("T4", "L4", "A10G", "A6000", "V100", "A100-80", "A100-40", "H100", "H200", "L40S", "CPU"),
    ]
    for chip in listed:
        assert chip.source
        assert (chip.usd is None) == (chip.date == ""), chip.name
    assert load_catalogue().named("t4").usd == 0.526


def test_your_own_devices_and_prices_go_over_ours(tmp_path: Path) -> None:
    file = tmp_path / "devices.toml"
    file.write_text(
        '[[device]]\nname = "V100"\nusd = 0.5\n'
        '[[device]]\nname = "B200"\nseen = ["B200"]\nmemory_gb = 180\nbandwidth_gb_s = 8000\nfp32 = 80\nbf16 = 2250\n'
    )
    known = load_catalogue(file)
    assert (known.named("V100").usd, known.named("V100").memory_gb) == (0.5, 16)
    found = known.find("NVIDIA B200")
    assert found is not None
    assert found.half_tflops == 2250


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[device]]\nname = 'x'\n", "memory_gb"),
        ("[[device]]\nname = 'T4'\ncolour = 'green'\n", "colour"),
        ("[price]\n", "tables only"),
        ("[[", "devices.toml"),
    ],
)
def test_a_broken_catalogue_is_said_so(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "devices.toml").write_text(text)
    with pytest.raises(SpecError, match=said):
        load_catalogue(tmp_path / "devices.toml")


def test_instances_are_rented_whole() -> None:
    known = load_catalogue()
    one = estimate_option(WORK, known.named("H100"), 1, estimated_speed(known.named("H100"), BERT, 128), None)
    assert one.usd is not None
    assert one.usd.likely == pytest.approx(8 * 6.88 * one.seconds.likely / 3600)


def test_the_measured_figures_of_the_h200_are_within_the_range() -> None:
    """docs/benchmarks/embedding-gpu.md: 2.34 M tokens/s of BERT-base, 9.35 M of MiniLM, at 16 cores."""
    h200 = load_catalogue().named("H200").model_copy(update={"cores": 16})
    minilm = read_shape({**BERT_BASE, "hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536})
    for shape, seen in ((BERT, 2_339_442), (minilm, 9_346_072)):
        rate = estimated_speed(h200, shape, 109).tokens_per_s
        assert rate.low < seen < rate.high


def test_a_measured_speed_is_preferred_to_an_estimated_one() -> None:
    chip = load_catalogue().named("T4")
    measured = Measured(1000.0, 10.0, 4000.0, 100.0, 5.0, 10_000, 1, "2026-11-15")
    speed = find_speed(chip, BERT, 100, measured)
    assert speed is not None
    assert (speed.tokens_per_s.likely, speed.basis) == (1000.0, "measured here on 2026-11-15")
    assert measured_speed(BERT, 500, measured).tokens_per_s.likely < 1000
    assert find_speed(chip, None, 100, None) is None
    estimated = find_speed(chip, BERT, 100, None)
    assert estimated is not None
    assert estimated.basis == "estimated from the data sheet"


def test_the_cheapest_that_keeps_to_the_limits() -> None:
    known = load_catalogue()
    big = Workload(100_000_000, 12_800_000_000, 128)

    def option(name: str, count: int) -> Any:
        return estimate_option(
            big, known.named(name), count, estimated_speed(known.named(name), BERT, 128), embedding_need(BERT)
        )

    options = [option("T4", n) for n in (1, 8, 24)] + [option("L4", 8), option("V100", 8)]
    best = choose(options, 24 * 3600, None)
    assert best is not None
    assert best.seconds.high <= 24 * 3600
    assert all(o.usd is None or o.usd.likely >= best.usd.likely for o in options if o.meets(24 * 3600, None))
    assert choose(options, 1.0, None) is None
    assert choose(options, None, 0.01) is None
    least = fewest(lambda n: option("T4", n), 3600)
    assert least is not None
    assert option("T4", least.gpus - 1).seconds.high > 3600 >= least.seconds.high
    assert fewest(lambda n: option("T4", n), 1.0) is None


KEYS = {
    "total_chunks",
    "chunk_size",
    "optimal_batch_size",
    "task_type",
    "estimated_processing_time_minutes",
    "memory_requirements",
    "performance_estimates",
}
MEMORY = {
    *("gpu_memory_per_chunk_gb", "streaming_memory_mb", "model_memory_gb", "batch_memory_mb"),
    "gpu_utilization_percent",
}
SPEED = {"items_per_minute", "total_processing_time_minutes", "parallel_processing_time_minutes"}


@pytest.mark.parametrize("task", ["embedding", "summarization", "training"])
@pytest.mark.parametrize("size", [0, 1, 100_000, 100_000_000])
def test_chunks_have_the_keys_and_cover_the_dataset(task: str, size: int) -> None:
    made = calculate_optimal_chunks(dataset_size=size, available_gpus=8, task_type=task, gpu_memory_gb=16)
    assert made.keys() >= KEYS
    assert made["memory_requirements"].keys() >= MEMORY
    assert made["performance_estimates"].keys() >= SPEED
    assert (
        (made["total_chunks"] - 1) * made["chunk_size"]
        < max(size, 1)
        <= max(1, made["total_chunks"]) * made["chunk_size"]
    )
    assert 0 < made["memory_requirements"]["gpu_utilization_percent"] <= 100


def test_a_larger_dataset_takes_no_more_memory() -> None:
    small, large = (calculate_optimal_chunks(n, 8)["memory_requirements"] for n in (100_000, 100_000_000))
    assert small == large


def test_what_cannot_be_planned_is_said_so() -> None:
    with pytest.raises(UsageError, match="No task is called"):
        calculate_optimal_chunks(10, 1, "embeding")
    with pytest.raises(UsageError, match="0 GPUs"):
        calculate_optimal_chunks(10, 0)
    with pytest.raises(UsageError, match="does not fit into 2"):
        calculate_optimal_chunks(10, 1, "training", 2)


def test_a_gpu_by_its_memory() -> None:
    assert [chip_with(gb).name for gb in (8, 16, 24, 40, 48, 80, 141)] == [
        *("T4", "T4", "A10G", "A100-40", "A6000", "A100-80", "H200"),
    ]


def test_a_larger_batch_writes_faster_and_training_takes_three_times_as_long() -> None:
    chip = load_catalogue().named("T4")
    slow, fast = (writing_s(chip, BART, read_tokens=800, written_tokens=64, rows=n) for n in (1, 32))
    assert slow.likely > 3 * fast.likely
    assert slow.low < slow.likely < slow.high
    rate = estimated_speed(chip, BERT, 128).tokens_per_s
    assert training_s(chip, BERT, tokens=128).likely == pytest.approx(3 * 128 / rate.likely)
