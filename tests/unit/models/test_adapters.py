"""LoRA adapters are merged as PEFT merges them; what cannot be merged, or belongs to another model, is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardmill.core.errors import ModelError, SpecError
from shardmill.models.adapters.lora import read_lora
from shardmill.models.embedder import TextEmbedder
from shardmill.models.location import find_model
from shardmill.verbs.generate.task import GenerateTask
from tests.support.adapters import RANK, linear, load_file, same, save_file, torch, write_adapter, write_merged
from tests.support.tiny_models import bert, pooling, transformers, write_model

QUERY = "encoder.layer.0.attention.self.query"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base") / "bert", bert(), [pooling("mean")], scale=1)


def weights(base: Path, adapter: Path | None) -> dict[str, Any]:
    found: dict[str, Any] = load_file(find_model(str(base), str(adapter)).path / "model.safetensors")
    return found


def agree(base: Path, adapter: Path, merged: Path) -> None:
    wanted, made = load_file(merged / "model.safetensors"), weights(base, adapter)
    assert made.keys() == wanted.keys()
    for name, weight in wanted.items():
        torch.testing.assert_close(made[name], weight, rtol=1e-6, atol=1e-6, msg=name)


@pytest.mark.parametrize("before", ["", "bert."])
@pytest.mark.parametrize(("settings", "scale"), [({}, 2.0), ({"use_rslora": True}, 4.0), ({"lora_alpha": 1}, 0.25)])
def test_factors_are_added_with_their_scale(
    base: Path, before: str, settings: dict[str, Any], scale: float, tmp_path: Path
) -> None:
    modules = same(*linear(base, "query", "dense"), before=before)
    adapter = write_adapter(tmp_path / "adapter", base, modules, target_modules="all-linear", **settings)
    agree(base, adapter, write_merged(tmp_path / "merged", base, adapter, modules, scale))


def test_names_of_the_base_model_may_be_longer(tmp_path: Path) -> None:
    whole = write_model(tmp_path / "base", bert(), kind=transformers.AutoModelForMaskedLM, scale=1)
    modules = {QUERY: f"bert.{QUERY}"}
    adapter = write_adapter(tmp_path / "adapter", whole, modules)
    agree(whole, adapter, write_merged(tmp_path / "merged", whole, adapter, modules))


def test_patterns_give_modules_their_own_rank_and_alpha(base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(
        *(tmp_path / "adapter", base, same(QUERY)),
        r=16,
        rank_pattern={"key": 3, r"layer\.0\..*query": RANK},
        alpha_pattern={"self.query": 6},
    )
    assert read_lora(adapter).changes[f"{QUERY}.weight"].scale == 6 / RANK


def test_weights_that_lie_the_other_way(tmp_path: Path) -> None:
    config = transformers.GPT2Config(vocab_size=30522, n_embd=32, n_layer=1, n_head=4, n_positions=64)
    gpt = write_model(tmp_path / "gpt2", config, scale=1)
    for name in ("h.0.attn.c_attn", "h.0.attn.c_proj"):  # The second one is square.
        adapter = write_adapter(tmp_path / name, gpt, same(name), fan_in_fan_out=True)
        agree(gpt, adapter, write_merged(tmp_path / f"{name}-merged", gpt, adapter, same(name), turned=True))


def test_dora_sets_the_norm_of_each_row(base: Path, tmp_path: Path) -> None:
    norms = torch.rand(32) + 0.5
    more = {f"base_model.model.{QUERY}.lora_magnitude_vector": norms}
    adapter = write_adapter(tmp_path / "adapter", base, same(QUERY), more=more, use_dora=True)
    plain = load_file(write_merged(tmp_path / "merged", base, adapter, same(QUERY)) / "model.safetensors")
    wanted = torch.nn.functional.normalize(plain[f"{QUERY}.weight"], dim=1) * norms[:, None]
    torch.testing.assert_close(weights(base, adapter)[f"{QUERY}.weight"], wanted, rtol=1e-5, atol=1e-6)


def test_biases_and_words(base: Path, tmp_path: Path) -> None:
    words = "embeddings.word_embeddings"
    a, b = torch.randn(RANK, 30522), torch.randn(32, RANK)
    more = {
        f"base_model.model.{QUERY}.bias": torch.arange(32.0),
        f"base_model.model.{words}.lora_embedding_A": a,
        f"base_model.model.{words}.lora_embedding_B": b,
    }
    made = weights(base, write_adapter(tmp_path / "adapter", base, same(QUERY), more=more, bias="lora_only"))
    before = load_file(base / "model.safetensors")[f"{words}.weight"]
    torch.testing.assert_close(made[f"{words}.weight"], before + 2 * (b @ a).T, rtol=1e-5, atol=1e-5)
    assert torch.equal(made[f"{QUERY}.bias"], torch.arange(32.0))


def test_half_precision_is_merged_in_float32(tmp_path: Path) -> None:
    half = write_model(tmp_path / "base", bert(dtype="bfloat16"), scale=1)
    adapter = write_adapter(tmp_path / "adapter", half, same(QUERY))
    made = weights(half, adapter)
    assert {name for name, weight in made.items() if weight.dtype == torch.float32} == {f"{QUERY}.weight"}
    merged = load_file(write_merged(tmp_path / "merged", half, adapter, same(QUERY)) / "model.safetensors")
    torch.testing.assert_close(made[f"{QUERY}.weight"], merged[f"{QUERY}.weight"], rtol=1e-6, atol=1e-6)


def test_a_head_makes_a_classifier_of_a_base_model(base: Path, tmp_path: Path) -> None:
    more = {
        "base_model.model.classifier.weight": torch.randn(3, 32),
        "base_model.model.classifier.bias": torch.zeros(3),
    }
    modules = same(QUERY, before="bert.")
    adapter = write_adapter(
        *(tmp_path / "adapter", base, modules), more=more, task_type="SEQ_CLS", modules_to_save=["classifier"]
    )
    found = find_model(str(base), str(adapter)).path
    model, report = transformers.AutoModelForSequenceClassification.from_pretrained(found, output_loading_info=True)
    assert not report["missing_keys"]
    assert model.config.num_labels == 3
    assert torch.equal(model.classifier.weight.detach(), more["base_model.model.classifier.weight"])


def test_an_adapter_finds_its_base_and_says_what_it_was_made_of(base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", base, same(QUERY))
    both, alone, plain = find_model(str(base), str(adapter)), find_model(str(adapter)), find_model(str(base))
    assert both == alone
    assert both.digests().keys() - plain.digests().keys() == {"adapter"}
    assert {**both.digests(), **plain.digests()} == both.digests()
    other = find_model(str(base), str(write_adapter(tmp_path / "other", base, same(QUERY), seed=4)))
    assert other.digests()["adapter"] != both.digests()["adapter"]
    (both.path / "model.safetensors").write_bytes(b"damaged")
    assert find_model(str(adapter)).path == both.path
    assert f"{QUERY}.weight" in load_file(both.path / "model.safetensors")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_type": "IA3"}, "the kind IA3"),
        ({"peft_type": "PROMPT_TUNING"}, "the kind PROMPT_TUNING"),
        ({"init_lora_weights": "pissa"}, "begun with 'pissa'"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"r": 8}, "contradicts itself"),
        ({"r": None}, "no rank or alpha that is a number"),
        ({"lora_alpha": "much"}, "no rank or alpha that is a number"),
        ({"rank_pattern": [1]}, "no rank or alpha that is a number"),
        ({"alpha_pattern": {"(": 1}}, "no rank or alpha that is a number"),
    ],
)
def test_what_cannot_be_merged_is_refused_by_name(
    base: Path, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "adapter", base, same(QUERY))
    there = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**there, **settings}))
    with pytest.raises(ModelError, match=said):
        find_model(str(base), str(adapter))


def test_adapters_of_other_models_are_refused(base: Path, tmp_path: Path) -> None:
    wide = write_model(tmp_path / "wide", bert(hidden_size=40), [pooling("mean")], scale=1)
    with pytest.raises(ModelError, match=r"does not fit bert: .*query is 32 x 32 there, .* made for 40 x 40 .*wide"):
        TextEmbedder(str(base), adapter=str(write_adapter(tmp_path / "a", wide, same(QUERY)))).fingerprint()
    adapter = write_adapter(tmp_path / "b", base, {"model.layers.0.self_attn.q_proj": QUERY})
    head = {"base_model.model.lm_head.weight": torch.zeros(4, 32)}
    with pytest.raises(ModelError, match=r"has lm_head\.weight, which bert does not"):
        find_model(str(base), str(write_adapter(tmp_path / "c", base, same(QUERY), more=head)))
    with pytest.raises(ModelError, match=r"has model\.layers\.0\.self_attn\.q_proj\.weight, which bert does not"):
        find_model(str(base), str(adapter))


def test_what_is_no_adapter_is_refused(base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", base, same(QUERY), base_model_name_or_path="hub/name")
    with pytest.raises(ModelError, match=r"its base model 'hub/name' is no folder here"):
        find_model(str(adapter))
    with pytest.raises(ModelError, match="is an adapter itself"):
        find_model(str(adapter), str(adapter))
    with pytest.raises(ModelError, match=r"bert has no adapter_config\.json"):
        find_model(str(base), str(base))
    factors = load_file(adapter / "adapter_model.safetensors")
    save_file({name: each * float("nan") for name, each in factors.items()}, adapter / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"query\.weight has NaN or infinity when adapter is merged"):
        find_model(str(base), str(adapter))
    whole = (adapter / "adapter_model.safetensors").read_bytes()
    (adapter / "adapter_model.safetensors").write_bytes(whole[:-10])
    with pytest.raises(ModelError, match="cannot be read"):
        find_model(str(base), str(adapter))
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"only adapter_model\.bin"):
        find_model(str(base), str(adapter))
    save_file({"base_model.model.x.hada_w1_a": torch.zeros(2, 2)}, adapter / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="no factors of LoRA"):
        find_model(str(base), str(adapter))
    task = GenerateTask(model="m", endpoint="http://localhost:1/v1", adapter=str(adapter))
    with pytest.raises(SpecError, match="An adapter is given with an endpoint"):
        task.fingerprint()


def test_as_peft_merges(base: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    asked: list[dict[str, Any]] = [
        {"target_modules": "all-linear"},
        {"target_modules": ["query", "word_embeddings"], "use_rslora": True, "rank_pattern": {"query": 3}},
        {"target_modules": ["query", "value"], "use_dora": True},
        {"target_modules": ["dense"], "bias": "all", "alpha_pattern": {"dense": 5}},
    ]
    for n, options in enumerate(asked):
        model = transformers.AutoModel.from_pretrained(base)
        config = peft.LoraConfig(r=RANK, lora_alpha=8, init_lora_weights=False, **options)
        adapted = peft.get_peft_model(model, config)
        with torch.no_grad():
            for weight in adapted.parameters():
                if weight.requires_grad:
                    weight.add_(0.1 * torch.randn_like(weight))
        adapted.save_pretrained(tmp_path / f"{n}")
        made = weights(base, tmp_path / f"{n}")
        for name, weight in adapted.merge_and_unload().state_dict().items():
            if name in made:
                torch.testing.assert_close(made[name], weight, rtol=1e-5, atol=1e-6, msg=name)
