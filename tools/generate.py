"""Writes the pages that are made of the code: commands, functions, keys of a spec, what sources are
checked with, extras, rooms, the features' tests, and what agents choose from.

python -m tools.generate            # writes all, and the functions
python -m tools.generate --check    # only compares
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import shardmill
from shardmill.cli.command import describe_verb, grouped
from shardmill.plan.options import Declared, declared
from shardmill.plan.spec import Execution, TableSpec, Work
from shardmill.plugins import Verb, find
from shardmill.plugins.builtin import BUILTIN
from shardmill.run.function import describe, python_options, type_of
from tests.support.checked import STORES, WRITE, packings
from tests.support.families import EMBEDDERS, KINDS, PADDED_WRITERS, TITLES, WRITERS
from tests.support.selection import TESTS, files, is_thorough, read_features
from tools import extras, functions
from tools.rooms import MAY_IMPORT

FOLDER = Path(__file__).parents[1] / "docs"


def render_cli() -> str:
    parts = ["# The command line\n\nGenerated from the verbs' declarations by `python -m tools.generate`.\n"]
    for name in BUILTIN["verbs"]:
        verb: Verb = find("verbs", name)
        if verb.hidden:
            continue
        about = describe_verb(verb, "The same command resumes an interrupted run.").split("\n\n")
        parts.append("\n\n".join([f"## shardmill {name}", *(textwrap.fill(each, 118) for each in about)]) + "\n")
        if verb.examples:
            parts.append("\n".join(["```", *verb.examples, "```", ""]))
        shown = [each for each in declared(verb.part("options")) if each.about.only in ("", "command")]
        for title, records in grouped(shown, whole=True).items():
            if rows := [record for record in records if record[0] != "--help"]:
                parts.append(f"| {title} | |\n| --- | --- |")
                parts += [f"| `{_cell(flags)}` | {_cell(meaning)} |" for flags, meaning in rows]
                parts.append("")
    parts.append(STATUSES)
    return "\n".join(parts)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


STATUS_TABLE = """| status | meaning |
| --- | --- |
| 0 | done |
| 1 | failed, or not verified |
| 2 | wrong usage |
| 69 | try again elsewhere: the workers could not run where they were placed |
| 74 | try again: a store, a source, a database, the model hub or a cluster did not answer; the same command resumes |
| 75 | try again: a worker was told to stop |
| 130 | interrupted; the same command resumes |
"""
STATUSES = f"## Exit status\n\n{STATUS_TABLE}"

INTRODUCTION = """# From Python

