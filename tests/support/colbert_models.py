"""Tiny models of token vectors with random weights, as PyLate, colbert-ai and sentence-transformers save them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.classifiers import FAMILIES
from tests.support.libraries import needed
from tests.support.sparse_models import TEXTS as SOME
from tests.support.tiny_models import MINILM, SMALL, WIDTH, save_file, torch, write_model

transformers = needed("transformers")

DIMS, LONGEST, QUERY = 16, 40, 12
TEXTS = [*SOME, "...", "Wait - what?! (No.)", "[SEP] and [MASK] in a text"]
QUERIES = ["When did the battery die?", "rain", "", "Who had been told why the train left Lyon at 08:14, and was late?"]


def write_pylate(
    folder: Path, family: str = "bert", prefixes: tuple[str, str] = ("[Q] ", "[D] "), **whole: Any
) -> Path:
    """As PyLate saves it: a transformer and a Dense layer, and the rest in config_sentence_transformers.json."""
    _write_transformer(folder, family, list(prefixes))
    listed = [("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense")]
    modules = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(listed)]
    (folder / "1_Dense").mkdir()
    said = {"in_features": WIDTH, "out_features": DIMS, "bias": False, "use_residual": False}
    said["activation_function"] = "torch.nn.modules.linear.Identity"
    (folder / "1_Dense" / "config.json").write_text(json.dumps(said))
    save_file({"linear.weight": _matrix()}, folder / "1_Dense" / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": QUERY - 1, "do_lower_case": False}))
    usual = {
        "query_prefix": prefixes[0],
        "document_prefix": prefixes[1],
        "query_length": QUERY,
        "document_length": LONGEST,
        "attend_to_expansion_tokens": False,
        "skiplist_words": list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),
        "similarity_fn_name": "MaxSim",
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps({**usual, **whole}))
    return folder


def write_stanford(folder: Path, **metadata: Any) -> Path:
    """As colbert-ai saves it: the matrix among the weights of BERT, and artifact.metadata."""
    from safetensors.torch import load_file

    _write_transformer(folder, "bert", [])
    stored = load_file(folder / "model.safetensors")
    own = {f"bert.{name}": tensor for name, tensor in stored.items()}
    save_file({**own, "linear.weight": _matrix()}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    usual = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": QUERY, "doc_maxlen": LONGEST}
    (folder / "artifact.metadata").write_text(json.dumps({**usual, **metadata}))
    return folder


def _write_transformer(folder: Path, family: str, added: list[str]) -> None:
    prefix, usual, tokenizer = FAMILIES[family]
    own = tokenizer() or transformers.AutoTokenizer.from_pretrained(MINILM)
    own.add_tokens(added)
    own.model_max_length = 80
    said = {"max_position_embeddings": 80, "vocab_size": len(own)}
    small = {} if family == "distilbert" else SMALL
    config = getattr(transformers, f"{prefix}Config")(**{**small, **usual, **said})
    write_model(folder, config, tokenizer=own)


def _matrix() -> Any:
    return torch.randn(DIMS, WIDTH, generator=torch.Generator().manual_seed(11))
