"""Embedding models that take a text as a message of a chat, as sentence-transformers 6 saves them.

The model's chat template writes what is around a text, and the end of that is put back where a long text was cut, as
sentence-transformers does: models that read the last position need it. Design: docs/design/models-and-kernels.md
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardmill.core.errors import ModelError
from shardmill.core.extras import missing_package
from shardmill.models.code import loading_options

# Settings of a template that only concern the size of a batch, which is ours; one says whether the end is put back.
_SIZES = {"padding", "truncation", "max_length", "return_tensors"}
_RESTORE = "restore_suffix"
# What sentence-transformers takes for a template that wants the parts of a message, and families that it knows.
_PARTS = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
_FLAT_FAMILIES = {"apertus", "deepseek_v3", "gpt_oss", "seed_oss"}
_NO_TEMPLATE = "has no chat template, and its sentence_bert_config.json asks for one"
# Their tokens differ, so that what two renderings end with alike is the template's.
_FILLERS = ("0", "1 2 3 4")


@dataclass(frozen=True, slots=True)
class ChatForm:
    """How a folder's texts become messages: its `format` (flat, structured, auto) and the template's arguments."""

    format: str
    arguments: Mapping[str, Any]
    restores: bool = True


def read_form(name: str, said: Mapping[str, Any]) -> ChatForm | None:
    """The form that a sentence_bert_config.json asks for; None if texts are read as they are."""
    if (message := said.get("modality_config", {}).get("message")) is None:
        return None
    given = dict((said.get("processing_kwargs") or {}).get("chat_template") or {})
    restores = bool(given.pop(_RESTORE, True))
    if sizes := sorted(_SIZES & given.keys()):
        raise ModelError(
            f"{name} gives its chat template {sizes[0]}, which shardmill does not support.",
            hint="Set max_seq_length in sentence_bert_config.json instead.",
        )
    return ChatForm(str(message.get("format", "auto")), given, restores)


class ChatTexts:
    """A folder's chat template. `encode` gives the ids of a rendered text, without special tokens around it."""

    reads_task = True

    def __init__(
        self,
        folder: Path,
        model_type: str,
        form: ChatForm,
        options: Mapping[str, Any],
        encode: Callable[[str], list[int]],
    ) -> None:
        self._name, self._form, self._encode = folder.name, form, encode
        self._tokenizer = _load(folder, options)
        template = self._tokenizer.chat_template
        if not isinstance(template, str) or not template:
            raise ModelError(f"{folder.name} {_NO_TEMPLATE}.", hint="Save the model again with sentence-transformers.")
        if self.reads_task and re.search(r"\btask\b", template):
            raise ModelError(
                f"The chat template of {folder.name} depends on the task (query or document).",
                hint="shardmill supports templates that write all texts alike.",
            )
        parted = any(part in template for part in _PARTS) and model_type not in _FLAT_FAMILIES
        self._parted = parted if form.format == "auto" else form.format == "structured"
        self._ends: dict[str, NDArray[np.int32]] = {}

    def render(self, text: str, prompt: str) -> str:
        """What is tokenized: the template with the text as the user's message, and the prompt as the system's."""
        return self.write([*([("system", prompt)] if prompt else []), ("user", text)])

    def write(self, said: Sequence[tuple[str, str]]) -> str:
        """Messages, by their roles and texts, as the template writes them."""
        messages = [self._message(role, text) for role, text in said]
        try:
            rendered: str = self._tokenizer.apply_chat_template(messages, tokenize=False, **self._form.arguments)
        except Exception as error:
            # The template is the model's, and may raise anything of its own.
            raise ModelError(
                f"The chat template of {self._name} fails: {str(error)[:200]}.",
                hint="Choose another prompt, or another model.",
            ) from error
        return rendered

    def end(self, prompt: str) -> NDArray[np.int32]:
        """The ids that the template writes after any text."""
        if prompt not in self._ends:
            self._ends[prompt] = np.array(self._find_end(prompt) if self._form.restores else (), np.int32)
        return self._ends[prompt]

    def _find_end(self, prompt: str) -> list[int]:
        first, second = (self._encode(self.render(filler, prompt)) for filler in _FILLERS)
        most, count = min(len(first), len(second)), 0
        while count < most and first[-count - 1] == second[-count - 1]:
            count += 1
        return first[len(first) - count :] if 0 < count < most else []

    def _message(self, role: str, text: str) -> dict[str, Any]:
        return {"role": role, "content": [{"type": "text", "text": text}] if self._parted else text}


def _load(folder: Path, options: Mapping[str, Any]) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise missing_package(error.name or "transformers", "embed") from error
    return AutoTokenizer.from_pretrained(str(folder), **options, **loading_options(folder))
