"""Scores of pairs equal those of sentence-transformers' CrossEncoder, by whatever computes them, packed or padded."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.tiny_models import (  # isort: skip
    SMALL,
    bert,
    byte_level_bpe,
    fast,
    needed,
    qwen3,
    roberta_tokenizer,
    torch,
    transformers,
    write_model,
    xlm_roberta_tokenizer,
)

from shardmill.core.devices import Device
from shardmill.core.errors import ModelError, SpecError
from shardmill.models.kinds import RERANKER
from shardmill.models.networks.unknown import NotDescribed
from shardmill.models.packed_pairs import PackedPairs, choose_packed
from shardmill.models.pair_golden import golden_pairs
from shardmill.models.pair_networks import read_network
from shardmill.models.pairs import PairModel
from shardmill.models.rerankers.folder import read_reranker
from shardmill.models.torch_pairs import TorchPairs
from shardmill.verbs.embed.task import EmbedTask
from shardmill.verbs.score.task import ScoreTask
from tests.support.answers import passages, write_embedder, write_reranker
from tests.support.families import KINDS

CPU = Device("cpu", "cpu", 1)
QUERY = "When was the harbour of Arden built, and who visits it?"
LONG = " ".join(row["text"] for row in passages()[:8])
PAIRS = [
    (QUERY, "In 1500."),
    (QUERY, LONG),
    (LONG, QUERY),
    (LONG, LONG),
    ("a", "b"),
    (QUERY, "Many people."),
    ("é!", "x"),
]
WORDS = 30522
CLASSIFIER = transformers.AutoModelForSequenceClassification
TEMPLATE = (
    "{%- for m in messages %}{%- if m.role == 'system' %}<i>{{ m.content }}{%- endif %}{%- endfor %}"
    "<q>{{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}"
    "<d>{{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }} Relevant? "
)


def _bpe(template: str | None = None) -> Any:
    made = fast(byte_level_bpe(), pad_token="<|endoftext|>", eos_token="<|endoftext|>")
    made.add_tokens(["yes", "no", "<|im_start|>", "<|im_end|>"])
    made.chat_template = template
    return made


def _small(kind: str, **options: Any) -> Any:
    usual = {**SMALL, "vocab_size": WORDS, "max_position_embeddings": 130, "num_labels": 1}
    return transformers.AutoConfig.for_model(kind, **{**usual, **options})


def _distilbert() -> Any:
    sizes = {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "vocab_size": WORDS}
    return transformers.DistilBertConfig(**sizes, max_position_embeddings=130, num_labels=1)


def _deberta() -> Any:
    reach = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}
    return _small("deberta-v2", type_vocab_size=0, max_relative_positions=-1, **reach)


def _modernbert(pooling: str) -> Any:
    ends = {"pad_token_id": 0, "cls_token_id": 101, "sep_token_id": 102, "bos_token_id": 101, "eos_token_id": 102}
    return _small("modernbert", classifier_pooling=pooling, local_attention=16, global_attn_every_n_layers=2, **ends)


# A config, a tokenizer, and whether it runs packed.
FAMILIES: dict[str, tuple[Callable[[], Any], Callable[[], Any], bool]] = {
    "bert": (lambda: _small("bert"), lambda: None, True),
    "three labels": (lambda: _small("bert", num_labels=3), lambda: None, True),
    "roberta": (lambda: _small("roberta", pad_token_id=1), roberta_tokenizer, True),
    "xlm-roberta": (lambda: _small("xlm-roberta", pad_token_id=1), xlm_roberta_tokenizer, True),
    "electra": (lambda: _small("electra", embedding_size=32), lambda: None, True),
    "albert": (lambda: _small("albert", embedding_size=32, pad_token_id=0), lambda: None, True),
    "distilbert": (_distilbert, lambda: None, True),
    "modernbert": (lambda: _modernbert("cls"), lambda: None, True),
    "modernbert, mean": (lambda: _modernbert("mean"), lambda: None, True),
    "deberta": (_deberta, lambda: None, False),
    "qwen3, classifier": (lambda: qwen3(num_labels=1, pad_token_id=0), lambda: None, True),
}


def _predict(folder: Path, **options: Any) -> Any:
    cross = needed("sentence_transformers").CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
    return cross.predict(PAIRS, batch_size=3, show_progress_bar=False, **options)


def _score(folder: Path, network: Any = None, **params: Any) -> tuple[Any, int]:
    """The scores by the task, and how many pairs were cut."""
    task = ScoreTask(model=str(folder), query_text="q", **params)
    task.open(CPU)
    assert task._model is not None
    task._model._network = network or task._model._network
    prepared = task.prepare([b for _, b in PAIRS], pa.record_batch({"q": [a for a, _ in PAIRS]}))
    assert not prepared.bad
    return np.array(task.run(prepared.inputs).rows.column(0).to_pylist(), np.float32), prepared.truncated


def test_the_families_are_those_of_the_table() -> None:
    names = {family.partition(",")[0] for family in FAMILIES} - {"three labels"}
    assert names == {*KINDS["re-rankers"].families}


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_equal_those_of_sentence_transformers(family: str, tmp_path: Path) -> None:
    config, tokenizer, packs = FAMILIES[family]
    folder = write_model(tmp_path / "ranker", config(), kind=CLASSIFIER, tokenizer=tokenizer())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": 128}))
    with pytest.raises(NotDescribed) if family.partition(",")[0] in KINDS["re-rankers"].heavy else nullcontext():
        read_network(folder, RERANKER)
    due = _predict(folder)
    scores, cut = _score(folder)
    assert cut == 3
    np.testing.assert_allclose(scores, due, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(_score(folder, TorchPairs(folder, RERANKER, CPU))[0], due, rtol=1e-4, atol=1e-4)
    if packs:
        packed = PackedPairs(folder, RERANKER, CPU)
        packed.longest, packed.known_ids = 128, WORDS
        np.testing.assert_allclose(_score(folder, packed)[0], due, rtol=1e-4, atol=1e-4)


def test_a_family_that_cannot_be_packed_runs_padded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice of a GPU, in float32 on the CPU."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch, "float16", torch.float32)
    for name, packs in (("bert", True), ("deberta", False)):
        folder = write_model(tmp_path / name, FAMILIES[name][0](), kind=CLASSIFIER)
        model = PairModel(folder, RERANKER, CPU)
        plain = TorchPairs(folder, RERANKER, CPU)
        found, why = choose_packed(folder, RERANKER, CPU, plain, golden_pairs(model._tokens, 128))
        assert (found.padded, bool(why)) == (not packs, not packs), why


@pytest.mark.parametrize("activation", ["Identity", "Tanh", "Sigmoid"])
def test_the_activation_is_the_models(activation: str, tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "ranker")
    config = json.loads((folder / "config.json").read_text())
    named = {"activation_fn": f"torch.nn.modules.activation.{activation}"}
    if activation == "Identity":
        named = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (folder / "config.json").write_text(json.dumps({**config, "sentence_transformers": named}))
    np.testing.assert_allclose(_score(folder)[0], _predict(folder), rtol=1e-4, atol=1e-4)
    older = {"sbert_ce_default_activation_function": next(iter(named.values()))}
    (folder / "config.json").write_text(json.dumps({**config, **older}))
    np.testing.assert_allclose(_score(folder)[0], _predict(folder), rtol=1e-4, atol=1e-4)


def test_an_activation_of_ones_own_is_refused(tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "ranker")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "sentence_transformers": {"activation_fn": "torch.X"}}))
    with pytest.raises(ModelError, match="has the activation X, which shardmill does not support"):
        ScoreTask(model=str(folder), query_text="q").fingerprint()


def _saved(folder: Path, prompt: str = "", template: str | None = TEMPLATE, length: int = 128) -> Path:
    """A causal re-ranker as sentence-transformers saves it."""
    cross = needed("sentence_transformers").CrossEncoder
    plain = write_model(
        folder / "plain", qwen3(), kind=transformers.AutoModelForCausalLM, tokenizer=_bpe(template), scale=3
    )
    prompts = {"prompts": {"web": prompt}, "default_prompt_name": "web"} if prompt else {}
    made = cross(str(plain), device="cpu", max_length=length, model_kwargs={"dtype": "float32"}, **prompts)
    made.save_pretrained(str(folder / "saved"))
    return folder / "saved"


@pytest.mark.parametrize("prompt", ["", "Find the year."])
def test_a_causal_reranker_as_sentence_transformers_saves_it(prompt: str, tmp_path: Path) -> None:
    folder = _saved(tmp_path, prompt)
    due = _predict(folder)
    assert np.ptp(due) > 0.2
    scores, cut = _score(folder)
    assert cut == 3
    np.testing.assert_allclose(scores, due, rtol=1e-4, atol=1e-4)
    kind = read_reranker(folder).kind
    model = PairModel(folder, RERANKER, CPU)
    packed = PackedPairs(folder, kind, CPU, model._network._words)  # type: ignore[attr-defined]
    packed.longest, packed.known_ids = 128, WORDS
    np.testing.assert_allclose(_score(folder, packed)[0], due, rtol=1e-4, atol=1e-4)
    if prompt:
        np.testing.assert_allclose(_score(folder, prompt="web")[0], due, rtol=1e-4, atol=1e-4)
        other = _predict(folder, prompt="Find the visitors.")
        np.testing.assert_allclose(_score(folder, prompt="Find the visitors.")[0], other, rtol=1e-4, atol=1e-4)
    # `answer --rerank` ranks by the same logits.
    pairs = model.encode(*zip(*PAIRS, strict=True))
    seen = 1 / (1 + np.exp(-model.score(pairs)))
    if not prompt:
        np.testing.assert_allclose(seen, due, rtol=1e-4, atol=1e-4)


def test_qwen3_reranker_without_files_of_sentence_transformers(tmp_path: Path) -> None:
    """As the card of that model computes it."""
    from shardmill.models.rerankers import prompting

    folder = write_model(
        tmp_path / "qwen", qwen3(max_position_embeddings=600), kind=transformers.AutoModelForCausalLM, tokenizer=_bpe()
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    model = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    before, after = (tokenizer.encode(t, add_special_tokens=False) for t in (prompting._BEFORE, prompting._AFTER))
    due = []
    for query, text in PAIRS:
        body = f"<Instruct>: {prompting._INSTRUCT}\n<Query>: {query}\n<Document>: {text}"
        ids = tokenizer(body, add_special_tokens=False, truncation=True, max_length=600 - len(before) - len(after))
        with torch.inference_mode():
            last = model(torch.tensor([[*before, *ids.input_ids, *after]])).logits[0, -1]
        two = torch.stack([last[tokenizer.convert_tokens_to_ids(word)] for word in ("no", "yes")])
        due.append(float(two.softmax(0)[1]))
    scores, cut = _score(folder)
    assert cut > 0
    np.testing.assert_allclose(scores, due, rtol=1e-4, atol=1e-4)
    [note] = ScoreTask(model=str(folder), query_text="q").plan_notes
    assert "qwen has no template for pairs: each is put into the prompt of Qwen3-Reranker" in note


def test_a_cross_encoder_as_sentence_transformers_saves_it(tmp_path: Path) -> None:
    cross = needed("sentence_transformers").CrossEncoder
    made = cross(str(write_reranker(tmp_path / "plain")), device="cpu", max_length=40)
    made.set_activation_fn = None
    made.activation_fn = torch.nn.Tanh()
    made.save_pretrained(str(tmp_path / "saved"))
    due = _predict(tmp_path / "saved")
    scores, cut = _score(tmp_path / "saved")
    np.testing.assert_allclose(scores, due, rtol=1e-4, atol=1e-4)
    assert cut == 3
    with pytest.raises(ModelError, match=r"(?s)saved makes no vectors.*shardmill score"):
        EmbedTask(model=str(tmp_path / "saved")).fingerprint()


def test_the_wrong_models_are_refused(tmp_path: Path) -> None:
    def refusal(folder: Path, **params: Any) -> str:
        with pytest.raises((ModelError, SpecError)) as found:
            ScoreTask(model=str(folder), **{"query_text": "q", **params}).fingerprint()
        return f"{found.value.message} {found.value.hint}"

    said = refusal(write_embedder(tmp_path / "embedder"))
    assert "embedder is no cross-encoder" in said
    assert "`shardmill embed --model`" in said
    three = write_model(tmp_path / "three", bert(vocab_size=WORDS, num_labels=3), kind=CLASSIFIER)
    assert "three gives 3 numbers for a pair" in refusal(three, query_text="", candidates="c")
    llama = transformers.LlamaConfig(**SMALL, vocab_size=WORDS)
    causal = transformers.AutoModelForCausalLM
    said = refusal(write_model(tmp_path / "llama", llama, kind=causal, tokenizer=_bpe()))
    assert "llama is no cross-encoder" in said
    assert "`shardmill generate --model`" in said


def test_a_prompt_of_a_cross_encoder_is_before_the_first_text(tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "ranker")
    np.testing.assert_allclose(
        _score(folder, prompt="Ask: ")[0], _predict(folder, prompt="Ask: "), rtol=1e-4, atol=1e-4
    )
