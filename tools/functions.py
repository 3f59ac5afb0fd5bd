"""Writes src/shardmill/verbs/functions.py, the verbs as Python functions, from the declarations of their options.

python -m tools.functions            # writes it
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from shardmill.core.dialect import speak, speaking
from shardmill.plan.options import Declared, declared, plain_type
from shardmill.plugins import Verb, find, names

FILE = Path(__file__).parents[1] / "src/shardmill/verbs/functions.py"
HEAD = '''"""The verbs as functions. Generated from their options: python -m tools.functions"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from shardmill.run.request import call_verb, checked

if TYPE_CHECKING:
{imports}

__all__ = [{names}]

Place = str | os.PathLike[str]
'''


def render() -> str:
    """The module, as it should be."""
    verbs = sorted((find("verbs", name) for name in names("verbs")), key=lambda verb: verb.name)
    verbs = [verb for verb in verbs if verb.call]
    places = sorted({verb.returns for verb in verbs})
    imports = "\n".join(f"    from {module} import {kind}" for module, _, kind in (p.partition(":") for p in places))
    head = HEAD.format(imports=imports, names=", ".join(f'"{verb.name}"' for verb in verbs))
    return head + "".join(f"\n\n{_function(verb)}" for verb in verbs)


def python_options(verb: Verb) -> list[Declared]:
    """The options of a function: what stands without a name, then what has to be given, then the rest."""
    every = [each for each in declared(verb.part("options")) if each.about.only in ("", "python")]
    first = [each for each in every if is_positional(each)]
    needed = [each for each in every if each.about.needed and each not in first]
    out = [each for each in every if each.name == "out" and each not in needed]
    return [*first, *needed, *out, *(each for each in every if each not in (*first, *needed, *out))]


def is_positional(each: Declared) -> bool:
    return each.about.argument or each.about.positional


def _function(verb: Verb) -> str:
    returns = verb.returns.rpartition(":")[2]
    options = python_options(verb)
    lines = ["@checked", f"def {verb.name}("]
    for i, each in enumerate(options):
        if not is_positional(each) and (i == 0 or is_positional(options[i - 1])):
            lines.append("    *,")
        lines.append(f"    {each.call}: {type_of(each)}{_default(each)},")
    lines += [f") -> {returns}:", *_docstring(verb, options)]
    lines += [
        "    given = dict(locals())",
        f'    result: {returns} = call_verb("{verb.name}", given)',
        "    return result",
    ]
    return "\n".join(lines) + "\n"


def type_of(each: Declared) -> str:
    """The type of an option in a signature."""
    optional = "" if each.about.needed or is_flag(each) else " | None"
    if each.about.accepts:
        return each.about.accepts + optional
    return _type(each.field.annotation) + optional


def _type(annotation: Any) -> str:
    kinds = [each for each in get_args(annotation) if each is not type(None)]
    if get_origin(annotation) is Literal:
        return f"Literal[{', '.join(repr(value) for value in kinds)}]".replace("'", '"')
    if kinds and get_origin(annotation) not in (tuple, list) and len(kinds) == 1:
        return _type(kinds[0])
    if kinds and get_origin(kinds[0]) is Literal:
        return _type(kinds[0])
    plain = plain_type(annotation)
    return "Sequence[str]" if plain is tuple else str(getattr(plain, "__name__", "Any"))


def is_flag(each: Declared) -> bool:
    return each.kind is bool and each.field.default is False


def _default(each: Declared) -> str:
    if each.about.needed:
        return ""
    return " = False" if is_flag(each) else " = None"


def describe(each: Declared) -> str:
    """The help of an option, in the words of Python."""
    default = f" Default: {each.default}." if each.default else ""
    engine = f"With --engine {each.about.engine.partition(',')[0]}: " if each.about.engine else ""
    with speaking("python"):
        return speak(f"{engine}{each.help}{default}")


def _docstring(verb: Verb, options: list[Declared]) -> Iterator[str]:
    resumes = " The same call resumes an interrupted run." if verb.resumes else ""
    yield f'    """{verb.summary}{resumes}'
    yield ""
    yield from (f"    {line}" for line in verb.call.splitlines())
    yield ""
    for each in options:
        yield from textwrap.wrap(
            f"{each.call}: {describe(each)}", 116, initial_indent="    ", subsequent_indent="        "
        )
    yield '    """'


def formatted() -> str:
    """The module as ruff leaves it."""
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(FILE), "-"]
    return subprocess.run(command, input=render(), capture_output=True, text=True, check=True).stdout


def main() -> None:
    FILE.write_text(formatted())


if __name__ == "__main__":
    main()
