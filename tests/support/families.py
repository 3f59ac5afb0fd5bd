"""The families of models that the tests run, as tiny networks with random weights: data only, no library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_WIDE = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 48}
_USUAL: dict[str, Any] = {**_WIDE, "vocab_size": 30522, "max_position_embeddings": 300, "pad_token_id": 0}
_ONE_TYPE = {**_USUAL, "type_vocab_size": 1}
_GROUPED = {**_USUAL, "num_key_value_heads": 2}
_NARROW = {**_GROUPED, "head_dim": 8}
_BY_PLACE = {**_USUAL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0}
_T5 = {
    "vocab_size": 30522, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "architectures": ["T5EncoderModel"],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """A family of embedding models: its config in transformers, models that people know, and what runs it."""

    config: str
    options: dict[str, Any] = field(repr=False)
    known: str
    light: bool = False
    """Whether it runs without torch."""
    padded: str = ""
    """Why batches on a GPU are padded; "" if they are packed."""
    real: str = ""
    """The real weights that were tried."""
    causal: bool = False
    """Whether its tokenizer is that of a model that writes."""


OWN = "attention of its own"
EMBEDDERS = {
    "BERT": Family(
        "BertConfig", _USUAL, "MiniLM, BGE, E5, GTE", light=True, real="all-MiniLM-L6-v2, gte-small, bge-small"
    ),
    "RoBERTa": Family("RobertaConfig", _ONE_TYPE, "all-distilroberta, SimCSE", light=True),
    "XLM-R": Family("XLMRobertaConfig", _ONE_TYPE, "multilingual E5, BGE-M3, Arctic", light=True),
    "XLM-R XL": Family("XLMRobertaXLConfig", _ONE_TYPE, ""),
    "XMOD": Family("XmodConfig", {**_ONE_TYPE, "languages": ["en_XX"], "default_language": "en_XX"}, ""),
    "CamemBERT": Family("CamembertConfig", _ONE_TYPE, "sentence-camembert", light=True),
    "DistilBERT": Family(
        "DistilBertConfig",
        {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "vocab_size": 30522, "pad_token_id": 0},
        "msmarco-distilbert, distiluse",
        light=True,
    ),
    "ALBERT": Family("AlbertConfig", {**_USUAL, "embedding_size": 16}, "paraphrase-albert", light=True),
    "ELECTRA": Family("ElectraConfig", {**_USUAL, "embedding_size": 16}, "", light=True),
    "ERNIE": Family("ErnieConfig", _USUAL, ""),
    "MPNet": Family("MPNetConfig", _USUAL, "all-mpnet-base, multi-qa-mpnet", light=True),
    "ModernBERT": Family(
        "ModernBertConfig",
        {**_USUAL, "global_attn_every_n_layers": 2, "local_attention": 8, "cls_token_id": 101, "sep_token_id": 102},
        "GTE-modernbert, Nomic modernbert, Granite",
        light=True,
    ),
    "NomicBERT": Family("NomicBertConfig", _USUAL, "nomic-embed-text", light=True),
    "EuroBERT": Family("EuroBertConfig", _GROUPED, ""),
    "Jina v3": Family("JinaEmbeddingsV3Config", _USUAL, ""),
    "T5": Family("T5Config", _T5, "sentence-t5, GTR, Instructor", light=True),
    "mT5": Family("MT5Config", _T5, "", light=True),
    "UMT5": Family("UMT5Config", _T5, "", light=True),
    "Qwen2": Family("Qwen2Config", _GROUPED, "GTE-Qwen2", causal=True),
    "Qwen3": Family("Qwen3Config", _NARROW, "Qwen3-Embedding", causal=True),
    "Llama": Family("LlamaConfig", _GROUPED, "", causal=True),
    "Mistral": Family("MistralConfig", {**_GROUPED, "sliding_window": 7}, "E5-mistral, SFR, Linq", causal=True),
    "Ministral": Family("MinistralConfig", {**_NARROW, "sliding_window": 7}, "", causal=True),
    "Gemma": Family("GemmaConfig", _NARROW, "", causal=True),
    "Gemma 2": Family(
        "Gemma2Config",
        {**_NARROW, "sliding_window": 8},
        "BGE-multilingual-gemma2",
        padded="a soft cap",
        causal=True,
    ),
    "Gemma 3": Family("Gemma3TextConfig", {**_NARROW, "sliding_window": 8}, "", causal=True),
    "Gemma 3, both ways": Family(
        "Gemma3TextConfig",
        {**_NARROW, "sliding_window": 8, "use_bidirectional_attention": True},
        "EmbeddingGemma",
        causal=True,
    ),
    "Phi": Family("PhiConfig", _USUAL, "", causal=True),
    "Phi 3": Family("Phi3Config", _GROUPED, "", causal=True),
    "Granite": Family("GraniteConfig", _GROUPED, "", causal=True),
    "OLMo 2": Family("Olmo2Config", _GROUPED, "", causal=True),
    "SmolLM3": Family("SmolLM3Config", _GROUPED, "", causal=True),
    "GPT-NeoX": Family("GPTNeoXConfig", _USUAL, "", causal=True),
    "GPT-2": Family(
        "GPT2Config",
        {"vocab_size": 30522, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 300},
        "",
        causal=True,
    ),
    "GPT-Neo": Family(
        "GPTNeoConfig",
        {
            "vocab_size": 30522,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "window_size": 8,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 300,
        },
        "SGPT",
        padded=OWN,
        causal=True,
    ),
    "OPT": Family("OPTConfig", {**_USUAL, "ffn_dim": 48, "word_embed_proj_dim": 32}, "", causal=True),
    "BLOOM": Family(
        "BloomConfig",
        {"vocab_size": 30522, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        "SGPT-bloom",
        padded=OWN,
        causal=True,
    ),
    "Mamba": Family(
        "MambaConfig",
        {"vocab_size": 30522, "hidden_size": 32, "num_hidden_layers": 2},
        "",
        padded="no attention",
        causal=True,
    ),
    "DeBERTa": Family("DebertaConfig", _BY_PLACE, "", padded=OWN),
    "DeBERTa v2, v3": Family("DebertaV2Config", _BY_PLACE, "", padded=OWN),
    "Longformer": Family("LongformerConfig", {**_USUAL, "attention_window": 8}, "", padded=OWN),
    "BigBird": Family("BigBirdConfig", {**_USUAL, "block_size": 4, "num_random_blocks": 1}, "", padded=OWN),
    "ConvBERT": Family("ConvBertConfig", {**_USUAL, "embedding_size": 32}, "", padded=OWN),
    "Nyströmformer": Family("NystromformerConfig", _USUAL, "", padded=OWN),
    "MobileBERT": Family(
        "MobileBertConfig",
        {**_USUAL, "intermediate_size": 32, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
        "",
        padded="it joins neighbouring tokens",
    ),
    "SqueezeBERT": Family("SqueezeBertConfig", {**_USUAL, "embedding_size": 32}, "", padded=OWN),
    "RoFormer": Family("RoFormerConfig", _USUAL, "", padded=OWN),
    "RemBERT": Family(
        "RemBertConfig", {**_USUAL, "input_embedding_size": 16, "output_embedding_size": 16}, "", padded=OWN
    ),
    "Megatron BERT": Family("MegatronBertConfig", _USUAL, "", padded=OWN),
    "Data2Vec": Family("Data2VecTextConfig", _ONE_TYPE, ""),
    "I-BERT": Family("IBertConfig", _ONE_TYPE, "", padded=OWN),
    "XLNet": Family(
        "XLNetConfig", {"vocab_size": 30522, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, "", padded=OWN
    ),
    "XLM": Family(
        "XLMConfig",
        {
            "vocab_size": 30522,
            "emb_dim": 32,
            "n_layers": 2,
            "n_heads": 4,
            "max_position_embeddings": 300,
            "pad_index": 0,
        },
        "",
        padded=OWN,
    ),
}

WORDS, END_OF_TEXT = 60, 3
_CAUSAL = {**_WIDE, "intermediate_size": 64, "vocab_size": WORDS, "max_position_embeddings": 256, "pad_token_id": 0}
LLAMA: dict[str, Any] = {**_CAUSAL, "num_key_value_heads": 2}
_SHORT = {**LLAMA, "head_dim": 8}
_GPT2 = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
_BART = {
    "vocab_size": WORDS, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 128,
    "pad_token_id": 1, "eos_token_id": END_OF_TEXT, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
_WRITING_T5 = {
    "vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
}  # fmt: skip
Written = tuple[str, str, dict[str, Any]]


def _writes(config: str, options: dict[str, Any], kind: str = "ForCausalLM") -> Written:
    return f"{config}{kind}", f"{config}Config", options


_BOTH, _MARIAN = "ForConditionalGeneration", "MTModel"
# Families that write: the model and the config in transformers, and the options.
WRITERS: dict[str, Written] = {
    "Llama": _writes("Llama", LLAMA),
    "Qwen2": _writes("Qwen2", LLAMA),
    "Qwen3": _writes("Qwen3", _SHORT),
    "Qwen3 MoE": _writes(
        "Qwen3Moe", {**_SHORT, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    ),
    "Mistral": _writes("Mistral", {**LLAMA, "sliding_window": 7}),
    "Ministral": _writes("Ministral", {**_SHORT, "sliding_window": 7}),
    "Mixtral": _writes("Mixtral", {**LLAMA, "num_local_experts": 4}),
    "Gemma": _writes("Gemma", _SHORT),
    "Gemma 3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**_SHORT, "sliding_window": 16}),
    "Phi": _writes("Phi", _CAUSAL),
    "Phi 3": _writes("Phi3", LLAMA),
    "Granite": _writes("Granite", {**LLAMA, "logits_scaling": 2.0}),
    "Cohere": _writes("Cohere", {**LLAMA, "logit_scale": 0.5}),
    "Cohere 2": _writes("Cohere2", {**LLAMA, "sliding_window": 16}),
    "OLMo": _writes("Olmo", LLAMA),
    "OLMo 2": _writes("Olmo2", LLAMA),
    "OLMo 3": _writes("Olmo3", {**LLAMA, "sliding_window": 16}),
    "SmolLM3": _writes("SmolLM3", LLAMA),
    "StableLM": _writes("StableLm", LLAMA),
    "StarCoder2": _writes("Starcoder2", LLAMA),
    "EXAONE 4": _writes("Exaone4", {**_SHORT, "sliding_window": 16}),
    "GLM": _writes("Glm", _SHORT),
    "GLM 4": _writes("Glm4", _SHORT),
    "Helium": _writes("Helium", _SHORT),
    "Nemotron": _writes("Nemotron", LLAMA),
    "ERNIE 4.5": _writes("Ernie4_5", _SHORT),
    "Seed-OSS": _writes("SeedOss", _SHORT),
    "Hunyuan": _writes("HunYuanDenseV1", _SHORT),
    "Arcee": _writes("Arcee", _SHORT),
    "Apertus": _writes("Apertus", LLAMA),
    "GPT-2": _writes("GPT2", _GPT2, "LMHeadModel"),
    "GPT BigCode": _writes("GPTBigCode", _GPT2),
    "GPT-NeoX": _writes("GPTNeoX", _CAUSAL),
    "OPT": _writes("OPT", {**_CAUSAL, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "BioGPT": _writes("BioGpt", _CAUSAL),
    "BART": _writes("Bart", _BART, _BOTH),
    "mBART": _writes("MBart", _BART, _BOTH),
    "Pegasus": _writes("Pegasus", _BART, _BOTH),
    "Blenderbot": _writes("Blenderbot", _BART, _BOTH),
    "Marian": _writes("Marian", _BART, _MARIAN),
    "T5": _writes("T5", _WRITING_T5, _BOTH),
    "mT5": _writes("MT5", _WRITING_T5, _BOTH),
}
_SIZES = {"vocab_size": WORDS, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
# Families that pages do not fit. They write in padded batches, with transformers' own generate.
PADDED_WRITERS: dict[str, Written] = {
    "Gemma 2": _writes("Gemma2", {**_SHORT, "sliding_window": 16}),
    "gpt-oss": _writes("GptOss", {**_SHORT, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "LFM2": _writes("Lfm2", {**LLAMA, "layer_types": ["conv", "full_attention"]}),
    "Mamba": _writes("Mamba", {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2}),
    "Falcon": _writes(
        "Falcon", {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    ),
    "BLOOM": _writes("Bloom", {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "GPT-Neo": _writes(
        "GPTNeo", {**_SIZES, "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 256}
    ),
    "GPT-J": _writes("GPTJ", {**_GPT2, "rotary_dim": 4}),
    "CodeGen": _writes("CodeGen", {**_GPT2, "rotary_dim": 4}),
    "MPT": _writes("Mpt", {"vocab_size": WORDS, "d_model": 32, "n_layers": 2, "n_heads": 4}),
    "XGLM": _writes(
        "XGLM", {"vocab_size": WORDS, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64}
    ),
    "UMT5": _writes("UMT5", _WRITING_T5, _BOTH),
    "M2M100, NLLB": _writes("M2M100", _BART, _BOTH),
    "LED": _writes(
        "LED",
        {
            **{name: value for name, value in _BART.items() if name != "max_position_embeddings"},
            "max_encoder_position_embeddings": 128, "max_decoder_position_embeddings": 128, "attention_window": 8,
        },
        _BOTH,
    ),
    "LongT5": _writes("LongT5", {**_WRITING_T5, "local_radius": 8}, _BOTH),
    "BigBird-Pegasus": _writes("BigBirdPegasus", {**_BART, "attention_type": "original_full"}, _BOTH),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """Models of a kind beside embedders and writers: what runs them, and what their results are compared with.

    `light` families run without torch on a CPU, `heavy` ones with it; both are those of `TITLES`.
    """

    verbs: str
    reference: str
    near: str
    test: str
    light: tuple[str, ...]
    heavy: tuple[str, ...]
    on_gpu: str
    refused: str
    real: str = ""

    @property
    def families(self) -> tuple[str, ...]:
        return (*self.light, *self.heavy)


# What families are called whose tests name them by transformers' model types.
TITLES = {
    "albert": "ALBERT",
    "bert": "BERT",
    "camembert": "CamemBERT",
    "deberta": "DeBERTa v2, v3",
    "distilbert": "DistilBERT",
    "electra": "ELECTRA",
    "modernbert": "ModernBERT",
    "mpnet": "MPNet",
    "qwen3": "Qwen3",
    "roberta": "RoBERTa",
    "xlm-roberta": "XLM-R",
}
_SIX = ("bert", "roberta", "distilbert", "modernbert", "xlm-roberta")
KINDS = {
    "classifiers of texts": Kind(
        "`classify`",
        "transformers' `text-classification`",
        "2e-5 of a probability",
        "tests/golden/test_classifiers.py",
        _SIX,
        ("deberta",),
        "as `embed`",
        "several numbers without labels; labels that the weights do not have",
    ),
    "classifiers of tokens": Kind(
        "`classify`",
        "transformers' `token-classification`",
        "the same spans, 2e-5 of a score",
        "tests/golden/test_classifiers.py",
        _SIX,
        ("deberta",),
        "padded, in float32",
        "",
    ),
    "entailment": Kind(
        "`classify --labels`",
        "transformers' `zero-shot-classification`",
        "2e-5 of a probability",
        "tests/golden/test_classifiers.py",
        _SIX,
        ("deberta",),
        "padded, in float32",
        "`--labels` of a model that has its own",
    ),
    "re-rankers": Kind(
        "`score`, `answer --rerank`",
        "`CrossEncoder.predict`",
        "1e-4",
        "tests/unit/models/test_rerankers.py",
        ("bert", "roberta", "xlm-roberta", "electra", "albert", "distilbert", "modernbert"),
        ("deberta", "qwen3"),
        "packed; DeBERTa padded",
        "other activations than five of torch",
        "ms-marco-MiniLM-L12",
    ),
    "sparse vectors": Kind(
        "`embed-sparse`",
        "`SparseEncoder.encode`",
        "1e-4 of a weight",
        "tests/golden/test_sparse.py",
        (*_SIX, "albert", "electra", "mpnet", "camembert"),
        ("deberta",),
        "as `embed`",
        "other families, poolings and activations; sparse autoencoders; a network of their own for queries",
    ),
    "token vectors": Kind(
        "`embed-tokens`",
        "`MultiVectorEncoder`",
        "1e-4 of a number",
        "tests/golden/test_token_vectors.py",
        _SIX,
        (),
        "as `embed`",
        "models of images, and such as merge token vectors",
    ),
}
