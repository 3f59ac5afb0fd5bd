"""Reads a model folder, as written by sentence-transformers or transformers, without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardmill.core.errors import ModelError
from shardmill.models.chat import ChatForm, read_form
from shardmill.models.exported.files import Exported, check_ends, find_exported
from shardmill.models.static.files import KIND, MODEL2VEC, StaticTable, read_static

# In the order in which sentence-transformers concatenates the vectors of a model with several modes.
_POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
POOLING_MODES = tuple(_POOLING_FLAGS.values())
# The mode that keeps the vector of every token.
TOKENS = "tokens"
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "LeakyReLU", "ELU", "Mish", "Softplus")
MODULES = ("Transformer", "Pooling", "StaticEmbedding", "Dense", "LayerNorm", "Normalize", "Dropout")
_SENTENCE_CONFIGS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
# How sentence-transformers pads a batch, which changes no vector.
_PADDING = {"padding", "padding_side", "pad_to_multiple_of", "return_attention_mask", "return_tensors"}
# Families that take no attention mask.
_WITHOUT_MASK = {"fnet"}
_TASK, _OUTPUT = "feature-extraction", "last_hidden_state"
_WIDTH_KEYS = ("hidden_size", "d_model", "n_embd", "dim", "hidden_dim", "emb_dim")


@dataclass(frozen=True, slots=True)
class Pooling:
    """How the vectors of tokens become one; without modes the network itself does that."""

    modes: tuple[str, ...]
    include_prompt: bool = True

    @property
    def keeps_tokens(self) -> bool:
        """Whether there is a vector for every token, one text after another."""
        return self.modes == (TOKENS,)

    @property
    def token_weights(self) -> int:
        """The weights of matrices that the state of each token is multiplied with."""
        return 0


@dataclass(frozen=True, slots=True)
class Dense:
    weights: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str
    residual: bool


@dataclass(frozen=True, slots=True)
class LayerNorm:
    weights: Path
    width: int


@dataclass(frozen=True, slots=True)
class Normalize:
    pass


Step = Dense | LayerNorm | Normalize


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """How a model turns tokens into a vector: the transformer's folder, the pooling and the steps after it.

    `exported` is the network of a folder without safetensors; with `static` there is none, only vectors of tokens.
    `chat` says how a text becomes a message of a chat; `marker` is a token that stands first in every text.
    """

    transformer: Path
    config: dict[str, Any]
    pooling: Pooling
    steps: tuple[Step, ...]
    width: int
    max_tokens: int | None = None
    lower_case: bool = False
    truncate_width: int | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    config_options: dict[str, Any] = field(default_factory=dict)
    tokenizer_options: dict[str, Any] = field(default_factory=dict)
    exported: Exported | None = None
    chat: ChatForm | None = None
    static: StaticTable | None = None
    marker: str = ""

    @property
    def normalizes(self) -> bool:
        return bool(self.steps) and isinstance(self.steps[-1], Normalize)

    @property
    def token_weights(self) -> int:
        """The weights of matrices after the network that each token is multiplied with, as its own weights are."""
        dense = [step for step in self.steps if isinstance(step, Dense)] if self.pooling.keeps_tokens else []
        return self.pooling.token_weights + sum(step.in_features * step.out_features for step in dense)

    def prompt_text(self, prompt: str | None) -> str:
        """The text before each item: the prompt named `prompt`, else `prompt` itself; for None the model's default."""
        if prompt is None:
            return self.prompts.get(self.default_prompt or "", "")
        return self.prompts.get(prompt, prompt)


def read_folder(root: Path) -> ModelFolder:
    """Read a model folder; a ModelError names what shardmill does not support."""
    listed = read_json(root / "modules.json", missing=None)
    return _plain(root) if listed is None else _sentence_transformer(root, listed)


def _plain(root: Path) -> ModelFolder:
    if (said := read_json(root / "config.json", missing={})).get("model_type") == MODEL2VEC:
        return _static(root, said, ())
    config, exported = _read_transformer(root)
    if exported is not None:
        return _plain_exported(root, config, exported)
    tokenizer = read_json(root / "tokenizer_config.json", missing={})
    if (root / "chat_template.jinja").exists() or tokenizer.get("chat_template"):
        raise ModelError(
            f"{root.name} has a chat template and no modules.json, so its pooling is unknown.",
            hint="Save it with sentence-transformers first (model.save_pretrained), or choose an embedding model.",
        )
    causal = (config.get("architectures") or [""])[0].endswith("ForCausalLM") and config.get("is_causal", True)
    return ModelFolder(root, config, Pooling(("lasttoken" if causal else "mean",)), (), _width(config, root))


