"""shardmill's vectors are those of sentence-transformers, for the real model and for tiny ones of every shape."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardmill.core.batching import plan_batches
from shardmill.core.devices import Device
from shardmill.verbs.embed.task import EmbedTask
from tests.support.tiny_models import MINILM, bert, needed, pooling, torch, transformers, write_model

pytestmark = pytest.mark.model


SentenceTransformer = needed("sentence_transformers").SentenceTransformer
TEXTS = [
    "One short line.",
    "",
    "Das Wetter ist schön, und это тоже текст, 漢字も, مرحبا 🙂",
    "word " * 90,
    "def f(x):\n\treturn x ** 2  # [SEP] [MASK]",
]
SCRIPTS = [
    "機械学習のモデルは、大量の文章を数値のベクトルに変換する。",
    "他们在河边走了很久，谁也没有说话。",
    "기차는 아침 여덟 시에 떠났고 우리는 늦었다.",
    "غادر القطار في الثامنة صباحًا ولم يخبرنا أحد بالسبب.",
    "Поезд ушёл в восемь утра, и никто не сказал почему.",
    "रेलगाड़ी सुबह आठ बजे चली गई और किसी ने कारण नहीं बताया।",
    "Το τρένο έφυγε στις οκτώ το πρωί.",
    "รถไฟออกตอนแปดโมงเช้า",
    "👩‍👩‍👧‍👦 🏳️‍🌈 😀😀😀 e\u0301 é",
    "<p class='x'>a &amp; b</p> {\"k\": [1, 2.5e-3]}",
    "for (int i = 0; i < n; ++i) { sum += a[i] * b[i]; }",
    "",
    " ",
    "\n\t \r\n",
    "\u200b\u00a0\ufeff",
    "\x00\x01 control",
    "a" * 150,
    "a-b_c.d/e\\f" * 60,
    "tokens " * 400,
    "漢" * 700,
]


def mixed_texts(count: int) -> list[str]:
    found = dict.fromkeys(SCRIPTS)
    for name in ("os", "re", "json", "socket", "threading", "decimal", "argparse", "statistics", "string", "datetime"):
        module = importlib.import_module(name)
        for _, member in sorted(vars(module).items(), key=lambda pair: pair[0]):
            documented = [member, *(vars(member).values() if inspect.isclass(member) else ())]
            found.update((text, None) for item in documented if isinstance(text := getattr(item, "__doc__", None), str))
    texts = list(found)
    assert len(texts) >= count
    return texts[:count]


def opened(folder: Path | str, **params: Any) -> EmbedTask:
    task = EmbedTask(model=str(folder), **params)
    task.open(Device("cpu", "cpu", threads=2, precise=True))
    assert task.numerics["precision"] == "float32"
    return task


def embed(task: EmbedTask, texts: list[str]) -> NDArray[np.float32]:
    prepared = task.prepare(texts)
    result = np.empty((len(texts), task.dims), np.float32)
    for batch in plan_batches(prepared.costs, budget=task.batch_budget):
        output = task.run([prepared.inputs[i] for i in batch])
        assert output.bad == {}
        result[batch] = output.rows["embedding"].flatten().to_numpy().reshape(len(batch), -1)
    return result


def peer(folder: Path, **options: Any) -> Any:
    return SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32}, **options)


def lowest_cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(((a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))).min())


def test_500_real_texts_on_minilm() -> None:
    texts = mixed_texts(500)
    ours = embed(opened("all-MiniLM-L6-v2"), texts)
    theirs = peer(MINILM).encode(texts, batch_size=8)
    assert lowest_cosine(ours, theirs) >= 0.999999
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    return partial(write_model, tmp_path / "tiny")


def check(folder: Path, peer_options: dict[str, Any] | None = None, **params: Any) -> None:
    ours = embed(opened(folder, **params), TEXTS)
    theirs = peer(folder, **(peer_options or {})).encode(TEXTS)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", ["lasttoken", "cls", "mean"]]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_pooling(make: Callable[..., Path], mode: Any) -> None:
    check(make(bert(), [pooling(mode)]))


def test_pooling_flags_of_old_models(make: Callable[..., Path]) -> None:
    flags = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True, "pooling_mode_max_tokens": False}
    check(make(bert(), [("Pooling", {"word_embedding_dimension": 32, **flags}, {})]))


@pytest.mark.parametrize(("activation", "residual"), [("Tanh", False), ("Identity", True), ("GELU", False)])
def test_dense_layer_norm_and_normalize(make: Callable[..., Path], activation: str, residual: bool) -> None:
    torch.manual_seed(3)
    tensors = {"linear.weight": torch.randn(24, 32), "linear.bias": torch.randn(24)}
    if residual:
        tensors["residual.weight"] = torch.randn(24, 32)
    said = {"in_features": 32, "out_features": 24, "activation_function": f"torch.nn.modules.activation.{activation}"}
    if activation == "Identity":
        said["activation_function"] = "torch.nn.modules.linear.Identity"
    norm = {"norm.weight": torch.rand(24) + 0.5, "norm.bias": torch.randn(24)}
    steps = [
        pooling("mean"),
        ("Dense", {**said, "bias": True, "use_residual": residual}, tensors),
        ("LayerNorm", {"dimension": 24}, norm),
        ("Normalize", {}, {}),
    ]
    check(make(bert(), steps))


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("name", [None, "query", "long"])
def test_prompts_left_out_of_the_pooling(make: Callable[..., Path], mode: Any, name: str | None) -> None:
    prompts = {"query": "query: ", "long": "Represent this text for search, please: "}
    whole = {"prompts": prompts, "default_prompt_name": "long"}
    folder = make(bert(), [pooling(mode, include_prompt=False)], whole=whole)
    texts = [text for text in TEXTS if text]
    task, other = opened(folder, prompt=name), peer(folder)
    theirs = other.encode(texts, prompt_name=name)
    np.testing.assert_allclose(embed(task, texts), theirs, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(task.embed_query("who?"), other.encode_query("who?"), rtol=2e-4, atol=2e-5)


def test_a_literal_prompt_and_queries_without_one(make: Callable[..., Path]) -> None:
    folder = make(bert(), [pooling("mean")], whole={"prompts": {"p": "passage: "}, "default_prompt_name": "p"})
    task, other = opened(folder, prompt="Title: "), peer(folder)
    np.testing.assert_allclose(embed(task, TEXTS), other.encode(TEXTS, prompt="Title: "), rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(task.embed_query("who?"), other.encode_query("who?"), rtol=2e-4, atol=2e-5)


def test_fewer_dims_point_where_theirs_do_and_have_length_one(make: Callable[..., Path]) -> None:
    folder = make(bert(), [pooling("mean"), ("Normalize", {}, {})])
    ours = embed(opened(folder, dims=8), TEXTS)
    theirs = peer(folder, truncate_dim=8).encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def test_fewer_dims_of_a_model_that_does_not_normalize(make: Callable[..., Path]) -> None:
    check(make(bert(), [pooling("mean")]), {"truncate_dim": 8}, dims=8)


def test_dims_that_the_model_itself_says(make: Callable[..., Path]) -> None:
    check(make(bert(), [pooling("mean")], whole={"truncate_dim": 12}))


def test_a_folder_of_transformers_without_modules(make: Callable[..., Path]) -> None:
    check(make(bert()))


def test_do_lower_case_and_a_short_limit(make: Callable[..., Path]) -> None:
    check(make(bert(), [pooling("mean")], sentence={"do_lower_case": True, "max_seq_length": 9}))


def test_max_tokens_is_their_max_seq_length(make: Callable[..., Path]) -> None:
    folder = make(bert(), [pooling("mean")])
    other = peer(folder)
    other.max_seq_length = 7
    np.testing.assert_allclose(embed(opened(folder, max_tokens=7), TEXTS), other.encode(TEXTS), rtol=2e-4, atol=2e-5)


SMALL = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "vocab_size": 30522,
}


@pytest.mark.parametrize(
    "config",
    [
        transformers.MPNetConfig(**SMALL, max_position_embeddings=80, pad_token_id=0),
        transformers.XLMRobertaConfig(**SMALL, max_position_embeddings=80, pad_token_id=0),
        transformers.ModernBertConfig(**SMALL, max_position_embeddings=80, pad_token_id=0),
        transformers.DistilBertConfig(dim=32, hidden_dim=48, n_layers=2, n_heads=4, max_position_embeddings=80),
    ],
    ids=lambda config: config.model_type,
)
def test_other_encoders(make: Callable[..., Path], config: Any) -> None:
    check(make(config, [pooling("mean")]))


@pytest.mark.parametrize("modules", [[pooling("lasttoken")], None], ids=["modules", "plain"])
def test_a_causal_model(make: Callable[..., Path], modules: Any) -> None:
    config = transformers.Qwen3Config(
        **SMALL, num_key_value_heads=2, head_dim=8, max_position_embeddings=80, pad_token_id=0
    )
    check(make(config, modules, kind=transformers.AutoModelForCausalLM))


def test_the_encoder_half_of_t5(make: Callable[..., Path]) -> None:
    config = transformers.T5Config(vocab_size=30522, d_model=32, d_ff=48, d_kv=8, num_layers=2, num_heads=4)
    check(make(config, [pooling("mean")]))
