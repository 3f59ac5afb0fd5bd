"""The Argo templates of studies: sound, and each step is a command line that `shardmill` takes."""

from __future__ import annotations

import re
from typing import Any

import click
import pytest

from shardmill.cli.app import app
from shardmill.engines.kubernetes.argo import PLANNED
from shardmill.engines.kubernetes.options import PodOptions
from shardmill.engines.kubernetes.tuning import TUNE, TUNE_PIPELINE, make_pipeline, make_tuning
from tests.support.manifest_lint import lint

OPTIONS = PodOptions("example.org/shardmill:1", gpus=2)
MADE = {TUNE: make_tuning(OPTIONS), TUNE_PIPELINE: make_pipeline(OPTIONS)}


def _order(template: dict[str, Any]) -> list[str]:
    (entry,) = [each for each in template["spec"]["templates"] if each["name"] == template["spec"]["entrypoint"]]
    return [f"{task.get('depends', '')} -> {task['name']}" for task in entry["dag"]["tasks"]]


@pytest.mark.parametrize("name", MADE)
def test_a_template_is_sound(name: str) -> None:
    assert MADE[name]["metadata"]["name"] == name
    assert lint([MADE[name], {"kind": "ServiceAccount", "metadata": {"name": "shardmill-argo"}}]) == []


def test_the_steps_come_in_their_order() -> None:
    trials = [" -> plan", "plan -> work", "work.AnySucceeded -> finish"]
    assert _order(MADE[TUNE]) == [*trials, "finish -> best"]
    then = ["finish -> train", "train -> embed", "embed -> answer", "answer -> evaluate"]
    assert _order(MADE[TUNE_PIPELINE]) == [*trials, *then]
    # Workers of a study that was planned elsewhere: shardmill tune … --engine argo.
    assert PLANNED in [each["name"] for each in MADE[TUNE]["spec"]["templates"]]


@pytest.mark.parametrize("name", MADE)
def test_every_step_is_a_command_line(name: str) -> None:
    for step in MADE[name]["spec"]["templates"]:
        if "container" not in step:
            continue
        words = [re.sub(r"\{\{[^{}]+\}\}", "4", each) for each in step["container"]["args"]]
        command: Any = app
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        assert command.make_context(step["name"], words).params
