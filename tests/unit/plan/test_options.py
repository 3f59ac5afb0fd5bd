"""Options are declared once; commands, functions, specs and errors follow from the declarations."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import shardmill
from shardmill.core.dialect import FLAGS, speak, speaking
from shardmill.core.errors import ShardmillError, UsageError
from shardmill.plan.options import Declared, declared
from shardmill.plugins import find, names
from shardmill.run.request import make_request
from tests.support.cli import Cli

VERBS = [name for name in names("verbs") if find("verbs", name).options]
FUNCTIONS = [name for name in VERBS if find("verbs", name).call]
MOST_COMMON = 15


def options_of(verb: str) -> list[Declared]:
    return list(declared(find("verbs", verb).part("options")))


@pytest.mark.parametrize("verb", VERBS)
def test_short_help_is_short_and_every_option_has_help(verb: str) -> None:
    every = [each for each in options_of(verb) if each.about.only in ("", "command")]
    assert len([each for each in every if each.about.common and not each.about.argument]) <= MOST_COMMON
    assert all(each.help.endswith((".", "…/{name}")) or each.help[-1].isalnum() for each in every)
    flags = [flag for each in every if not each.about.argument for flag in each.about.flags or (each.flag,)]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize("verb", VERBS)
def test_a_summary_is_not_cut(verb: str) -> None:
    summary = find("verbs", verb).summary
    assert summary.endswith(".")
    assert len(summary) <= 90


@pytest.mark.parametrize("verb", FUNCTIONS)
def test_a_function_has_a_true_signature(verb: str) -> None:
    function = getattr(shardmill, verb.replace("-", "_"))
    parameters = inspect.signature(function).parameters
    assert [each.call for each in options_of(verb) if each.about.only in ("", "python")].sort() == [*parameters].sort()
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    assert all(f"{name}:" in inspect.getdoc(function) for name in parameters)  # type: ignore[operator]


def test_the_functions_are_as_generated() -> None:
    pytest.importorskip("ruff")
    from tools import functions

    assert functions.formatted() == functions.FILE.read_text(), "run python -m tools.functions"


def test_flags_without_a_value_are_known_to_the_dialect() -> None:
    found = {each.flag.removeprefix("--") for verb in VERBS for each in options_of(verb) if each.kind is bool}
    assert {flag for flag in FLAGS if flag not in ("errors",)} <= found | {"errors"}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("No --out was given.", "No out= was given."),
        ("Name a folder for the run: --out runs/mine", 'Name a folder for the run: out="runs/mine"'),
        ("Choose another --out, or start over with --fresh.", "Choose another out=, or start over with fresh=True."),
        ("Give --window-tokens 256 as well.", "Give window_tokens=256 as well."),
        ("Name the field: --text FIELD, or text in [work].", "Name the field: text=FIELD, or text in [work]."),
        ("Use --device cpu.", 'Use device="cpu".'),
        (
            "See `shardmill show runs/x --errors`. Raise --max-errors.",
            "See `shardmill show runs/x --errors`. Raise max_errors=.",
        ),
        (
            "Resume it with: shardmill resume runs/x --allow-code",
            "Resume it with: shardmill resume runs/x --allow-code",
        ),
    ],
)
def test_a_message_speaks_to_its_reader(written: str, read: str) -> None:
    with speaking("python"):
        assert speak(written) == read
    with speaking("command"):
        assert speak(written) == written


def refusal(call: Any) -> str:
    with pytest.raises((ShardmillError, TypeError)) as caught:
        call()
    return str(caught.value)


def test_python_is_told_in_python() -> None:
    with speaking("python"):
        assert refusal(lambda: shardmill.generate("a.jsonl", model="m", template="{t}")) == (
            'No out= was given.\nName a folder for the run: out="runs/mine"'
        )
        assert "workers=: must be a whole number (got 'two')" in refusal(
            lambda: shardmill.embed("a.jsonl", text="t", out="x", workers="two")
        )
        assert "model=: must be a text (got ['a'])" in refusal(
            lambda: shardmill.embed("a.jsonl", text="t", out="x", model=["a"])  # type: ignore[arg-type]
        )
        said = refusal(lambda: shardmill.embed("a.jsonl", text="t", out="x", sentences=3))  # type: ignore[call-arg]
        assert "embed() has no option 'sentences'. It is an option of summarize." in said
        assert "Did you mean 'workers'?" in refusal(lambda: shardmill.embed("a.jsonl", text="t", workerz=2))  # type: ignore[call-arg]
        assert "partition= is an option of the engine 'slurm'" in refusal(
            lambda: shardmill.embed("a.jsonl", text="t", out="x", partition="gpu")
        )


def test_the_command_line_is_told_in_flags(shardmill: Cli) -> None:
    assert "No --out was given." in shardmill("embed", "a.jsonl", "--text", "t").err
    assert "--workers: must be at least 1 (got 0)" in shardmill("embed", "a.jsonl", "--text", "t", "--workers", 0).err
    assert "'64XB' is not a size" in shardmill("embed", "a.jsonl", "--text", "t", "--shard-bytes", "64XB").err
    assert "Add --engine slurm" in shardmill("embed", "a.jsonl", "--text", "t", "--partition", "gpu").err
    assert "--text is given twice" in shardmill("embed", "a.jsonl", "--text", "t", "--text", "u").err


def test_help_is_short_and_all_of_it_is_there(shardmill: Cli) -> None:
    short, whole = shardmill("embed", "--help").out, shardmill("embed", "--help-all").out
    assert "--precision" not in short
    assert "--help-all" in short
    assert "--precision" in whole


def test_sizes_and_devices_take_what_people_write() -> None:
    verb = find("verbs", "embed")
    given = {"source": "a.jsonl", "text": "t", "shard_bytes": "64MB", "device": "cuda:0,2", "workers": "2:8"}
    request = make_request(verb, given)
    assert request.execution == {"shard_bytes": "64MB", "device": "cuda:0,2", "workers": "2:8"}
    assert (request.options.shard_bytes, request.options.workers, request.options.min_workers) == (64_000_000, 8, 2)
    with pytest.raises(UsageError, match="'cuda:x' is not a device"):
        make_request(verb, {**given, "device": "cuda:x"})