Generated from docstrings by `python -m tools.generate`. Everything here is imported from `shardmill`; options mean what
the options of the same name mean on [the command line](cli.md).
"""


def render_api() -> str:
    parts = [INTRODUCTION]
    for name in sorted((n for n in shardmill.__all__ if not n.startswith("__")), key=lambda n: (n[0].isupper(), n)):
        thing = getattr(shardmill, name)
        parts.append(f"## {name}\n")
        if inspect.isclass(thing):
            parts += [_text(thing), *_members(thing)]
        else:
            parts += [_signature(name, thing), *_about(name, thing)]
    return "\n".join(parts)


def _text(thing: Any) -> str:
    """A docstring as Markdown: indented or doctest lines as code, the rest as it is."""
    blocks = []
    for block in inspect.cleandoc(thing.__doc__ or "").split("\n\n"):
        is_code = block.startswith((">>>", "import ")) or ("shardmill." in block and "(" in block and "\n" not in block)
        blocks.append(f"```python\n{block}\n```" if is_code else block)
    return "\n\n".join(blocks) + "\n"


def _signature(name: str, function: Callable[..., Any]) -> str:
    parameters = inspect.signature(function).parameters.values()
    shown = [_parameter(p) for p in parameters]
    named = next((i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), None)
    if named is not None:
        shown.insert(named, "*")
    return f"```python\n{name}({', '.join(shown)})\n```\n"


def _parameter(parameter: inspect.Parameter) -> str:
    """A parameter with its default as source code has it; a function as default is only hinted at."""
    bare = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
    if parameter.default is parameter.empty:
        return bare
    default = "…" if callable(parameter.default) else json.dumps(parameter.default)
    return f"{bare}={ {'null': 'None', 'true': 'True', 'false': 'False'}.get(default, default) }"


def _about(name: str, function: Callable[..., Any]) -> Iterator[str]:
    """The docstring of a function; of a verb, its options as a table."""
    verb = find("verbs", name.replace("_", "-"))
    if verb is None or not verb.call:
        yield _text(function)
        return
    resumes = " The same call resumes an interrupted run." if verb.resumes else ""
    yield f"{verb.summary}{resumes}\n\n```python\n{verb.call}\n```\n"
    yield "| option | type | meaning |\n| --- | --- | --- |"
    yield from (f"| `{o.call}` | `{_cell(type_of(o))}` | {_cell(describe(o))} |" for o in _of(verb))
    yield ""


def _of(verb: Verb) -> list[Declared]:
    return python_options(verb)


def _members(kind: type) -> Iterator[str]:
    fields = getattr(kind, "model_fields", {})
    if fields:
        yield _listed("Fields", fields)
    for name, member in vars(kind).items():
        if not name.startswith(("_", "model_")) and inspect.isfunction(member) and member.__doc__:
            yield f"### {kind.__name__}.{name}\n"
            yield _signature(name, member).replace("(self, ", "(").replace("(self)", "()")
            yield _text(member)


def _listed(title: str, names: Iterable[str]) -> str:
    return textwrap.fill(f"{title}: {', '.join(f'`{name}`' for name in names)}.", 118) + "\n"


def _default(each: Declared) -> str:
    if each.field.is_required() or (each.about.needed and not each.default):
        return "required"
    return each.default or "none"


def _as_key(help: str) -> str:
    """The help of an option, where others are named as keys of a spec."""
    return re.sub(r"--([a-z][a-z-]*)", lambda found: f"`{found[1].replace('-', '_')}`", help)


def render_spec() -> str:
    """docs/spec.md with its tables of keys made anew; the text around them is written by hand."""
    page = (FOLDER / "spec.md").read_text()
    for name, model in (("work", Work), ("work.to", TableSpec), ("execution", Execution)):
        every = sorted(declared(model), key=lambda each: each.about.only == "file")
        rows = [f"| `{each.name}` | {_default(each)} | {_cell(_as_key(each.help))} |" for each in every]
        table = "\n".join(["| key | default | meaning |", "| --- | --- | --- |", *rows])
        page = re.sub(
            rf"(<!-- keys of {re.escape(name)} -->\n).*?(\n<!-- end -->)",
            lambda found, table=table: f"{found[1]}{table}{found[2]}",
            page,
            flags=re.DOTALL,
        )
    return page


def render_sources() -> str:
    """docs/sources.md with the table of what the conformance suite is run over made anew."""
    page = (FOLDER / "sources.md").read_text()
    rows = []
    for format in WRITE:
        how = " ".join(f"`{packing}`" for packing in packings(format) if packing)
        rows.append(f"| {format} | {f'as it is, {how}' if how else 'as it is'} |{' yes |' * len(STORES)}")
    head = f"| format | compressed | {' | '.join(STORES.values())} |"
    table = "\n".join([head, "| --- " * (2 + len(STORES)) + "|", *rows])
    return re.sub(r"(<!-- checked -->\n).*?(\n<!-- end -->)", lambda m: f"{m[1]}{table}{m[2]}", page, flags=re.DOTALL)


def render_install() -> str:
    """docs/install.md with the table of extras made anew from pyproject.toml."""
    page = (FOLDER / "install.md").read_text()
    made = extras.render_table()
    return re.sub(r"(<!-- extras -->\n).*?(\n<!-- end -->)", lambda m: f"{m[1]}{made}{m[2]}", page, flags=re.DOTALL)


def render_agents() -> str:
    """docs/agents.md with the tables of commands and of exit statuses made anew."""
    page, verbs = (FOLDER / "agents.md").read_text(), [find("verbs", name) for name in BUILTIN["verbs"]]
    rows = [
        f"| `{verb.name}` | {_cell(verb.summary)} | {f'`{functions.function_name(verb)}`' if verb.call else ''} |"
        for verb in verbs
        if not verb.hidden
    ]
    table = "\n".join(["| command | what it does | in Python |", "| --- | --- | --- |", *rows])
    for name, made in (("verbs", table), ("statuses", STATUS_TABLE.strip())):
        page = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)",
            lambda found, made=made: f"{found[1]}{made}\n{found[2]}",
            page,
            flags=re.DOTALL,
        )
    return page


FAMILIES_INTRODUCTION = """# Families of models

