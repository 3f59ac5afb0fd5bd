"""Tiny models of sparse vectors with random weights, as transformers and sentence-transformers write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.classifiers import FAMILIES
from tests.support.libraries import needed
from tests.support.tiny_models import SMALL, torch, write_model

transformers = needed("transformers")

TOKENS = 48
# Families whose masked language model is known, beside those of classifiers.
_MASKED: dict[str, tuple[str, dict[str, Any], Any]] = {
    **FAMILIES,
    "albert": ("Albert", {"embedding_size": 16}, lambda: None),
    "camembert": ("Camembert", {"type_vocab_size": 1, "pad_token_id": 0}, lambda: None),
    "electra": ("Electra", {"embedding_size": 16}, lambda: None),
    "mpnet": ("MPNet", {}, lambda: None),
}
PACKAGE = "sentence_transformers.sparse_encoder.models."
TEXTS = [
    "The battery died after an hour, and the charger was never in the box at all.",
    "Поезд ушёл в восемь утра; naïve café, Übergröße.",
    "Yes.",
    "",
    "A train left Lyon at 08:14 and reached Turin late; nobody on board had been told why. " * 8,
    "for (int i = 0; i < n; ++i)",
]


def write_masked(folder: Path, family: str = "bert", **options: Any) -> Path:
    """A plain masked language model of TOKENS tokens at most. Its logits are below 0 for most words."""
    prefix, usual, tokenizer = _MASKED[family]
    own = tokenizer()
    said = {"max_position_embeddings": 80, **({} if own is None else {"vocab_size": len(own)})}
    small = {} if family == "distilbert" else SMALL
    config = getattr(transformers, f"{prefix}Config")(**{**small, **said, **usual, **options})
    write_model(folder, config, kind=transformers.AutoModelForMaskedLM, tokenizer=own, scale=3)
    _lower(folder, config.vocab_size)
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "model_max_length": TOKENS}))
    return folder


def _lower(folder: Path, words: int) -> None:
    """Give all words a negative bias: few logits are above 0, as in a trained model."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    ids = torch.randint(words, (4, 16), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        model.get_output_embeddings().bias -= torch.quantile(logits.flatten()[:: max(1, logits.numel() // 10**6)], 0.98)
    model.save_pretrained(folder)


def write_splade(
    folder: Path, family: str = "bert", pooling: str = "max", activation: str = "relu", **options: Any
) -> Path:
    """The same, as versions up to 5 of sentence-transformers save a SparseEncoder. `whole` is its own config."""
    whole = options.pop("whole", {})
    write_masked(folder, family, **options)
    (folder / "1_SpladePooling").mkdir()
    said = {"pooling_strategy": pooling, "activation_function": activation, "word_embedding_dimension": None}
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(said))
    listed = [("", "MLMTransformer"), ("1_SpladePooling", "SpladePooling")]
    modules = [{"idx": i, "name": str(i), "path": p, "type": PACKAGE + kind} for i, (p, kind) in enumerate(listed)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": TOKENS}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "SparseEncoder", **whole}))
    return folder


def write_router(folder: Path) -> Path:
    """One whose queries are a table of weights, as sentence-transformers saves it."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding

    documents = SparseEncoder(str(write_splade(folder.with_name(f"{folder.name}-documents"))), device="cpu")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder.with_name(f"{folder.name}-documents"))
    weights = torch.rand(len(tokenizer.get_vocab()), generator=torch.Generator().manual_seed(3))
    queries = SparseStaticEmbedding(tokenizer, weight=weights)
    router = Router.for_query_document(query_modules=[queries], document_modules=list(documents))
    SparseEncoder(modules=[router], device="cpu").save_pretrained(str(folder))
    return folder