def _plain_exported(root: Path, config: dict[str, Any], exported: Exported) -> ModelFolder:
    if (made := exported.head.sentences) is not None:
        return ModelFolder(root, config, Pooling(()), (), made.width or _width(config, root), exported=exported)
    raise ModelError(
        f"{root.name} does not say how to pool: {exported.file.name} gives a vector per token, and there is no "
        "modules.json.",
        hint="Add modules.json and 1_Pooling/config.json, as docs/embed.md shows under ONNX.",
    )


def _sentence_transformer(root: Path, listed: list[dict[str, str]]) -> ModelFolder:
    kinds = [_module_kind(module, root) for module in listed]
    folders = [inside(root, str(module.get("path", ""))) for module in listed]
    if kinds[:1] == ["StaticEmbedding"] and not {"Transformer", "Pooling", "StaticEmbedding"}.intersection(kinds[1:]):
        return _static_embedding(root, kinds, folders)
    if kinds[:2] != ["Transformer", "Pooling"] or kinds.count("Transformer") + kinds.count("Pooling") != 2:
        raise ModelError(
            f"{root.name}/modules.json lists {', '.join(kinds)}.",
            hint="shardmill supports models that begin with one Transformer and one Pooling, or with StaticEmbedding.",
        )
    transformer = folders[0]
    config, exported = _read_transformer(transformer)
    pooling, width = _pooling(read_json(folders[1] / "config.json"), config, root)
    steps = _read_steps(kinds[2:], folders[2:])
    width = next((step.out_features for step in steps[::-1] if isinstance(step, Dense)), width)
    if exported is not None and exported.head.tokens is None and (made := exported.head.sentences) is not None:
        # It was exported with all that the modules do. To normalize twice changes nothing.
        if not pooling.include_prompt:
            raise ModelError(
                f"{exported.file.name} of {root.name} pools by itself, and its prompts are to be left out of that.",
                hint="Export the model with the output last_hidden_state.",
            )
        pooling, width = Pooling(()), made.width or _width(config, root)
        steps = [step for step in steps if isinstance(step, Normalize)]
    sentence = read_sentence_config(transformer)
    return ModelFolder(
        transformer,
        config,
        pooling,
        tuple(steps),
        width,
        **read_prompts(root),
        max_tokens=sentence.get("max_seq_length"),
        lower_case=bool(sentence.get("do_lower_case")),
        config_options=pick_options(sentence, "config_kwargs", "config_args"),
        tokenizer_options=pick_options(sentence, "processor_kwargs", "tokenizer_args"),
        exported=exported,
        chat=read_form(root.name, sentence),
    )


def read_prompts(root: Path) -> dict[str, Any]:
    """What a folder says of prompts, and of the dimensions to keep."""
    whole = read_json(root / "config_sentence_transformers.json", missing={})
    prompts = {"query": "", "document": ""} | {k: v or "" for k, v in (whole.get("prompts") or {}).items()}
    default = whole.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ModelError(f"The default prompt {default!r} of {root.name} is not among its prompts.")
    return {"truncate_width": whole.get("truncate_dim"), "prompts": prompts, "default_prompt": default}


def _read_steps(kinds: Sequence[str], folders: Sequence[Path]) -> list[Step]:
    """The steps after pooling; a Dropout does nothing."""
    steps: list[Step] = []
    for kind, folder in zip(kinds, folders, strict=True):
        if kind == "Dense":
            steps.append(read_dense(folder))
        elif kind == "LayerNorm":
            steps.append(LayerNorm(_weights(folder), int(read_json(folder / "config.json")["dimension"])))
        elif kind == "Normalize":
            steps.append(Normalize())
    return steps


