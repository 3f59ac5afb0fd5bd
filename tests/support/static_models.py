"""Tiny static embeddings, in folders as model2vec and sentence-transformers write them, and what they mean."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.libraries import needed

tokenizers = needed("tokenizers")
save_file = needed("safetensors.numpy").save_file

ST = "sentence_transformers.models."
WIDTH = 12
CORPUS = [
    "The battery died after an hour, and the charger was never in the box at all.",
    "Поезд ушёл в восемь утра; naïve café, Übergröße, 漢字と仮名, مرحبا بالعالم.",
    "for (int i = 0; i < n; ++i) { sum += a[i] * 1.5e-3; } // it's, they're, I'll",
    "A train left Lyon at 08:14 and reached Turin late; nobody on board had been told why.",
] * 3


@cache
def _trained() -> str:
    """Another training may number the pieces otherwise."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = tokenizers.normalizers.BertNormalizer()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=400, special_tokens=specials, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return str(backend.to_str())


def word_piece(**more: Any) -> Any:
    """As BERT has it: with pieces of words, [CLS] and [SEP] around a text, cut at 128 and padded."""
    backend = tokenizers.Tokenizer.from_str(_trained())
    backend.enable_truncation(**{"max_length": 128, **more})
    backend.enable_padding(length=128)
    return backend


def unigram() -> Any:
    """As XLM-R has it, and as models of many languages are distilled."""
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram())
    backend.normalizer = tokenizers.normalizers.NFKC()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=250, special_tokens=["<pad>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def words() -> Any:
    """Whole words only, in lower case."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="[UNK]"))
    backend.normalizer = tokenizers.normalizers.Lowercase()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    trainer = tokenizers.trainers.WordLevelTrainer(special_tokens=["[UNK]"], show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def vectors_for(backend: Any, width: int = WIDTH) -> NDArray[np.float32]:
    return np.random.default_rng(7).standard_normal((backend.get_vocab_size(), width)).astype(np.float32)


def write_model2vec(
    folder: Path, backend: Any, tensors: dict[str, Any] | None = None, *, listed: bool = True, **config: Any
) -> Path:
    """A folder of model2vec; older versions listed no modules."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors or {"embeddings": vectors_for(backend)}, folder / "model.safetensors")
    backend.save(str(folder / "tokenizer.json"))
    said = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": True, **config}
    (folder / "config.json").write_text(json.dumps(said))
    if listed:
        steps = [("1_Normalize", "Normalize")] if said["normalize"] else []
        _list(folder, [(".", "StaticEmbedding"), *steps])
    return folder


def write_static(
    folder: Path, backend: Any, *more: str, prompts: dict[str, str] | None = None, below: str = ""
) -> Path:
    """A folder of sentence-transformers: StaticEmbedding and then modules without weights."""
    (folder / below).mkdir(parents=True, exist_ok=True)
    save_file({"embedding.weight": vectors_for(backend)}, folder / below / "model.safetensors")
    backend.save(str(folder / below / "tokenizer.json"))
    _list(folder, [(below, "StaticEmbedding"), *((f"{n}_{name}", name) for n, name in enumerate(more, 1))])
    for n, name in enumerate(more, 1):
        (folder / f"{n}_{name}").mkdir()
        (folder / f"{n}_{name}" / "config.json").write_text("{}")
    whole = {"prompts": prompts or {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(whole))
    return folder


def _list(folder: Path, modules: list[tuple[str, str]]) -> None:
    listed = [{"idx": n, "name": str(n), "path": path, "type": ST + kind} for n, (path, kind) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(listed))


def by_model2vec(
    text: str,
    backend: Any,
    table: NDArray[Any],
    *,
    weights: NDArray[Any] | None = None,
    mapping: NDArray[Any] | None = None,
    unknown: int | None = None,
    longest: int | None = 512,
    normalize: bool = True,
) -> NDArray[np.float64]:
    """What model2vec 0.10 computes, in float64, from its rules in words; zeros for a text without tokens."""
    plain = tokenizers.Tokenizer.from_str(backend.to_str())
    plain.no_padding()
    plain.no_truncation()
    if longest is not None:
        text = text[: longest * int(np.median([len(token) for token in plain.get_vocab()]))]
    ids = plain.encode(text, add_special_tokens=False).ids[:longest]
    ids = [i for i in ids if i != unknown]
    if not ids:
        return np.zeros(table.shape[1])
    found = table[ids if mapping is None else mapping[ids]].astype(np.float64)
    mean: NDArray[np.float64] = (found if weights is None else found * weights[ids, None]).mean(axis=0)
    return mean / np.linalg.norm(mean) if normalize else mean
