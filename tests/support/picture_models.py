"""Tiny models of pictures with random weights, and pictures of every kind, made in the test."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE = 32
_VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_TEXT = {
    **_VISION,
    "max_position_embeddings": 64,
    "vocab_size": 64,
    "bos_token_id": 1,
    "eos_token_id": 3,
    "pad_token_id": 0,
}
KINDS = ("clip", "siglip", "vit", "dinov2")
# The words that a tiny model of both knows.
WORDS = ("a", "red", "green", "blue", "yellow", "square", "circle", "picture", "of")


def build_picture_model(folder: Path, kind: str, seed: int = 0, **processor: Any) -> Path:
    """A folder as transformers saves it, of one of `KINDS`."""
    import torch
    import transformers as hf

    torch.manual_seed(seed)
    vision = {**_VISION, "image_size": SIDE, "patch_size": 8}
    both = {"vision_config": vision, "text_config": _TEXT}
    config: Any = {
        "clip": lambda: hf.CLIPConfig(**both, projection_dim=24),
        "siglip": lambda: hf.SiglipConfig(**both),
        "vit": lambda: hf.ViTConfig(**vision),
        "dinov2": lambda: hf.Dinov2Config(**vision),
    }[kind]()
    hf.AutoModel.from_config(config).eval().save_pretrained(folder)
    name = {"clip": "CLIP", "siglip": "Siglip", "vit": "ViT", "dinov2": "Bit"}[kind]
    cut = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    whole = {"size": {"height": SIDE, "width": SIDE}}
    settings = {"image_processor_type": f"{name}ImageProcessor", **(cut if kind in ("clip", "dinov2") else whole)}
    (folder / "preprocessor_config.json").write_text(json.dumps({**settings, **processor}))
    if kind in ("clip", "siglip"):
        _save_tokenizer(folder, kind)
    return folder


def _save_tokenizer(folder: Path, kind: str) -> None:
    import transformers as hf
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate(("<pad>", "<s>", "<unk>", "</s>", *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("<s>", 1), ("</s>", 3)]
    single = "<s> $A </s>" if kind == "clip" else "$A </s>"
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=ends)
    fast = hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    fast.save_pretrained(folder)


def noise(seed: int, width: int = 60, height: int = 45) -> Image.Image:
    """A picture of waves that no other seed has."""
    draws = np.random.Generator(np.random.Philox(seed)).random((4, 3))
    y, x = np.mgrid[0:height, 0:width]
    waves = np.sin(x[..., None] * draws[0] + y[..., None] * draws[1] + 6 * draws[2])
    return Image.fromarray(((waves * 0.5 + 0.5) * 255 * (0.5 + draws[3] / 2)).astype(np.uint8))


def encode(picture: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    """The bytes of a file."""
    file = io.BytesIO()
    picture.save(file, format, **options)
    return file.getvalue()