def _static_embedding(root: Path, kinds: Sequence[str], folders: Sequence[Path]) -> ModelFolder:
    """As sentence-transformers computes it, unless model2vec wrote the folder."""
    said = read_json(folders[0] / "config.json", missing={})
    if said.get("model_type") == MODEL2VEC and set(kinds[1:]) <= {"Normalize", "Dropout"}:
        return _static(folders[0], said, ())
    return _static(folders[0], {"model_type": KIND}, _read_steps(kinds[1:], folders[1:]), **read_prompts(root))


def _static(folder: Path, config: dict[str, Any], steps: Sequence[Step], **said: Any) -> ModelFolder:
    table = read_static(folder, config, model2vec=config["model_type"] == MODEL2VEC)
    if table.model2vec and config.get("normalize"):
        steps = [Normalize()]
    width = next((step.out_features for step in reversed(steps) if isinstance(step, Dense)), table.width)
    return ModelFolder(folder, config, Pooling(()), tuple(steps), width, static=table, **said)


def _module_kind(module: dict[str, str], root: Path) -> str:
    kind = str(module.get("type", ""))
    package, _, name = kind.rpartition(".")
    if name not in MODULES or not package.startswith("sentence_transformers"):
        raise ModelError(
            f"{root.name} has a module of type {kind!r}, which shardmill does not support.",
            hint=f"Supported: {', '.join(MODULES)}.",
        )
    return name


def inside(root: Path, relative: str) -> Path:
    folder = (root / relative).absolute()
    if ".." in Path(relative).parts or not folder.is_relative_to(root.absolute()):
        raise ModelError(f"{root.name}/modules.json points outside its folder: {relative!r}.")
    return folder


def find_transformer(root: Path) -> Path:
    """The folder of a model's transformer: its own, or the one of the first module."""
    listed = read_json(root / "modules.json", missing=None)
    first = listed[0] if isinstance(listed, list) and listed else {}
    return inside(root, str(first.get("path", "")))


def read_transformer_config(folder: Path) -> dict[str, Any]:
    """The config.json of a whole model with safetensors weights."""
    config = _read_config(folder)
    if not has_safetensors(folder):
        raise _without_weights(folder)
    return config


def has_safetensors(folder: Path) -> bool:
    return any(folder.glob("*.safetensors"))


def _read_transformer(folder: Path) -> tuple[dict[str, Any], Exported | None]:
    """The config.json of a whole model, and its network if that is an ONNX or OpenVINO file: safetensors win."""
    config = _read_config(folder)
    if has_safetensors(folder):
        return config, None
    if (exported := find_exported(folder)) is None:
        raise _without_weights(folder)
    check_ends(exported, folder.name)
    return config, exported


def _read_config(folder: Path) -> dict[str, Any]:
    if (folder / "adapter_config.json").exists():
        raise ModelError(
            f"{folder.name} is an adapter, not a whole model.", hint="Pass both: --model BASE --adapter FOLDER."
        )
    config: dict[str, Any] = read_json(folder / "config.json")
    if not config.get("model_type"):
        raise ModelError(f"{folder / 'config.json'} has no model_type.", hint="Pass the folder of a whole model.")
    _refuse_other_senses(folder, config)
    if config["model_type"] in _WITHOUT_MASK:
        raise ModelError(
            f"{folder.name} mixes all tokens of a row, padding included, so that a vector would depend on its batch.",
            hint="Choose a model with attention.",
        )
    return config


def _without_weights(folder: Path) -> ModelError:
    if (exported := find_exported(folder)) is not None:
        return ModelError(
            f"{folder.name} has no safetensors weights, only {exported.file.name}, which this task cannot use.",
            hint="Pass the folder that it was exported from.",
        )
    pickled = any(folder.glob("pytorch_model*.bin"))
    return ModelError(
        f"{folder.name} has no safetensors weights{' (only pytorch_model.bin)' if pickled else ''}.",
        hint="Convert them: AutoModel.from_pretrained(folder).save_pretrained(folder), if you trust the file.",
    )


def _refuse_other_senses(folder: Path, config: dict[str, Any]) -> None:
    """Refuse models of sound or of images alone."""
    takes = "sound" if "num_mel_bins" in config else ""
    if "image_size" in config and not config.keys() & {"vocab_size", "text_config"}:
        takes = "images"
    if takes:
        raise ModelError(
            f"{folder.name} ({config['model_type']}) takes {takes}, not texts.",
            hint="No task of shardmill fits it. Choose a model of texts.",
        )


