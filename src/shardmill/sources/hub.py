"""Lists the files of a dataset of the Hugging Face hub, at the commit that its revision names now."""

from __future__ import annotations

from collections.abc import Iterator

from shardmill.core.errors import SourceError, StoreError, is_passing
from shardmill.core.extras import missing_package
from shardmill.store.base import Entry
from shardmill.store.hub import HubPlace, endpoint, find_token


def list_dataset(url: str) -> Iterator[tuple[str, Entry, str]]:
    """The address of each file, pinned to the commit; its entry, whose key is its path; a digest of its content.

    The path of the URL is the first part of the files' paths: that of a folder or of a file.
    """
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile
    except ImportError as error:
        raise missing_package("huggingface-hub") from error
    place = HubPlace.parse(url)
    api = HfApi(endpoint=endpoint(), token=find_token() or False)
    try:
        commit = str(api.dataset_info(place.repo, revision=place.revision).sha)
        found = list(api.list_repo_tree(place.repo, recursive=True, revision=commit, repo_type="dataset"))
    except Exception as error:
        raise _explain(url, place, error) from error
    for file in found:
        if isinstance(file, RepoFile) and _is_below(file.path, place.path):
            # Of a large file, git has a pointer, which changes with the content as well.
            entry = Entry(file.path, file.size, "")
            yield str(HubPlace(place.repo, commit, file.path)), entry, str(file.blob_id)


def _is_below(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")


def _explain(url: str, place: HubPlace, error: Exception) -> Exception:
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    shown = f"hf://datasets/{place.repo}"
    if isinstance(error, GatedRepoError):
        return SourceError(
            f"{shown} is open only to those whom its owners let in.",
            hint=f"Ask at {endpoint()}/datasets/{place.repo}, then log in: hf auth login",
        )
    if isinstance(error, RevisionNotFoundError):
        return SourceError(f"{shown} has no revision {place.revision!r}.", hint="Name a branch, a tag or a commit.")
    if isinstance(error, RepositoryNotFoundError):
        return SourceError(
            f"{shown}: the hub has no such dataset, or you may not see it.",
            hint="Check the name; for a private one log in, or set HF_TOKEN: hf auth login",
        )
    if is_passing(error) or (isinstance(error, HfHubHTTPError) and _status(error) in (429, 500, 502, 503, 504)):
        return StoreError(f"The hub cannot list {shown} now: {_first_line(error)}", hint="Run the same command later.")
    if isinstance(error, HfHubHTTPError) and _status(error) in (401, 403):
        return SourceError(
            f"{shown}: the hub refuses the token ({_status(error)}).", hint="Log in with another: hf auth login"
        )
    return SourceError(f"{url} cannot be listed: {_first_line(error)}", hint="Check the address and HF_ENDPOINT.")


def _status(error: object) -> int:
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
