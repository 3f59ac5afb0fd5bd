"""The parameters of the `embed` task, which are options of its verb."""

from __future__ import annotations

from typing import Literal

from shardmill.models.names import MINILM
from shardmill.plan.options import MODEL, RESULT, option
from shardmill.plan.shared import AdapterParams


class EmbedParams(AdapterParams):
    """The model, dimensions to keep, their type, the prompt, the maximum length, and windows.

    `window_tokens` cuts a text into windows of that many tokens, special tokens included, that share `overlap` tokens.
    The result has one row per window, or the mean of an item's windows. Of the precisions only `int8` is a parameter,
    since its vectors are another result. `ranges` are measured on a sample of the texts when a run is planned. If items
    are `pictures`, the model is one of pictures.
    """

    model: str = option(
        MINILM,
        "A folder of sentence-transformers or model2vec, its URL (s3://…), or a hub name.",
        group=MODEL,
        metavar="MODEL",
        common=True,
        min_length=1,
    )
    prompt: str | None = option(
        None, "The name of one of the model's prompts, or a text to put first.", group=MODEL, metavar="PROMPT"
    )
    max_tokens: int | None = option(
        None, "Tokens of a text at most.", group=MODEL, metavar="N", shown="the model's limit", ge=1
    )
    window_tokens: int | None = option(
        None,
        "Cut texts into windows of N tokens, including prompt and special tokens.",
        group=MODEL,
        metavar="N",
        ge=1,
    )
    overlap: int | None = option(
        None, "Tokens that a window shares with the one before it.", group=MODEL, metavar="N", ge=0
    )
    windows: Literal["each", "mean"] | None = option(
        None, "each (one row per window) or mean (one per item).", group=MODEL, metavar="HOW", shown="each"
    )
    borders: bool | None = option(
        None,
        "Windows end at pages and headings where they can.",
        group=MODEL,
        only="file",
        shown="true for documents",
    )
    page: bool | None = option(
        None,
        "Rows tell the page that the middle of their window is on.",
        group=MODEL,
        only="file",
        shown="true for documents whose page is kept",
    )
    dims: int | None = option(None, "Keep the first N dimensions (Matryoshka models).", group=RESULT, metavar="N", ge=1)
    dtype: Literal["float32", "float16", "int8", "uint8", "binary"] = option(
        "float32",
        "Type of the stored numbers: float32, float16, int8 or uint8 (a byte each), or binary (a bit each).",
        group=RESULT,
        metavar="TYPE",
    )
    ranges: list[list[float]] | None = option(
        None, "The lowest and highest number of each dimension, for int8 and uint8.", group=RESULT, only="file"
    )
    pictures: bool | None = option(None, "Items are pictures, set by --picture.", group=MODEL, only="file")
    max_pixels: int = option(100_000_000, "A picture with more pixels is a bad item.", group=MODEL, only="file", ge=1)
    precision: Literal["int8", "fp8"] | None = option(
        None, "int8 or fp8: layers in 8 bits, set by --precision.", group=MODEL, only="file"
    )
