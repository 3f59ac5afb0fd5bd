"""Folders written by `save_to_disk` of Hugging Face datasets: Arrow streams in the order of state.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shardmill.core.errors import SourceError
from shardmill.sources.files import readable
from shardmill.sources.places import Found
from shardmill.store import is_url, open_store

_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"


def choose_saved(place: str, found: Sequence[Found], asked: bool) -> list[Found]:
    """The data files of a saved dataset, in order; none if the place is not such a folder."""
    folders = {_folder(f) for f in found if not f.named}
    files = {f.entry.key: f for f in found} if len(folders) == 1 else {}
    if _SPLITS in files:
        raise _which_split(place, _load(files[_SPLITS]))
    if _STATE in files and ("_data_files" in (state := _load(files[_STATE])) or asked):
        return _in_order(place, files, state)
    if asked or (_INFO in files and any(name.endswith(".arrow") for name in files)):
        raise SourceError(
            f"{place} has no {_STATE}, so it is not a completely saved dataset.",
            hint=f"Save it again with ds.save_to_disk, or read its files as they are: '{place.rstrip('/')}/*.arrow'.",
        )
    return []


def _folder(found: Found) -> str:
    return found.place.removesuffix(found.entry.key)


def _in_order(place: str, files: Mapping[str, Found], state: Mapping[str, Any]) -> list[Found]:
    if any(value for key, value in state.items() if key.startswith("_indices")):
        raise SourceError(
            f"{place} stores a selection or shuffle as indices, not as rows.",
            hint="Write its rows out: ds.flatten_indices().save_to_disk(…).",
        )
    try:
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (KeyError, TypeError):
        raise SourceError(f"{place}/{_STATE} does not name its data files.", hint="Save the dataset again.") from None
    for name in names:
        if name not in files:
            raise SourceError(
                f"{place} has no {name}, which its {_STATE} names.", hint="Copy the folder again, with all its files."
            )
    return [files[name] for name in names]


def _load(found: Found) -> dict[str, Any]:
    folder = _folder(found)
    try:
        with readable(found.place):
            data = json.loads(open_store(folder.rstrip("/") if is_url(folder) else folder).get(found.entry.key))
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise SourceError(f"{found.place} is not a JSON object.", hint="Save the dataset again with ds.save_to_disk.")
    return data


def _which_split(place: str, state: Mapping[str, Any]) -> SourceError:
    splits = [f"{place.rstrip('/')}/{name}" for name in state.get("splits", ())]
    return SourceError(
        f"{place} contains a dataset of {len(splits)} splits.", hint=f"Name one of them: {', '.join(splits) or 'none'}."
    )
