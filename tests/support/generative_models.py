"""Tiny random models that generate, in folders with a tokenizer of bytes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.tiny_models import byte_level_bpe, needed

torch, transformers, tokenizers = needed("torch"), needed("transformers"), needed("tokenizers")

END, PAD = "<|endoftext|>", "<|pad|>"
CHAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}<|assistant|>"
CAUSAL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}
CROSSED = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 512,
}


@cache
def _trained() -> str:
    said: str = byte_level_bpe().to_str()
    return said


def write_generative(
    folder: Path,
    kind: str = "Llama",
    chat: str | None = None,
    generation: dict[str, Any] | None = None,
    special: tuple[str, ...] = (),
    **options: Any,
) -> Path:
    """A `kind` of causal model ("Llama", "Gemma2", …), or "Bart", as transformers saves it."""
    backend = tokenizers.Tokenizer.from_str(_trained())
    backend.add_special_tokens([PAD, *special])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=END, pad_token=PAD, chat_template=chat, model_max_length=512
    )
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    special = {"vocab_size": len(tokenizer), "eos_token_id": end, "bos_token_id": end, "pad_token_id": pad}
    shape = CROSSED | {"decoder_start_token_id": end, "forced_eos_token_id": None} if kind == "Bart" else CAUSAL
    config = getattr(transformers, f"{kind}Config")(**{**shape, **special, **options})
    torch.manual_seed(0)
    name = "BartForConditionalGeneration" if kind == "Bart" else f"{kind}ForCausalLM"
    model = getattr(transformers, name)(config).eval()
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.data.normal_(0, 0.25)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    said = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(said | (generation or {})))
    return folder


def generate_one_by_one(
    folder: Path, texts: list[str], most: int, *, dtype: Any = torch.float32, device: str = "cpu", **options: Any
) -> list[list[int]]:
    """What transformers itself makes of each text, in float32 on the CPU unless another type and place are named."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    config = transformers.AutoConfig.from_pretrained(str(folder))
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(str(folder), dtype=dtype, attn_implementation="eager").to(device).eval()
    rows = []
    for text in texts:
        sent = tokenizer(text, return_tensors="pt", return_token_type_ids=False).to(device)
        with torch.inference_mode():
            row = model.generate(**sent, **{"max_new_tokens": most, "do_sample": False, "num_beams": 1} | options)[0]
        rows.append(row[1 if config.is_encoder_decoder else sent["input_ids"].shape[1] :].tolist())
    return rows
