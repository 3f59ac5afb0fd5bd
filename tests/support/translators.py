"""Tiny random models of the families that are told languages by special tokens, as transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.generative_models import CROSSED
from tests.support.libraries import needed

torch, transformers, tokenizers = needed("torch"), needed("transformers"), needed("tokenizers")

SENTENCES = [
    "The battery died after an hour.",
    "A train left Lyon at 08:14 and reached Turin late.",
    "Der Fluss trat über die Ufer und riss die Brücke mit.",
    "We bake bread with flour, yeast and water; then it rests for one night.",
    "What is the colour of the water, and which birds did they see?",
]
# A language to translate from, and two to translate into.
CODES = {
    "nllb": ("deu_Latn", "fra_Latn", "zho_Hans"),
    "m2m100": ("de", "fr", "zh"),
    "mbart50": ("de_DE", "fr_XX", "zh_CN"),
}


def _pieces() -> list[tuple[str, float]]:
    letters = sorted({letter for text in SENTENCES for letter in text.replace(" ", "▁")} | {"▁"})
    words = sorted({f"▁{word}" for text in SENTENCES for word in text.split()})
    return [*((letter, -6.0) for letter in letters), *((word, -3.0) for word in words)]


def _nllb() -> Any:
    letters = [letter for letter, _ in _pieces() if len(letter) == 1]
    vocab = {each: i for i, each in enumerate(["<s>", "<pad>", "</s>", "<unk>", *letters, "th", "▁th"])}
    return transformers.NllbTokenizer(vocab=vocab, merges=[("t", "h"), ("▁", "th")])


def _mbart50() -> Any:
    return transformers.MBart50Tokenizer(vocab=[("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *_pieces()])


def _m2m100(folder: Path) -> Any:
    sentencepiece = needed("sentencepiece")
    texts = folder / "sentences.txt"
    texts.write_text("\n".join(SENTENCES * 4))
    sentencepiece.SentencePieceTrainer.train(
        input=str(texts), model_prefix=str(folder / "spm"), vocab_size=60, model_type="bpe", minloglevel=2
    )
    spoken = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    known = ["<s>", "<pad>", "</s>", "<unk>", *(spoken.id_to_piece(i) for i in range(3, 60))]
    (folder / "spm_vocab.json").write_text(json.dumps({each: i for i, each in enumerate(known)}))
    return transformers.M2M100Tokenizer(str(folder / "spm_vocab.json"), str(folder / "spm.model"))


def write_translator(folder: Path, kind: str, **generation: Any) -> Path:
    """A folder of `kind`: nllb, m2m100 or mbart50."""
    made, model = folder / "made", folder / "model"
    made.mkdir(parents=True)
    tokenizer = {"nllb": _nllb, "mbart50": _mbart50, "m2m100": lambda: _m2m100(made)}[kind]()
    own = "MBart" if kind == "mbart50" else "M2M100"
    special = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    sizes = {**CROSSED, **special, "vocab_size": len(tokenizer) + 128, "forced_eos_token_id": None}
    torch.manual_seed(0)
    network = getattr(transformers, f"{own}ForConditionalGeneration")(getattr(transformers, f"{own}Config")(**sizes))
    for weights in network.parameters():
        if weights.dim() > 1:
            weights.data.normal_(0, 0.25)
    network.save_pretrained(model)
    tokenizer.save_pretrained(model)
    said = json.loads((model / "generation_config.json").read_text())
    (model / "generation_config.json").write_text(json.dumps(said | generation))
    return model


def translate_one_by_one(
    folder: Path, texts: list[str], most: int, source: str, target: str, **options: Any
) -> list[list[int]]:
    """What transformers itself makes of each text, in float32 on the CPU."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), src_lang=source)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        str(folder), dtype=torch.float32, attn_implementation="eager"
    ).eval()
    token = f"__{target}__" if "M2M100Tokenizer" in type(tokenizer).__name__ else target
    told = {"forced_bos_token_id": tokenizer.convert_tokens_to_ids(token)} if target else {}
    rows = []
    for text in texts:
        sent = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            how = {"max_new_tokens": most, "do_sample": False, "num_beams": 1, **told, **options}
            row = model.generate(**sent, **how)[0, 1:]
        rows.append(row.tolist())
    return rows
