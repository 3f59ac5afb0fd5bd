"""What a run folder or table may make this process do: import code of others, or send a key to a server.

Its user named these, or allowed the folder to name them.

Design: docs/design/proof-and-trust.md
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from shardmill.core.errors import SpecError, UsageError

_VARIABLE = "SHARDMILL_CODE"
PYTHON = "python:"
# The entry of a fingerprint with the digest of code that comes with a model.
MODEL_CODE = "code"
_MODEL = "model:code_"
# Names go into the environment of workers, on Slurm through a shell script, so they must be plain.
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_KEY = "key:"
# The variable with the key of a server, unless another is named.
KEY_VARIABLE = "OPENAI_API_KEY"
_KEY_NAME = re.compile(r"key:[A-Za-z_]\w*@https?://[\w.:/\[\]~%-]+", re.ASCII)
# Functions of shardmill itself, by the names that plans of `dedup` have. These stay, wherever the functions are.
OWN_CALLS = frozenset(
    f"shardmill.texts.duplicates:{name}"
    for name in ("exact_signatures", "Signatures", "Bands", "pair_up", "WithoutDuplicates")
)
# Code of shardmill itself, which any folder may name.
_OURS = {"shardmill.testing:FakeTask", "shardmill.testing:FakeStream", *OWN_CALLS}
_CALL = "call:code_"

_allowed: set[str] = set(filter(None, os.environ.get(_VARIABLE, "").split(",")))


def code_among(task: str, places: Iterable[str], fingerprint: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The names of code among a task, the places of its source and the fingerprint of its model.

    >>> code_among("lengths:CountWords", ["python:db:connect", "reviews.jsonl"])
    ('lengths:CountWords', 'python:db:connect')
    """
    tasks = () if task in _OURS or ":" not in task else (task,)
    model = (fingerprint or {}).get(MODEL_CODE)
    models = (name_model_code(model),) if model else ()
    return (*tasks, *(place for place in places if place.startswith(PYTHON)), *models)


def calls_among(params: Mapping[str, Any]) -> tuple[str, ...]:
    """The name of the function that a task's parameters `call`: of a file that was sent along, by its digest.

    >>> calls_among({"call": "words.clean:count"})
    ('words.clean:count',)
    """
    call, code = params.get("call"), params.get("code")
    if not isinstance(call, str):
        return ()
    # A file that comes along is code of others, even under a name of ours.
    if isinstance(code, str) and code:
        return (f"{_CALL}{digest_code(code)}",)
    return () if call in _OURS else (call,)


def digest_code(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def name_model_code(digest: str) -> str:
    """The name of code that comes with a model: it says what the code is, wherever the model lies."""
    return f"{_MODEL}{digest}"


def key_name(variable: str, url: str) -> str:
    """The name under which the key in an environment variable may be sent to a server.

    >>> key_name("OPENAI_API_KEY", "http://localhost:8000/v1")
    'key:OPENAI_API_KEY@http://localhost:8000/v1'
    """
    name = f"{_KEY}{variable}@{url}"
    if not _KEY_NAME.fullmatch(name):
        raise SpecError(
            f"{variable!r} is not a variable with a key, or {url!r} not the URL of a server.",
            hint="Write the variable's name, as in OPENAI_API_KEY, and a URL as in http://host:8000/v1.",
        )
    return name


def allow(names: Iterable[str]) -> None:
    """Let this process and the workers that it places import code, and send keys, by these names."""
    for name in names:
        if not _KEY_NAME.fullmatch(name) and not _NAME.fullmatch(name.removeprefix(PYTHON)):
            raise SpecError(
                f"{name!r} is not a name of code.",
                hint="Write MODULE:CLASS for a task, python:MODULE:FUNCTION for a source.",
            )
        _allowed.add(name)


def is_allowed(name: str) -> bool:
    return name in _allowed


def allows_model_code() -> bool:
    """Whether code of some model is allowed."""
    return any(name.startswith(_MODEL) for name in _allowed)


def check(names: Iterable[str], *, sends_keys: bool = True) -> None:
    """Refuse code that the user neither named nor allowed, and keys that would be sent."""
    for name in names:
        if is_allowed(name):
            continue
        if name.startswith(_KEY):
            variable, _, url = name.removeprefix(_KEY).partition("@")
            if sends_keys and os.environ.get(variable):
                raise UsageError(
                    f"The run names {url}, to which {variable} is not sent without your permission.",
                    hint="If you trust whoever wrote it, say --allow-code (in Python: allow_code=True).",
                )
        else:
            what = f"names code, {name!r}"
            if name.startswith((_MODEL, _CALL)):
                what = "has a model with code of its own" if name.startswith(_MODEL) else "brings code of its own"
            raise UsageError(
                f"The run or table {what}, which is not imported without your permission.",
                hint="If you trust whoever wrote it, say --allow-code (in Python: allow_code=True).",
            )


def environment() -> dict[str, str]:
    """Variables that hand the permission on to a worker."""
    return {_VARIABLE: ",".join(sorted(_allowed))} if _allowed else {}
