"""What installed packages bring is found by name, lazily, and costs nothing else (`shardmill plugins`)."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shardmill as package
from shardmill import plugins
from shardmill.core.dialect import speaking
from shardmill.core.errors import SpecError, UsageError
from tests.support.cli import Cli, assert_told
from tests.support.packages import forget_installed

Install = Callable[..., None]

GOOD = """
from shardmill.plugins.base import Verb

VERB = Verb(name="count", summary="Count things.", options="counting:Options", start="counting:start")
"""
COUNTING = """
from shardmill.plan.options import CallOptions, option

class Options(CallOptions):
    upto: int = option(3, "How far.", metavar="N", common=True)

def start(request):
    print(sum(range(request.options.upto)))
    return request.options.upto
"""
CALLED = GOOD.replace("options=", 'call="shardmill.count(upto=3)", options=')


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Makes a package with entry points, as an installed one is."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(package: str, group: str, name: str, place: str, **modules: str) -> None:
        about = tmp_path / f"{package}-1.0.dist-info"
        about.mkdir(exist_ok=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[shardmill.{group}]\n{name} = {place}\n")
        for module, text in modules.items():
            (tmp_path / f"{module}.py").write_text(text)
        forget_installed()

    yield add
    forget_installed()


def test_a_verb_of_a_package_is_a_command(install: Install, shardmill: Cli) -> None:
    install("counters", "verbs", "count", "counted:VERB", counted=GOOD, counting=COUNTING)
    assert "Count things." in shardmill("--help").out
    assert "--upto N" in shardmill("count", "--help").out
    assert shardmill("count", "--upto", 5).out == "10\n"
    assert "counters 1.0" in shardmill("plugins").out


def test_a_verb_of_a_package_is_a_function(install: Install) -> None:
    install("counters", "verbs", "count", "called:VERB", called=CALLED, counting=COUNTING)
    assert package.count(upto=5) == 5
    assert package.count() == 3
    assert str(inspect.signature(package.count)) == "(*, upto: 'int | None' = None) -> 'Run'"
    assert inspect.getdoc(package.count) == "Count things.\n\nshardmill.count(upto=3)\n\nupto: How far. Default: 3."
    assert "count" not in dir(package), "what is installed is looked for when it is asked for"


def test_a_function_of_a_package_says_what_is_wrong_as_ours_do(install: Install) -> None:
    install("counters", "verbs", "count", "called:VERB", called=CALLED, counting=COUNTING)
    with pytest.raises(TypeError, match=r"count\(\) has no option 'uptoo'\. .*Did you mean 'upto'\?"):
        package.count(uptoo=5)
    with pytest.raises(TypeError, match=r"count\(\) has no option 'temperature'\. It is an option of generate"):
        package.count(temperature=1)
    with pytest.raises(TypeError, match=r"count\(\): too many positional arguments"):
        package.count(5)
    with speaking("python"), pytest.raises(SpecError, match=r"upto=: must be a whole number \(got 'far'\)"):
        package.count(upto="far")


def test_a_verb_without_an_example_of_a_call_is_a_command_alone(install: Install) -> None:
    install("counters", "verbs", "count", "counted:VERB", counted=GOOD, counting=COUNTING)
    with pytest.raises(AttributeError, match="no attribute 'count'"):
        package.count  # noqa: B018


def test_a_function_that_cannot_be_had_says_why(install: Install) -> None:
    install("broken", "verbs", "fail", "failing:VERB", failing="1 / 0")
    with pytest.raises(UsageError, match=r"'fail' of the package broken 1\.0 cannot be imported: ZeroDivisionError"):
        package.fail  # noqa: B018
    install("one", "verbs", "count", "called:VERB", called=CALLED, counting=COUNTING)
    install("two", "verbs", "count", "called:VERB")
    with pytest.raises(UsageError, match="several packages have one of this name: one, two"):
        package.count  # noqa: B018
    install("thief", "verbs", "verify", "called:VERB")
    with pytest.raises(AttributeError, match="no attribute 'verify'"):
        package.verify  # noqa: B018


def test_importing_a_module_of_ours_does_not_look_at_what_is_installed() -> None:
    code = "import sys; from shardmill import core; print('importlib.metadata' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_a_package_that_fails_costs_its_own_names_alone(install: Install, shardmill: Cli) -> None:
    install("broken", "verbs", "fail", "failing:VERB", failing="1 / 0")
    said = shardmill("--help")
    assert (said.status, "embed" in said.out) == (0, True)
    assert "'fail' of the package broken 1.0 cannot be imported: ZeroDivisionError" in said.err
    assert_told(shardmill("fail"), 2, "cannot be imported: ZeroDivisionError", "pip uninstall broken")
    found = json.loads(shardmill("plugins", "--json").out)
    assert [each["name"] for each in found] == ["fail"]
    assert "ZeroDivisionError" in found[0]["fault"]


def test_two_packages_with_one_name_have_neither(install: Install, shardmill: Cli) -> None:
    install("one", "verbs", "count", "counted:VERB", counted=GOOD, counting=COUNTING)
    install("two", "verbs", "count", "counted:VERB")
    assert_told(shardmill("count"), 2, "There is no verb count")
    assert "several packages have one of this name: one, two" in shardmill("plugins").out
    with pytest.raises(UsageError, match="several packages have one of this name"):
        plugins.find("verbs", "count")


def test_a_name_of_shardmill_stays_shardmills(install: Install, shardmill: Cli) -> None:
    install("thief", "verbs", "embed", "stolen:VERB", stolen="1 / 0")
    assert "Embed every item" in shardmill("embed", "--help").out
    assert "shardmill has one of this name" in shardmill("plugins").out


def test_an_engine_that_is_not_installed_is_named_with_the_nearest(install: Install, shardmill: Cli) -> None:
    said = shardmill("embed", "a.jsonl", "--text", "t", "--engine", "slrum", "--out", "x")
    assert_told(said, 2, "Unknown engine 'slrum'.", "Did you mean 'slurm'?")
