"""Which ONNX or OpenVINO file of a model is used, and which files belong to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from shardmill.core.errors import ModelError
from shardmill.models.exported.head import ExportedHead
from shardmill.models.exported.ir import read_ir
from shardmill.models.exported.onnx import read_onnx

# The whole model in the precision it was exported in, the first that exists. ONNX first: two libraries run it, so that
# one can check the other.
_USUAL = (
    *("onnx/model.onnx", "model.onnx", "onnx/model_optimized.onnx", "model_optimized.onnx"),
    *("openvino/openvino_model.xml", "openvino_model.xml"),
)
# Without one of those: if there is just one. OpenVINO's tokenizers are .xml files too.
_OTHERS = ("*.onnx", "onnx/*.onnx", "openvino_model*.xml", "openvino/openvino_model*.xml")
# What a network may ask for. The tokens of a text are of one type, and their positions are counted.
_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "position_ids"})


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that holds a network and, maybe in files beside it, its weights."""

    file: Path
    head: ExportedHead

    @property
    def files(self) -> list[Path]:
        """All that the network is in."""
        return [self.file, *(self.file.parent / name for name in self.head.data)]


def choose_file(names: Collection[str], model: str) -> str | None:
    """Which of a model's files is run, by their names in its folder; None if none can be."""
    for name in _USUAL:
        if name in names:
            return name
    found = sorted(name for name in names if any(_is_like(name, pattern) for pattern in _OTHERS))
    if len(found) > 1:
        raise ModelError(
            f"{model} has {len(found)} files that could be run, and none is called model.onnx: {', '.join(found)}.",
            hint="Copy the one that you mean, config.json and the tokenizer's files into a folder of their own.",
        )
    return found[0] if found else None


def files_of(chosen: str, names: Iterable[str]) -> list[str]:
    """The file and those that may hold its weights: they are called as it is, but for the end."""
    start = chosen.removesuffix(PurePosixPath(chosen).suffix) + "."
    return [name for name in names if name.startswith(start)]


def find_exported(folder: Path) -> Exported | None:
    """The file of a folder that is run, with its head; None if there is none."""
    names = [p.relative_to(folder).as_posix() for place in ("", "onnx", "openvino") for p in (folder / place).glob("*")]
    chosen = choose_file(names, folder.name)
    if chosen is None:
        return None
    file = folder / chosen
    made = Exported(file, read_ir(file) if file.suffix == ".xml" else read_onnx(file))
    for name in made.head.data:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ModelError(f"{folder.name}/{chosen} has weights outside its folder: {name!r}.")
        if not (file.parent / name).is_file():
            raise ModelError(
                f"The weights of {folder.name}/{chosen} are in {name}, which is missing.",
                hint=f"Put {name} beside {file.name}: it is published with it.",
            )
    return made


def check_ends(exported: Exported, model: str) -> None:
    """Refuse a network that takes something else than the ids of texts, or makes something else than vectors."""
    name, head = f"{model}/{exported.file.name}", exported.head
    if unknown := [tensor.names[0] for tensor in head.inputs if not _INPUTS.intersection(tensor.names)]:
        raise ModelError(
            f"{name} wants the input {unknown[0]!r}, which shardmill does not have.",
            hint=f"Export the model with these inputs only: {', '.join(sorted(_INPUTS))}.",
        )
    if not any("input_ids" in tensor.names for tensor in head.inputs):
        raise ModelError(f"{name} has no input input_ids.", hint="Export the model with input_ids and attention_mask.")
    if fixed := [tensor for tensor in head.inputs if set(tensor.shape or ()) - {-1}]:
        raise ModelError(
            f"{name} takes {fixed[0].names[0]} only as {' x '.join(map(str, fixed[0].shape or ()))}.",
            hint="Export it with open sizes (dynamic axes) for texts and tokens.",
        )
    if head.tokens is None and head.sentences is None:
        outputs = ", ".join(tensor.names[0] for tensor in head.outputs)
        raise ModelError(
            f"{name} gives no vectors that are known here: its outputs are {outputs}.",
            hint="Export the model with the output last_hidden_state or sentence_embedding.",
        )


def _is_like(name: str, pattern: str) -> bool:
    return name.count("/") == pattern.count("/") and fnmatch(name, pattern)
