"""A spec file as text: the keys that were chosen, and the other common ones as comments."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from shardmill.core.dialect import shell_command
from shardmill.plan.options import Declared, declared
from shardmill.plan.spec import Execution, Work
from shardmill.plugins import Verb

# In the order of the file; others are in docs/spec.md.
_WORK = ("source", "query", "format", "text", "id", "keep", "where", "task")
# What a comment shows of a key that has no default to show.
_EXAMPLES: dict[str, Any] = {
    "query": "SELECT id, body FROM pages",
    "format": "jsonl",
    "id": ["id"],
    "keep": ["title"],
    "where": "stars <= 2",
    "workers": 2,
}


def write_page(verb: Verb, work: Mapping[str, Any], params: Mapping[str, Any], file: str, out: str) -> str:
    """The whole file. It names the command that runs it."""
    known = {each.name: each for each in declared(Work)}
    own = [each for each in declared(verb.part("options")) if each.part == "params" and each.about.only != "command"]
    parts = [
        f"# {shell_command('run', '--spec', file, '--out', out)}\n#\n"
        "# runs it, and resumes it if it was interrupted. All keys: docs/spec.md",
        "# What the result depends on. A run with another [work] is another run.\n[work]",
        *_keys((known[name] for name in _WORK), {**work, "task": verb.name}),
        f"# Parameters of `{verb.name}`.\n[work.params]",
        *_keys((each for each in own if each.about.common or each.name in params), params),
        "# How it runs. It may change between resumes.\n[execution]",
        *_keys((each for each in declared(Execution) if each.about.common), {}),
    ]
    return "\n\n".join(parts) + "\n"


def _keys(options: Iterable[Declared], given: Mapping[str, Any]) -> Iterable[str]:
    """Each key with its help; one that was not given, as a comment."""
    for each in options:
        help = "\n".join(textwrap.wrap(_as_key(each.help), 100, initial_indent="# ", subsequent_indent="# "))
        if each.name in given:
            yield f"{help}\n{each.name} = {to_toml(given[each.name])}"
        elif (shown := _example(each)) is not None:
            yield f"{help}\n# {each.name} = {to_toml(shown)}"


def _example(each: Declared) -> Any:
    value = each.field.default
    return value if isinstance(value, str | int | float) and value not in ("", False) else _EXAMPLES.get(each.name)


def _as_key(help: str) -> str:
    """The help of an option, where others are named as keys."""
    return re.sub(r"--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), help)


def to_toml(value: Any) -> str:
    """A text, number, truth or list of these as TOML.

    >>> to_toml(["a", 'b"']), to_toml(True)
    ('["a", "b\\\\""]', 'true')
    """
    # JSON leaves DEL as it is, which TOML forbids.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
