"""Writes src/shardmill/verbs/functions.py, the verbs as Python functions, from the declarations of their options.

python -m tools.functions            # writes it
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from shardmill.plan.options import Declared
from shardmill.plugins import Verb, find
from shardmill.plugins.builtin import BUILTIN
from shardmill.run.function import docstring, function_name, is_flag, is_positional, python_options, returns, type_of

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
# Places, or data in memory: a frame, an Arrow table, a dataset, a list or an iterator.
Source = Any
'''


def render() -> str:
    """The module, as it should be."""
    verbs = sorted((find("verbs", name) for name in BUILTIN["verbs"]), key=lambda verb: verb.name)
    verbs = [verb for verb in verbs if verb.call]
    places = sorted({verb.returns for verb in verbs})
    imports = "\n".join(f"    from {module} import {kind}" for module, _, kind in (p.partition(":") for p in places))
    head = HEAD.format(imports=imports, names=", ".join(f'"{function_name(verb)}"' for verb in verbs))
    return head + "".join(f"\n\n{_function(verb)}" for verb in verbs)


def _function(verb: Verb) -> str:
    options = python_options(verb)
    lines = ["@checked", f"def {function_name(verb)}("]
    for i, each in enumerate(options):
        if not is_positional(each) and (i == 0 or is_positional(options[i - 1])):
            lines.append("    *,")
        lines.append(f"    {each.call}: {type_of(each)}{_default(each)},")
    lines += [f") -> {returns(verb)}:", *_docstring(verb, options)]
    lines += [
        "    given = dict(locals())",
        f'    result: {returns(verb)} = call_verb("{verb.name}", given)',
        "    return result",
    ]
    return "\n".join(lines) + "\n"


def _default(each: Declared) -> str:
    if each.about.needed:
        return ""
    return " = False" if is_flag(each) else " = None"


def _docstring(verb: Verb, options: list[Declared]) -> Iterator[str]:
    first, *rest = docstring(verb, options).splitlines()
    yield f'    """{first}'
    yield from (f"    {line}" if line else "" for line in rest)
    yield '    """'


def formatted() -> str:
    """The module as ruff leaves it."""
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(FILE), "-"]
    return subprocess.run(command, input=render(), capture_output=True, text=True, check=True).stdout


def main() -> None:
    FILE.write_text(formatted())


if __name__ == "__main__":
    main()
