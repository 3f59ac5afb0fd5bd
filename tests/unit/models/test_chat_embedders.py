"""Embedders that take messages of a chat give the vectors of sentence-transformers, which saved them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_models import bert, byte_level_bpe, fast, minilm_backend, needed, qwen3

transformers, sentence_transformers = needed("transformers"), needed("sentence_transformers")
torch = needed("torch")

from shardmill.core.devices import Device  # noqa: E402
from shardmill.core.errors import ModelError, SpecError  # noqa: E402
from shardmill.models.embedder import TextEmbedder  # noqa: E402
from shardmill.models.folder import read_folder  # noqa: E402
from shardmill.verbs.embed.windows import Cutter  # noqa: E402

CPU = Device("cpu", "cpu", 1, precise=True)
FLAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>\n{% endfor %}"
ENDING = FLAT + "{% if add_generation_prompt %}<|assistant|>{% endif %}<|close|>"
PARTED = (
    "{% for m in messages %}<|{{ m.role }}|>{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}"
    "{% endfor %}<|end|>{% endfor %}<|assistant|>"
)
SHORT = "{{ messages[-1].content }}"
TEXTS = [
    "The battery died after an hour.",
    "  Blanks around it.  ",
    "x",
    "",
    "A special <|end|> token inside, and <|system|> another.",
    "Поезд ушёл в восемь утра; naïve café, 漢字と仮名 👩‍👩‍👧",
    "A long text that is cut, word after word, until its end is far away from where it began. " * 6,
    "for (int i = 0; i < n; ++i) { sum += a[i]; }\n" * 300,
]
SPECIAL = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|close|>"]


def _save(
    root: Path,
    template: str,
    *,
    kind: str = "qwen3",
    mode: str = "lasttoken",
    limit: int = 48,
    processing: dict[str, Any] | None = None,
    side: str = "right",
) -> tuple[Path, Any]:
    """A tiny model as sentence-transformers saves it, and sentence-transformers' own."""
    torch.manual_seed(3)
    if kind == "qwen3":
        tokenizer = fast(byte_level_bpe(), eos_token="<|endoftext|>", pad_token="<|endoftext|>", truncation_side=side)
    else:
        names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
        tokenizer = fast(minilm_backend(), truncation_side=side, **names)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.chat_template = template
    make = qwen3 if kind == "qwen3" else bert
    model = transformers.AutoModel.from_config(make(vocab_size=len(tokenizer)))
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(4)
    model.save_pretrained(root / "plain")
    tokenizer.save_pretrained(root / "plain")
    parts = sentence_transformers.sentence_transformer.modules
    first = parts.Transformer(str(root / "plain"), max_seq_length=limit, processing_kwargs=processing)
    assert "message" in first.modality_config
    made = sentence_transformers.SentenceTransformer(
        modules=[first, parts.Pooling(32, pooling_mode=mode)],
        device="cpu",
        prompts={"query": "Find what fits:", "document": ""},
    )
    made.save(str(root / "saved"))
    return root / "saved", made


CASES: dict[str, dict[str, Any]] = {
    "flat": {"template": FLAT},
    "with an end": {"template": ENDING},
    "with a generation prompt": {
        "template": ENDING,
        "processing": {"chat_template": {"add_generation_prompt": True}},
    },
    "with a cut end": {"template": ENDING, "processing": {"chat_template": {"restore_suffix": False}}},
    "in parts": {"template": PARTED},
    "the text alone": {"template": SHORT},
    "mean": {"template": FLAT, "mode": "mean"},
    "a limit of most": {"template": ENDING, "limit": 500},
    "a limit below the end": {"template": ENDING, "limit": 2},
    "cut from the left": {"template": ENDING, "side": "left"},
    "bert": {"template": ENDING, "kind": "bert", "mode": "cls"},
    "bert in parts": {"template": PARTED, "kind": "bert", "mode": "mean", "limit": 20},
}


@pytest.mark.parametrize("name", CASES)
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path, name: str) -> None:
    folder, made = _save(tmp_path, **CASES[name])
    again = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    # Of a text without a token, sentence-transformers makes a vector of padding.
    texts = [text for text in TEXTS if text] if CASES[name]["template"] == SHORT else TEXTS
    prompts: dict[str, dict[str, str]] = {
        "": {},
        "Find what fits:": {"prompt_name": "query"},
        "Be brief.": {"prompt": "Be brief."},
    }
    for prompt, said in prompts.items():
        embedder = TextEmbedder(str(folder), prompt=prompt)
        embedder.open(CPU)
        due = np.stack([again.encode(text, show_progress_bar=False, **said) for text in texts])
        np.testing.assert_allclose(due, [made.encode(t, show_progress_bar=False, **said) for t in texts], atol=1e-5)
        seen = embedder.embed_texts(texts)
        np.testing.assert_allclose(seen, due, rtol=1e-3, atol=1e-3)
        tokens = embedder.encode(texts)
        assert tokens.truncated >= 1
        for text, row in zip(texts, tokens.rows, strict=True):
            ids = again.preprocess([text], prompt=prompt or None)["input_ids"][0]
            assert row.tolist() == ids.tolist(), text[:60]


def test_a_text_without_a_template_is_unlike_one_with_it(tmp_path: Path) -> None:
    folder, _ = _save(tmp_path, FLAT)
    at = folder / "sentence_bert_config.json"
    said = json.loads(at.read_text())
    del said["modality_config"]["message"]
    with_chat = TextEmbedder(str(folder)).encode(["x"]).rows[0].tolist()
    at.write_text(json.dumps(said))
    assert TextEmbedder(str(folder)).encode(["x"]).rows[0].tolist() != with_chat


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"processing_kwargs": {"chat_template": {"max_length": 9}}}, "gives its chat template max_length"),
        ({"processing_kwargs": {"text": {"max_length": 9}}}, "sets max_length in processing_kwargs"),
        (
            {"modality_config": {"message": {"method": "forward", "method_output_name": "pooler_output"}}},
            "an output other than last_hidden_state",
        ),
    ],
)
def test_settings_that_are_not_supported_are_named(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    folder, _ = _save(tmp_path, FLAT)
    at = folder / "sentence_bert_config.json"
    at.write_text(json.dumps(json.loads(at.read_text()) | change))
    with pytest.raises(ModelError, match=why):
        read_folder(folder)


def test_templates_that_are_not_supported_are_named(tmp_path: Path) -> None:
    folder, _ = _save(tmp_path, FLAT)
    (folder / "chat_template.jinja").write_text("{% if task == 'query' %}q{% endif %}" + FLAT)
    with pytest.raises(ModelError, match="depends on the task"):
        _ = TextEmbedder(str(folder)).tokenizer
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no system') }}")
    with pytest.raises(ModelError, match="chat template of saved fails: no system"):
        TextEmbedder(str(folder)).encode(["x"])


def test_windows_are_refused(tmp_path: Path) -> None:
    folder, _ = _save(tmp_path, FLAT)
    with pytest.raises(SpecError, match="message of a chat, which windows do not support"):
        Cutter(TextEmbedder(str(folder)).tokenizer, "", 20, 4)
