"""What the folder of a re-ranker says: its labels, the activation of its scores, prompts, and a causal one's words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shardmill.core.errors import ModelError
from shardmill.models.chat import ChatForm, read_form
from shardmill.models.folder import find_transformer, read_json, read_transformer_config
from shardmill.models.kinds import CAUSAL, RERANKER, check_kind
from shardmill.models.networks.stored import Reals

# Settings of a tokenizer that only concern padding, which is ours.
_PADDING = {"padding", "padding_side", "pad_to_multiple_of", "return_attention_mask", "return_tensors"}


@dataclass(frozen=True, slots=True)
class AnswerWords:
    """The tokens of a causal re-ranker whose logits, at the end of a pair, are its score: for, and against if any."""

    true: int | str = "yes"
    false: int | str | None = "no"


@dataclass(frozen=True, slots=True)
class Reranker:
    """A re-ranker's folder. `labels` numbers are made of a pair; a causal one has `words`.

    One with a `chat` form takes pairs as messages. If its folder says nothing of that, the form is `guessed`.
    """

    name: str
    transformer: Path
    config: Mapping[str, Any]
    labels: int
    activation: str
    words: AnswerWords | None = None
    chat: ChatForm | None = None
    guessed: bool = False
    max_tokens: int | None = None
    tokenizer_options: Mapping[str, Any] = field(default_factory=dict)
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    @property
    def kind(self) -> str:
        return RERANKER if self.words is None else CAUSAL

    def prompt_text(self, prompt: str | None) -> str:
        """The prompt of that name, else `prompt` itself; for None the model's default."""
        return self.prompts.get(self.default_prompt or "", "") if prompt is None else self.prompts.get(prompt, prompt)


def read_reranker(root: Path) -> Reranker:
    """Read a folder; a ModelError says which verb its model fits, or what shardmill does not support."""
    check_kind(root, RERANKER)
    listed = read_json(root / "modules.json", missing=[])
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in listed]
    if kinds not in ([], ["Transformer"], ["Transformer", "LogitScore"]):
        raise ModelError(
            f"{root.name}/modules.json lists {', '.join(kinds)}.",
            hint="shardmill supports re-rankers of one Transformer, with a LogitScore or without.",
        )
    transformer = find_transformer(root)
    config = read_transformer_config(transformer)
    whole = read_json(root / "config_sentence_transformers.json", missing={})
    said = read_json(transformer / "sentence_bert_config.json", missing={})
    causal = str((config.get("architectures") or [""])[0]).endswith(CAUSAL)
    labels = 1 if causal else _count_labels(config)
    chat = read_form(root.name, said)
    if guessed := causal and "modality_config" not in said:
        tokenizer = read_json(transformer / "tokenizer_config.json", missing={})
        has_template = (transformer / "chat_template.jinja").exists() or tokenizer.get("chat_template")
        chat = ChatForm("auto", {}) if has_template else None
    return Reranker(
        root.name,
        transformer,
        config,
        labels,
        _find_activation(config, whole, labels),
        words=_read_words(root / str(listed[1].get("path", "")) if len(listed) > 1 else None) if causal else None,
        chat=chat,
        guessed=guessed,
        max_tokens=said.get("max_seq_length"),
        tokenizer_options=_read_options(root.name, said),
        prompts={name: text or "" for name, text in (whole.get("prompts") or {}).items()},
        default_prompt=whole.get("default_prompt_name"),
    )


def _read_words(module: Path | None) -> AnswerWords:
    if module is None:
        return AnswerWords()
    said = read_json(module / "config.json")
    return AnswerWords(said["true_token_id"], said.get("false_token_id"))


def _count_labels(config: Mapping[str, Any]) -> int:
    """As transformers counts them: by their names, of which two are usual."""
    return int(config.get("num_labels") or len(config.get("id2label") or (0, 1)))


def _find_activation(config: Mapping[str, Any], whole: Mapping[str, Any], labels: int) -> str:
    """The name of the activation that sentence-transformers takes; it ignores names outside torch."""
    own = config.get("sentence_transformers") or {}
    older = own.get("activation_fn") or config.get("sbert_ce_default_activation_function")
    named = [name for name in (whole.get("activation_fn"), older) if str(name).startswith("torch.")]
    return str(named[0]).rpartition(".")[2] if named else "Sigmoid" if labels == 1 else "Identity"


def _read_options(name: str, said: Mapping[str, Any]) -> Mapping[str, Any]:
    processing = said.get("processing_kwargs") or {}
    own = {*processing.get("text", ()), *processing.get("common", ())} - _PADDING - {"logits_to_keep"}
    if own:
        raise ModelError(
            f"{name} sets {min(own)} in processing_kwargs, which shardmill does not support.",
            hint="Set max_seq_length in sentence_bert_config.json for a limit of tokens.",
        )
    options = said.get("processor_kwargs") or said.get("tokenizer_args") or {}
    return {key: value for key, value in options.items() if key != "trust_remote_code"}


def _sigmoid(logits: Reals) -> Reals:
    return np.asarray(1 / (1 + np.exp(-logits)), np.float32)


def _softmax(logits: Reals) -> Reals:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True), np.float32)


_ACTIVATIONS: dict[str, Callable[[Reals], Reals]] = {
    "Identity": lambda logits: logits,
    "ReLU": lambda logits: np.maximum(logits, 0),
    "Sigmoid": _sigmoid,
    "Softmax": _softmax,
    "Tanh": np.tanh,
}


def find_activation(reranker: Reranker) -> Callable[[Reals], Reals]:
    """From logits, a row per pair, to scores."""
    if reranker.activation not in _ACTIVATIONS:
        raise ModelError(
            f"{reranker.name} has the activation {reranker.activation}, which shardmill does not support.",
            hint=f"Supported: {', '.join(_ACTIVATIONS)}.",
        )
    made = _ACTIVATIONS[reranker.activation]

    def activate(logits: Reals) -> Reals:
        with np.errstate(over="ignore"):
            scores: Reals = made(logits).astype(np.float32)
        return scores

    return activate
