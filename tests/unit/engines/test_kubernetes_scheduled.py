"""Refreshes by a schedule: what their objects say, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from shardmill.core.errors import SpecError, UsageError
from shardmill.engines.kubernetes.render import REFRESHES, render_refresh
from shardmill.engines.kubernetes.scheduled import refresh_name
from shardmill.plan.spec import Execution
from tests.support.cli import Cli, assert_told
from tests.support.libraries import needed
from tests.support.manifest_lint import lint

yaml = needed("yaml")

RUN = "s3://bucket/runs/reviews"
IMAGE = "example.org/shardmill:1"


def rendered(kind: str, run: str = RUN, *, allow_code: bool = False, device: str = "cpu", **given: Any) -> Any:
    workers = given.pop("workers", None)
    options = {"image": IMAGE, **given}
    execution = Execution(engine="kubernetes", device=device, workers=workers, engine_options=options)
    made = render_refresh(kind, execution, run, allow_code=allow_code)
    assert lint(made, secrets=["keys"]) == []
    return made[-1]


def job_of(cron: Any) -> Any:
    return cron["spec"]["jobTemplate"]["spec"]


def test_a_cron_job_refreshes_one_run_one_at_a_time() -> None:
    made = rendered("refresh", schedule="*/15 * * * *", timezone="Europe/Berlin", namespace="ml")
    assert (made["kind"], made["metadata"]["name"]) == ("CronJob", refresh_name(RUN))
    assert made["metadata"]["namespace"] == "ml"
    spec = made["spec"]
    assert (spec["schedule"], spec["timeZone"], spec["concurrencyPolicy"]) == (
        "*/15 * * * *",
        "Europe/Berlin",
        "Forbid",
    )
    (container,) = job_of(made)["template"]["spec"]["containers"]
    assert container["args"] == ["refresh", "--engine=local", "--device=cpu", "--", RUN]


def test_workers_are_in_the_pod_on_its_gpus() -> None:
    pod = job_of(rendered("refresh", device="cuda", gpus="4", secret="keys", allow_code=True))["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["refresh", "--engine=local", "--device=cuda", "--allow-code", "--", RUN]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    (container,) = job_of(rendered("refresh", workers=3, keep_editions="5"))["template"]["spec"]["containers"]
    assert container["args"][3:5] == ["--workers=3", "--keep-editions=5"]


def test_being_told_to_stop_is_no_failure_and_a_final_error_ends_the_turn() -> None:
    job = job_of(rendered("refresh", deadline="6h"))
    assert (job["activeDeadlineSeconds"], job["template"]["spec"]["restartPolicy"]) == (6 * 3600, "Never")
    rules = job["podFailurePolicy"]["rules"]
    actions = {rule["onExitCodes"]["values"][0]: rule["action"] for rule in rules if "onExitCodes" in rule}
    assert (actions[75], actions[2]) == ("Ignore", "FailJob")


def test_argo_gets_the_run_as_a_parameter() -> None:
    made = rendered("argo-refresh", schedule="0 * * * *", deadline="2h")
    assert (made["kind"], made["metadata"]["name"]) == ("CronWorkflow", refresh_name(RUN))
    assert (made["spec"]["schedules"], made["spec"]["concurrencyPolicy"]) == (["0 * * * *"], "Forbid")
    workflow = made["spec"]["workflowSpec"]
    assert workflow["activeDeadlineSeconds"] == 2 * 3600
    assert workflow["arguments"]["parameters"] == [{"name": "run", "value": RUN}]
    (step,) = [each for each in workflow["templates"] if each["name"] == workflow["entrypoint"]]
    assert step["container"]["args"][-2:] == ["--", "{{workflow.parameters.run}}"]


@pytest.mark.parametrize("run", [RUN, f"s3://bucket/{'long-name-' * 9}", "s3://bucket/runs/Ümlaut__", "s3://b/9"])
def test_names_are_valid_and_different_for_each_run(run: str) -> None:
    name = rendered("refresh", run)["metadata"]["name"]
    assert len(name) <= 52
    assert name.replace("-", "").isalnum()
    assert name == name.lower()
    assert name != refresh_name(f"{run}/other")


def test_the_command_prints_what_kubectl_takes(shardmill: Cli) -> None:
    for kind in REFRESHES:
        said = shardmill("kubernetes", "render", kind, "--out", RUN, "--image", IMAGE, "--device", "cpu")
        assert said.status == 0, said
        assert lint(yaml.safe_load_all(said.out)) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"schedule": "daily"}, "schedule=daily is not a schedule of cron"),
        ({"deadline": "soon"}, "deadline='soon' is not a duration"),
        ({"keep_editions": "all"}, "keep_editions=all is not a whole number"),
        ({"deadline": "1s"}, "A deadline of 1 s is too short"),
        ({"image": ""}, "No image was given"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        rendered("refresh", **given)


def test_a_run_that_pods_cannot_see_is_refused(shardmill: Cli) -> None:
    with pytest.raises(UsageError, match="runs/a is a folder of this machine"):
        rendered("refresh", "runs/a")
    assert_told(shardmill("kubernetes", "render", "refresh"), 2, "No --out was given")
    assert_told(shardmill("kubernetes", "render", "refrsh", "--out", RUN), 2, "Did you mean 'refresh'?")
    words = ("--out", RUN, "--image", IMAGE, "--allow-code")
    assert_told(shardmill("kubernetes", "render", "job", *words), 2, "--allow-code is for a refresh")
