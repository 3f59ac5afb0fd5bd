"""Functions and classes of users by name, `package.module:function` or `file.py:function`: described and imported.

A module named by its file is sent along in the plan, as text. An installed one is looked up on each machine. The digest
of either is part of a plan's fingerprint, and so are those of the user's own modules that it imports. Functions of
shardmill itself have a fingerprint that is written down here.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, overload

from shardmill.core import permission
from shardmill.core.errors import SpecError, UsageError, no_exit
from shardmill.core.imports import say_imports

_Kind = TypeVar("_Kind", bound=Callable[..., Any])
_MOST_BYTES = 1 << 20
_IMPORTS = "imports"
_HINT = "Write --call package.module:function, or --call file.py:function."
_ONE_FILE = (
    "One file is sent. What it imports must be installed on every machine, or be in the folder where the command is "
    "started. A file of a package is named by its module: --call package.module:function."
)
# Functions of shardmill itself, by their names in plans: where their module is now, and their fingerprints, which are
# those of version 0.2.0. So their runs resume after a new version and after the module has moved. Give a function
# another fingerprint when its results change: runs that were begun with the old one are refused then.
_HOMES = {"shardmill.texts.duplicates": "shardmill.verbs.dedup.functions"}
_FINGERPRINTS = {name: {"function": "3d749e74215412ce", "package": "shardmill 0.2.0"} for name in permission.OWN_CALLS}
# The file whose code is being run, as it is imported.
_importing: ContextVar[str] = ContextVar("importing", default="")


@overload
def task(made: _Kind) -> _Kind: ...
@overload
def task(*, columns: Mapping[str, Any] | None = None, agreement: str | None = None) -> Callable[[_Kind], _Kind]: ...
def task(
    made: _Kind | None = None, *, columns: Mapping[str, Any] | None = None, agreement: str | None = None
) -> _Kind | Callable[[_Kind], _Kind]:
    """Mark a function of a batch, or a class made once per worker, as a task for `shardmill.apply` and `make_spec`.

    @shardmill.task
    def count_words(rows: list[dict]):
        return [{"words": len(row["body"].split())} for row in rows]

    `columns` names the result's columns with their types, as {"words": "int64"}, if the first result cannot tell them.
    `agreement` says how rows that are made again agree: "exact", "close" (vectors by cosine), "mostly" or "none".
    """

    def mark(each: _Kind) -> _Kind:
        describe_call(each)
        for name, value in (("columns", columns), ("agreement", agreement)):
            if value is not None:
                setattr(each, name, value)
        return each

    return mark if made is None else mark(made)


def describe_call(made: str | Callable[..., Any]) -> dict[str, str]:
    """The parameters that name a function or class: `call`, and the `code` of a module that is named by its file."""
    if isinstance(made, str):
        module, colon, name = made.rpartition(":")
        if not (module and colon and all(part.isidentifier() for part in name.split("."))):
            raise SpecError(f"{made!r} names no function.", hint=_HINT)
        return _of_file(Path(module), name) if _is_path(module) else {"call": made}
    name, module = getattr(made, "__qualname__", ""), getattr(made, "__module__", "")
    if not name or "<" in name or not (inspect.isfunction(made) or inspect.isclass(made)):
        raise UsageError(
            f"{name or made!r} is not a function or class of a module, so that workers could import it.",
            hint="Write it at the top level of a file.",
        )
    if module != "__main__":
        return {"call": f"{module}:{name}"}
    file = getattr(sys.modules["__main__"], "__file__", None)
    if not file or not Path(file).is_file():
        raise UsageError(f"{name} is in no file that workers could be sent.", hint="Write it into a file of its own.")
    return _of_file(Path(file), name)


def settle_call(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that name a function, with the text of its file if they name it by one."""
    described = describe_call(params["call"]) if params.get("call") and not params.get("code") else {}
    return {**params, **described}


def _is_path(module: str) -> bool:
    return module.endswith(".py") or "/" in module


def _of_file(path: Path, name: str) -> dict[str, str]:
    try:
        code = path.expanduser().read_bytes()
        text = code.decode()
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}.", hint=_HINT) from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not a file of Python: it is not UTF-8.", hint=_HINT) from error
    if len(code) > _MOST_BYTES:
        raise SpecError(f"{path} has more than {_MOST_BYTES:,} bytes.", hint="Install it as a package instead.")
    return {"call": f"{path.name}:{name}", "code": text}


