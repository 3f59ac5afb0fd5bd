"""Argo templates of studies: the trials on many pods, and a pipeline from a study to the figures of its best model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardmill.engines.kubernetes.argo import API, PLANNED, make_dag, make_metadata, make_step, wrap_steps
from shardmill.engines.kubernetes.options import PodOptions

TUNE, TUNE_PIPELINE = "gpu-hyperparameter-tuning", "gpu-hyperparameter-tuning-pipeline"
_RUN = "{{workflow.parameters.run}}"
_TRIALS = [("plan", ""), ("work", "plan"), ("finish", "work.AnySucceeded")]
_BEST = [("train", "finish"), ("embed", "train"), ("answer", "embed"), ("evaluate", "answer")]
# Parameters of the pipeline beside those of a study, with their defaults, None for those that have to be given.
_PIPELINE: Mapping[str, str | None] = {
    "best": None,
    "source": None,
    "text": None,
    "id": "id",
    "passages": None,
    "questions": None,
    "question": "question",
    "answers": None,
    "gold": None,
}


def make_tuning(options: PodOptions) -> dict[str, Any]:
    """The template of a study, whose file is at a URL: its trials, and who does what follows the last one."""
    steps = [make_dag("tune", [*_TRIALS, ("best", "finish")]), make_dag(PLANNED, [("work", ""), *_TRIALS[2:]])]
    return _make(TUNE, "tune", {}, [*steps, *_trial_steps(options)], options)


def make_pipeline(options: PodOptions) -> dict[str, Any]:
    """A study of `train`; its best trial trained; a source embedded by that model; answers over it measured."""
    value = "{{workflow.parameters.%s}}"
    device, light = _device(options), options.light()
    # A step has the name of the verb that it runs, its first argument.
    steps = (
        ["train", f"--study={_RUN}", device, f"--out={value % 'best'}"],
        [
            *("embed", f"--text={value % 'text'}", f"--id={value % 'id'}", f"--model={value % 'best'}/model", device),
            *(f"--out={value % 'passages'}", "--then=verify", "--", value % "source"),
        ],
        [
            *("answer", f"--over={value % 'passages'}", f"--text={value % 'question'}", f"--id={value % 'id'}", device),
            *(f"--out={value % 'answers'}", "--", value % "questions"),
        ],
    )
    made = [make_step(arguments[0], options, arguments) for arguments in steps]
    measured = make_step("evaluate", light, ["evaluate", f"--gold={value % 'gold'}", "--", value % "answers"])
    whole = make_dag("pipeline", [*_TRIALS, *_BEST])
    return _make(TUNE_PIPELINE, "pipeline", _PIPELINE, [whole, *_trial_steps(options), *made, measured], options)


def _trial_steps(options: PodOptions) -> list[dict[str, Any]]:
    """The steps of a study. Who installs the template allows the objective that a study names."""
    light, device = options.light(), _device(options)
    several = [f"--workers={options.gpus}"] if options.gpus > 1 else []
    workers = "--workers={{workflow.parameters.workers}}"
    ended = "--workflow={{workflow.namespace}}/{{workflow.name}}"
    planned = ["tune", "--engine=pool", "--detach", workers, device, f"--out={_RUN}"]
    return [
        make_step("plan", light, [*planned, "--", "{{workflow.parameters.study}}"]),
        make_step("work", options, ["work", device, *several, "--allow-code", "--", _RUN]),
        make_step("finish", light, ["work", "--device=cpu", "--allow-code", "--", _RUN]),
        make_step("best", light, ["study", "--", _RUN]),
        make_step("report", light, ["kubernetes", "report", ended, "--status={{workflow.status}}", "--", _RUN]),
    ]


def _make(
    name: str, entry: str, more: Mapping[str, str | None], steps: Sequence[Mapping[str, Any]], options: PodOptions
) -> dict[str, Any]:
    values: dict[str, str | None] = {"study": None, "run": None, "workers": "1", **more}
    parameters = [{"name": key, **({} if value is None else {"value": value})} for key, value in values.items()]
    return {
        "apiVersion": API,
        "kind": "WorkflowTemplate",
        "metadata": make_metadata(name, options),
        "spec": wrap_steps(name, entry, parameters, steps, options),
    }


def _device(options: PodOptions) -> str:
    return "--device=cuda" if options.gpus else "--device=cpu"