Which networks run here, what they are compared with, and how they run on a GPU. Generated from the lists of the tests
by `python -m tools.generate`. A family that is not here may run: a worker compares every kernel with float32 before its
first batch, and `verify` compares a sample.

Unless real weights are named, a family was tried with random ones only, as a tiny network: that shows that the
arithmetic is right, and nothing about a model's quality. FNet is refused, since padding changes its vectors, and so are
encoder-decoder models other than T5's.

## Models that embed

`embed`, `load`, `migrate`, `search`. The vectors of long and short texts, in one batch, equal those of
sentence-transformers for each text alone: no number is further off than 2e-5 and 0.02 %
(`tests/golden/test_families.py`). `classify`, `score` and `train` run the same networks. "No torch": the [light
install](install.md) is enough on a CPU. "Packed": batches on a GPU have no padding, and their layers are compiled
[where it pays](design/packed-and-compiled.md#compile-where-it-pays). BigBird, ConvBERT and Nyströmformer mix padding
into vectors, so only texts of one length share a batch.
"""
WRITERS_INTRODUCTION = """
## Models that write

`generate`, `summarize`. In a running batch, these write what transformers' `generate` writes for each text alone, token
for token (`tests/unit/models/decoding/test_families.py`). Real weights tried: SmolLM2-135M (Llama) and a small FLAN-T5.
"""
KINDS_INTRODUCTION = """
## Other kinds of models

What each kind is compared with, text by text and in batches, and how near it must be. Each has a test in which a run is
killed, finished on another engine and verified. Families under "no torch" run in the light install on a CPU, which the
same tests check; the others need torch. "As `embed`" is what the first table says of the family.
"""
OTHERS = (
    ("beside these", "equal to", "no further off than", "test"),
    ("---",) * 4,
    (
        "static embeddings of sentence-transformers; of model2vec by its rules, which the tests spell out",
        "`SentenceTransformer.encode`",
        "1e-6",
        "`tests/golden/test_static_embeddings.py`",
    ),
    (
        "vectors in bytes and bits (`--dtype int8`, `binary`), of any embedder",
        "the vector, rounded once",
        "one step of a range",
        "`tests/contract/tasks/test_quantised.py`",
    ),
    (
        "LoRA adapters (`--adapter`), on BERT; in runs also Llama, Qwen2 and classifiers",
        "peft's `merge_and_unload`, where peft is installed",
        "1e-5 of a weight",
        "`tests/unit/models/test_adapters.py`",
    ),
    (
        "embedders that take messages of a chat",
        "`SentenceTransformer.encode`",
        "0.001",
        "`tests/unit/models/test_chat_embedders.py`",
    ),
)
KINDS_END = """
A model of another kind than a verb runs is refused before a run is planned, with the verb that fits
(`tests/unit/models/test_wrong_kinds.py`).
"""


def render_families() -> str:
    """The families that tests run, and how."""
    rows = [FAMILIES_INTRODUCTION, "| family | known models | no torch | on a GPU | real weights |", "| --- " * 5 + "|"]
    for name, family in EMBEDDERS.items():
        runs = f"padded: {family.padded}" if family.padded else "packed"
        rows.append(f"| {name} | {family.known} | {'yes' if family.light else ''} | {runs} | {family.real} |")
    written = [f"{', '.join(WRITERS)}.", f"So do these, in padded batches: {', '.join(PADDED_WRITERS)}."]
    others = (f"| {' | '.join(row)} |" for row in OTHERS)
    texts = "\n\n".join(textwrap.fill(text, 118) for text in written)
    return "\n".join([*rows, WRITERS_INTRODUCTION, texts, KINDS_INTRODUCTION, *_kinds(), "", *others, KINDS_END])


def _kinds() -> Iterator[str]:
    titles = ("kind", "verbs", "equal to", "no further off than", "no torch", "with torch", "on a GPU", "refused")
    yield f"| {' | '.join((*titles, 'real weights'))} |"
    yield "| --- " * (len(titles) + 1) + "|"
    for name, kind in KINDS.items():
        light, heavy = (", ".join(TITLES[each] for each in names) for names in (kind.light, kind.heavy))
        about = (kind.verbs, f"{kind.reference} (`{kind.test}`)", kind.near, light, heavy, kind.on_gpu, kind.refused)
        yield f"| {' | '.join((name, *about, kind.real or 'never tried'))} |"


def render_map() -> str:
    """CONTRIBUTING.md with the map of the rooms made anew."""
    rows = []
    for room, above in MAY_IMPORT.items():
        if not room.startswith("_"):
            module = importlib.import_module(f"shardmill.{room}")
            about = (module.__doc__ or "").partition("\n\n")[0]
            uses = " ".join(f"`{name}`" for name in above.split() if not name.startswith("_"))
            rows.append(f"| `{room}` | {_cell(about)} | {uses} |")
    table = "\n".join(["| room | what it holds | imports |", "| --- | --- | --- |", *rows])
    page = (FOLDER.parent / "CONTRIBUTING.md").read_text()
    return re.sub(r"(<!-- rooms -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}{table}\n{m[2]}", page, flags=re.DOTALL)


TESTS_INTRODUCTION = """# Features and their tests

Generated from `tests/features.toml`, `tests/thorough.txt` and the docstrings of the tests by
`python -m tools.generate`. `make test` runs the tests in bold, and `make test-all` runs all.
`tests/contract/test_every_verb.py` calls every verb.
"""


def render_tests() -> str:
    """Each feature with the files that test it, and what each file is about."""
    parts, described = [TESTS_INTRODUCTION], {}
    for kind, features in read_features().items():
        parts.append(f"## {kind.capitalize()}\n\n| {kind.removesuffix('s')} | tests |\n| --- | --- |")
        for name, places in sorted(features.items()):
            found = [path for place in places for path in files(place)]
            parts.append(f"| {name} | {', '.join(map(_test_link, dict.fromkeys(found)))} |")
            described |= dict.fromkeys(found)
        parts.append("")
    parts.append("## What the files are about\n\n| file | what it tests |\n| --- | --- |")
    for path in sorted(described):
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        parts.append(f"| {_test_link(path)} | {_cell(said.partition(chr(10) * 2)[0])} |")
    return "\n".join(parts) + "\n"


def _test_link(path: Path) -> str:
    link = f"[{path.relative_to(TESTS)}](../tests/{path.relative_to(TESTS)})"
    return link if is_thorough(path) else f"**{link}**"


PAGES = {
    "agents.md": render_agents,
    "cli.md": render_cli,
    "api.md": render_api,
    "spec.md": render_spec,
    "sources.md": render_sources,
    "families.md": render_families,
    "install.md": render_install,
    "tests.md": render_tests,
    "../CONTRIBUTING.md": render_map,
}


def main() -> None:
    if "--check" not in sys.argv:
        functions.main()
    for name, render in PAGES.items():
        page = render()
        if "--check" not in sys.argv:
            (FOLDER / name).write_text(page)
        elif (FOLDER / name).read_text() != page:
            sys.exit(f"docs/{name} is out of date: run python -m tools.generate")


if __name__ == "__main__":
    main()
