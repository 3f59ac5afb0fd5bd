"""Code that comes with a model (`auto_map`): it runs only in a process whose user allowed just this code."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from shardmill.core import permission
from shardmill.core.errors import ModelError
from shardmill.core.extras import advise
from shardmill.models.networks import families

_CONFIGS = ("config.json", "tokenizer_config.json")


def names_of_code(root: Path) -> tuple[str, ...]:
    """The name by which a user allows the code of the model in this folder; none if it has no code."""
    folder = _find(root)
    return (permission.name_model_code(_digest(folder)),) if folder is not None else ()


def fingerprint_code(root: Path) -> dict[str, str]:
    """The digest of a model's code, if it is run here. Refuses a model that needs its code and may not run it."""
    folder = _find(root)
    if folder is None:
        return {}
    if may_run_code(folder):
        return {permission.MODEL_CODE: _digest(folder)}
    if not _is_known(folder):
        raise refused_code(folder)
    return {}


def loading_options(folder: Path) -> dict[str, bool]:
    """For transformers: nothing is fetched, and the folder's own code runs only with permission."""
    return {"local_files_only": True, "trust_remote_code": may_run_code(folder)}


def may_run_code(folder: Path) -> bool:
    named = _named_code(folder)
    if not named or not permission.is_allowed(permission.name_model_code(_digest(folder))):
        return False
    if elsewhere := [name for name in named if "--" in name]:
        raise ModelError(
            f"{folder.name} names code of another model: {elsewhere[0]}.",
            hint="Copy those files into its folder, and leave out what is before -- in auto_map.",
        )
    return True


def refused_code(folder: Path) -> ModelError:
    if permission.allows_model_code():
        return ModelError(
            f"The code of the model {folder.name} is not the code that was allowed.",
            hint="Use the model that the run was planned with, or start over with --fresh.",
        )
    return ModelError(
        f"The model {folder.name} comes with code of its own, which is not run without your permission.",
        hint="If you trust whoever wrote it, say --allow-code (in Python: allow_code=True).",
    )


def _find(root: Path) -> Path | None:
    """The folder of a model's transformer, if it comes with code."""
    return next((folder for folder in (root, *_below(root)) if _named_code(folder)), None)


def _below(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob("*/config.json"))


def _named_code(folder: Path) -> list[str]:
    """What the folder's configuration says to import."""
    named: list[str] = []
    for file in _CONFIGS:
        said = _read(folder / file).get("auto_map")
        values = said.values() if isinstance(said, dict) else ()
        flat = [each for value in values for each in (value if isinstance(value, list) else [value])]
        named += [each for each in flat if isinstance(each, str)]
    return named


def _is_known(folder: Path) -> bool:
    """Whether a model of this family runs without the code that comes with it: by its description, or in torch."""
    family = _read(folder / "config.json").get("model_type")
    if families.is_known(family):
        return True
    try:
        from transformers import CONFIG_MAPPING
    except ImportError as error:
        raise ModelError(
            f"The model {folder.name} comes with code of its own, which needs torch.",
            hint=advise("embed"),
        ) from error
    return family in CONFIG_MAPPING


def _digest(folder: Path) -> str:
    total = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        total.update(file.relative_to(folder).as_posix().encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:32]


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is none: whoever reads the whole model says what is wrong with it."""
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
