"""Starts `init`: takes what was given, asks for the rest, and writes a file that was not there."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardmill.core.console import say
from shardmill.core.dialect import shell_command
from shardmill.core.errors import SpecError, UsageError, nearest
from shardmill.plan.options import declared, read_options
from shardmill.plan.spec import make_spec
from shardmill.plugins import Verb, find, names
from shardmill.sources import list_columns
from shardmill.verbs.init.options import InitOptions
from shardmill.verbs.init.page import write_page

if TYPE_CHECKING:
    from shardmill.run.request import Request

_FILE, _TASK = "job.toml", "embed"


def start(request: Request) -> None:
    options: InitOptions = request.options
    path = Path(options.file or _FILE)
    _refuse_existing(path, named=bool(options.file))
    work, params = dict(request.work), {"model": options.model} if options.model else {}
    asks = sys.stdin.isatty()
    if "source" not in work:
        work |= _given(source=(_ask(asks, "SOURCE", "Files, a folder or a URL to read"),))
    columns = list_columns(
        work["source"], work.get("query", ""), work.get("format"), *filter(None, [work.get("config")])
    )
    verb = _find_task(options.task or (_ask(asks, "", "Task", _TASK) if asks else _TASK))
    if "text" not in work:
        work |= _given(text=_ask(asks, "--text", f"Column with the text, one of {', '.join(columns)}"))
    _refuse_unknown(work["text"], columns)
    if asks and "id" not in work and (id := _ask(asks, "", "Column that identifies an item, if any", "none")) != "none":
        work |= _given(id=id)
    _check_params(verb, params, asks)
    work["source"] = list(work["source"])
    out = f"runs/{path.stem}"
    page = write_page(verb, work, params, str(path), out)
    said = tomllib.loads(page)
    make_spec(said["work"], said["execution"])
    _write(path, page)
    say(f"{path} is written. Next: {shell_command('run', '--spec', str(path), '--out', out)}")


def _refuse_existing(path: Path, *, named: bool) -> None:
    """Refuse a file that exists; of a name of ours, also a folder that has a spec."""
    if path.exists():
        found = path
    elif named or not path.parent.is_dir():
        return
    else:
        found = next((each for each in sorted(path.parent.glob("*.toml")) if _is_spec(each)), path)
    if found.exists():
        raise UsageError(
            f"{found} exists. Nothing was written.",
            hint=f"Run it with {shell_command('run', '--spec', str(found), '--out', f'runs/{found.stem}')}, or name a "
            "new file with --file.",
        )


def _is_spec(path: Path) -> bool:
    try:
        return isinstance(tomllib.loads(path.read_text(encoding="utf-8")).get("work"), dict)
    except (OSError, ValueError):
        return False


def _ask(asks: bool, flag: str, question: str, default: str | None = None) -> str:
    """The answer on a terminal; without one, what should have been given."""
    if not asks:
        raise UsageError(f"No {flag} was given.", hint=shell_command("init", "SOURCE", "--text", "FIELD"))
    answer: str = click.prompt(question, default=default, err=True)
    return answer.strip()


def _given(**answers: Any) -> dict[str, Any]:
    """Answers as options check them."""
    read = read_options(InitOptions, answers)
    return {name: getattr(read, name) for name in answers}


def _tasks() -> list[str]:
    """The verbs that run a task over the texts of a source."""
    found = []
    for name in names("verbs"):
        verb: Verb = find("verbs", name)
        if verb.task and "text" in {each.name for each in declared(verb.part("options")) if each.about.common}:
            found.append(name)
    return found


def _find_task(name: str) -> Verb:
    known = _tasks()
    if name not in known:
        raise SpecError(f"There is no task {name!r} over texts.", hint=nearest(name, known))
    verb: Verb = find("verbs", name)
    return verb


def _refuse_unknown(text: str, columns: dict[str, Any]) -> None:
    """Refuse a field, or one of several, that the source does not have; a template is checked by its run."""
    wanted = [] if "{" in text else [name.strip() for name in text.split(",")]
    if missing := [name for name in wanted if name not in columns]:
        raise SpecError(f"The source has no column {missing[0]!r}.", hint=nearest(missing[0], list(columns)))


def _check_params(verb: Verb, params: dict[str, Any], asks: bool) -> None:
    """Refuse a model that the task does not take, and ask for what it needs."""
    known = {each.name: each for each in declared(verb.part("options")) if each.part == "params"}
    if params and "model" not in known:
        raise SpecError(f"{verb.name} takes no --model.")
    needed = [each for each in known.values() if each.field.is_required() or (each.about.needed and not each.default)]
    for each in needed:
        if each.name not in params:
            if each.name != "model":
                raise SpecError(
                    f"{verb.name} needs {each.flag}, for which `init` has no question.",
                    hint="Begin with docs/spec.md, or with the command itself.",
                )
            params["model"] = _ask(asks, each.flag, each.help.rstrip("."))


def _write(path: Path, page: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.write(page)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", hint="Name another with --file.") from error