def _width(config: dict[str, Any], root: Path) -> int:
    for part in (config, config.get("text_config") or {}):
        for key in _WIDTH_KEYS:
            if isinstance(part.get(key), int):
                return int(part[key])
    raise ModelError(f"{root.name}/config.json does not give the width of its vectors.", hint="Add hidden_size to it.")


def _pooling(said: dict[str, Any], config: dict[str, Any], root: Path) -> tuple[Pooling, int]:
    chosen = said.get("pooling_mode") or [mode for flag, mode in _POOLING_FLAGS.items() if said.get(flag)] or ["mean"]
    modes = (chosen,) if isinstance(chosen, str) else tuple(chosen)
    unknown = [mode for mode in modes if mode not in POOLING_MODES]
    if unknown:
        raise ModelError(
            f"{root.name} has the pooling mode {', '.join(unknown)}.", hint=f"Supported: {', '.join(POOLING_MODES)}."
        )
    width, there = said.get("embedding_dimension") or said.get("word_embedding_dimension"), _width(config, root)
    if width not in (None, there):
        raise ModelError(
            f"{root.name} contradicts itself: its pooling has {width} dimensions, and its config.json has {there}.",
            hint="Its files may be of two models: fetch it again.",
        )
    return Pooling(modes, bool(said.get("include_prompt", True))), len(modes) * there


def read_dense(folder: Path, works_on: str = "sentence_embedding") -> Dense:
    """The layer of a folder, which takes and gives what a module of sentence-transformers calls `works_on`."""
    said = read_json(folder / "config.json")
    package, _, activation = str(said.get("activation_function", "torch.nn.Tanh")).rpartition(".")
    if not package.startswith("torch.nn") or activation not in ACTIVATIONS:
        raise ModelError(
            f"{folder.name} has the activation {said.get('activation_function')!r}.",
            hint=f"Supported from torch.nn: {', '.join(ACTIVATIONS)}.",
        )
    for key in ("module_input_name", "module_output_name"):
        if (said.get(key) or works_on) != works_on:
            raise ModelError(
                f"{folder.name} works on {said[key]!r}.", hint="shardmill supports dense layers after pooling only."
            )
    sizes = int(said["in_features"]), int(said["out_features"])
    return Dense(_weights(folder), *sizes, said.get("bias", True), activation, said.get("use_residual", False))


def _weights(folder: Path) -> Path:
    path = folder / "model.safetensors"
    if not path.exists():
        raise ModelError(
            f"{folder.name} has no model.safetensors.",
            hint="Save the model again with sentence-transformers 2.3 or later, which writes safetensors.",
        )
    return path


def read_sentence_config(folder: Path, task: str = _TASK, output: str = _OUTPUT) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name in _SENTENCE_CONFIGS:
        said = read_json(folder / f"sentence_{name}_config.json", missing={})
        if said:
            break
    ways = said.get("modality_config", {"text": {}})
    way = ways.get("message", ways.get("text", {}))
    usual = (
        said.get("transformer_task", task) == task
        and way.get("method", "forward") == "forward"
        and way.get("method_output_name", output) == output
    )
    if not usual:
        raise ModelError(
            f"{folder.name} uses an output other than {output}.",
            hint="shardmill supports models of texts whose tokens are pooled.",
        )
    processing = said.get("processing_kwargs") or {}
    if read := sorted({*processing.get("text", ()), *processing.get("common", ())} - _PADDING):
        raise ModelError(
            f"{folder.name} sets {read[0]} in processing_kwargs, which shardmill does not support.",
            hint="Set max_seq_length in sentence_bert_config.json for a limit of tokens.",
        )
    return said


def pick_options(said: dict[str, Any], *keys: str) -> dict[str, Any]:
    found: dict[str, Any] = next((said[key] for key in keys if said.get(key)), {})
    return {k: v for k, v in found.items() if k != "trust_remote_code"}


def read_json(path: Path, missing: Any = ...) -> Any:
    """What a JSON file of a model folder holds; without the file, `missing` if given."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if missing is not ...:
            return missing
        raise ModelError(f"No {path.name} in {path.parent}.", hint="Pass the folder of a whole model.") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}.", hint="Fetch the model again.") from error