def load_call(call: str, code: str = "") -> Any:
    """Import a function or class, if it is permitted: the name and the code may come from a run folder."""
    permission.check(permission.calls_among({"call": call, "code": code}))
    module_name, _, attribute = call.rpartition(":")
    home = _HOMES[module_name] if call in permission.OWN_CALLS else module_name
    found: Any = _run_code(module_name, code) if code else _import(home, call)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise SpecError(
                f"The function {call!r} cannot be found: {module_name} has no {attribute!r}.", hint=_HINT
            ) from error
    if not callable(found):
        raise SpecError(f"{call} is not a function or class.", hint=_HINT)
    return found


def fingerprint_call(call: str, code: str = "") -> dict[str, str]:
    """What must not change between resumes: the module's digest, its package's version, the modules it imports."""
    if code:
        return {"function": permission.digest_code(code), **_imports(code.encode())}
    if call in _FINGERPRINTS:
        return dict(_FINGERPRINTS[call])
    permission.check(permission.calls_among({"call": call}))
    module = call.rpartition(":")[0]
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise _missing(call, error) from error
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        raise _missing(call, f"no module named {module!r}")
    content = Path(spec.origin).read_bytes()
    inside = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
    found = {"function": hashlib.sha256(content).hexdigest()[:16], **_imports(content, module, inside)}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        package = module.partition(".")[0]
        found["package"] = f"{package} {importlib.metadata.version(package)}"
    return found


def changed_parts(planned: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """The parts of a fingerprint that are not as planned.

    What a function imports was no part of it in versions up to 0.2.0, whose plans stay valid.

    >>> changed_parts({"function": "a"}, {"function": "a", "imports": "helper c"})
    []
    """
    parts = sorted({*planned, *here} - ({_IMPORTS} - planned.keys()))
    return [name for name in parts if planned.get(name) != here.get(name)]


def _imports(code: bytes, module: str = "", package: str = "") -> dict[str, str]:
    said = say_imports(code, module, package)
    return {_IMPORTS: said} if said else {}


def refuse_while_importing() -> None:
    """Refuse to start a run from the body of a file that is only imported for its function."""
    if file := _importing.get():
        raise UsageError(
            f"{file} starts a run while it is imported for its function.",
            hint='Start it under `if __name__ == "__main__":`.',
        )


def _import(module: str, call: str) -> ModuleType:
    try:
        with _marked(module), in_bounds():
            return importlib.import_module(module)
    except ImportError as error:
        raise _missing(call, error) from error
    except Exception as error:
        if isinstance(error, UsageError):
            raise
        raise SpecError(f"{module} cannot be imported: {type(error).__name__}: {error}.") from error


def _missing(call: str, why: object) -> SpecError:
    return SpecError(
        f"The function {call!r} cannot be imported: {why}.",
        hint="Install it on every machine, or name its file, which is sent along: --call file.py:function.",
    )


def _run_code(file: str, code: str) -> ModuleType:
    """The module of a file's text. Tracebacks show its lines."""
    name = f"shardmill_call_{permission.digest_code(code)}"
    if name in sys.modules:
        return sys.modules[name]
    shown = f"<{file}>"
    linecache.cache[shown] = (len(code), None, code.splitlines(keepends=True), shown)
    module = ModuleType(name)
    module.__file__ = shown
    sys.modules[name] = module
    try:
        with _marked(file), in_bounds():
            exec(compile(code, shown, "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, UsageError):
            raise
        hint = _ONE_FILE if isinstance(error, ImportError) else ""
        raise SpecError(f"{file} cannot be imported: {type(error).__name__}: {error}.", hint=hint) from error
    return module


@contextlib.contextmanager
def in_bounds() -> Iterator[None]:
    """Call code of users: it does not end the process, and what it prints is not taken for the answer of a command."""
    with no_exit(), contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def _marked(file: str) -> Iterator[None]:
    token = _importing.set(file)
    try:
        yield
    finally:
        _importing.reset(token)
