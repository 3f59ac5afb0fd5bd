"""What would be applied for a spec, as plain objects: to review, and to keep in git."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from shardmill.core.errors import SpecError, nearest
from shardmill.core.extras import missing_package
from shardmill.engines.kubernetes.argo import EMBED_PARALLEL, TASKS, ArgoTask, make_cron, make_rights, make_template
from shardmill.engines.kubernetes.manifests import check_reachable, make_job, make_job_set
from shardmill.engines.kubernetes.monitor import make_monitor
from shardmill.engines.kubernetes.options import PodOptions, read_pod_options
from shardmill.engines.kubernetes.scaling import PoolSize, make_scaled_job
from shardmill.engines.kubernetes.scheduled import Schedule, make_cron_job, make_cron_workflow
from shardmill.engines.kubernetes.tuning import make_pipeline, make_tuning
from shardmill.plan.limits import parse_duration
from shardmill.plan.options import declared
from shardmill.plan.spec import Execution, Spec
from shardmill.plugins import find_verb

KINDS = ("job", "jobset", "argo", "pool", "cron")
# What refreshes a run that is there. Of a spec it needs only what the pods are like.
REFRESHES = ("refresh", "argo-refresh")
# Options of the fronts, beside those of the pod.
FRONT_OPTIONS = ("template", "schedule", "timezone", "deadline", "keep_editions", "most", "shards_per_worker")
_NIGHTLY, _DEADLINE = "0 2 * * *", "1d"
# Parameters and steps of a template, or what its pods are.
_OF_TEMPLATE = {
    "work": ("source", "text", "id", "keep", "task", "params"),
    "execution": ("engine", "engine_options", "workers", "device", "places", "then"),
}


def check_kind(kind: str, *others: str) -> None:
    """Refuse what cannot be rendered; `others` can be, elsewhere."""
    if kind not in (known := [*KINDS, *REFRESHES, *others]):
        raise SpecError(f"There is no {kind!r} to render.", hint=nearest(kind, known))


def render(kind: str, spec: Spec, out: str) -> list[dict[str, Any]]:
    """The objects of a front. `out` is the run; of a pool, the folder of runs; of a cron, the folder of its nights."""
    _check_given(out)
    options = read_pod_options(spec.execution, FRONT_OPTIONS)
    given = spec.execution.engine_options
    if kind in ("job", "jobset"):
        make = make_job if kind == "job" else make_job_set
        return [make(out, options, spec.execution.workers or 1)]
    if kind == "pool":
        size = PoolSize(_number(given, "most", 24), _number(given, "shards_per_worker", 8))
        return [*make_monitor(out, options), *make_scaled_job(out, options, size)]
    task = _task_of(spec, out, parallel=(spec.execution.workers or 1) > 1)
    if kind == "cron":
        return [
            *make_rights(options.namespace),
            make_cron(task, options, (schedule := _schedule_of(given)).cron, schedule.timezone),
        ]
    return [*make_rights(options.namespace), make_template(task, options)]


def render_refresh(kind: str, execution: Execution, run: str, *, allow_code: bool = False) -> list[dict[str, Any]]:
    """The objects that refresh a run by a schedule."""
    _check_given(run)
    check_reachable(run)
    given = execution.engine_options
    options, schedule = read_pod_options(execution, FRONT_OPTIONS), _schedule_of(given)
    kept = _number(given, "keep_editions", 1) if given.get("keep_editions") else 0
    flags = [f"--workers={execution.workers}"] if execution.workers else []
    flags += [f"--keep-editions={kept}"] if kept else []
    flags += ["--allow-code"] if allow_code else []
    if kind == "refresh":
        return [make_cron_job(run, options, schedule, flags)]
    return [*make_rights(options.namespace), make_cron_workflow(run, options, schedule, flags)]


def make_all_templates(options: PodOptions) -> list[dict[str, Any]]:
    """The templates that are installed once and used by many runs, with the account of their pods."""
    made = [make_template(task, options) for task in TASKS]
    return [*make_rights(options.namespace), *made, make_tuning(options), make_pipeline(options)]


def _task_of(spec: Spec, out: str, *, parallel: bool) -> ArgoTask:
    """The template for a spec: its values are the defaults of the parameters, its other options are fixed."""
    work = spec.work
    found = next((task for task in TASKS if task.verb == work.task and task.parallel == parallel), None)
    if found is None:
        raise SpecError(
            f"There is no template for the task {work.task!r}{' with several workers' if parallel else ''}.",
            hint=f"Use --engine argo: it plans here, and its workers do any task (template {EMBED_PARALLEL}).",
        )
    if len(work.source) != 1:
        raise SpecError(f"A template has one source; the spec has {len(work.source)}.", hint="Give a folder or a glob.")
    params = dict(work.params)
    defaults = {
        "source": work.source[0],
        "text": work.text,
        "run": out,
        "merged": f"{out.rstrip('/')}.parquet",
        "id": ",".join(work.id),
        "keep": ",".join(work.keep),
        "workers": str(spec.execution.workers or 1),
        **({"model": str(params.pop("model"))} if params.get("model") else {}),
    }
    return replace(found, fixed=(*_flags(params), *_settings(spec, found.verb)), defaults=defaults)


def _settings(spec: Spec, verb: str) -> Iterable[str]:
    """What else the spec says, as flags of the verb."""
    known = {each.name: each for each in declared(find_verb(verb).part("options"))}
    for table, said in (("work", spec.work), ("execution", spec.execution)):
        for name, usual in type(said).model_fields.items():
            value = getattr(said, name)
            if name in _OF_TEMPLATE[table] or value == usual.default:
                continue
            if name not in known or isinstance(value, bool | dict):
                raise SpecError(
                    f"A template has no place for {name} of [{table}].",
                    hint="Leave it out, or use --engine argo: it plans here, with everything that a spec says.",
                )
            several = value if isinstance(value, tuple) else (value,)
            for each in several if known[name].about.repeats else [",".join(map(str, several))]:
                yield f"{known[name].flag}={each}"


def _flags(params: Mapping[str, Any]) -> Iterable[str]:
    for name, value in params.items():
        if isinstance(value, bool | list | dict):
            raise SpecError(f"The parameter {name} is not an option of a command.", hint="Use --engine argo instead.")
        yield f"--{name.replace('_', '-')}={value}"


def _check_given(out: str) -> None:
    if not out:
        raise SpecError("No --out was given.", hint="Name the run or, of a pool, the folder of runs: --out s3://…")


def _schedule_of(given: Mapping[str, Any]) -> Schedule:
    deadline = str(given.get("deadline") or _DEADLINE)
    try:
        deadline_s = int(parse_duration(deadline))
    except ValueError as error:
        raise SpecError(f"deadline={error}.") from None
    return Schedule(str(given.get("schedule") or _NIGHTLY), str(given.get("timezone") or ""), deadline_s)


def _number(given: Mapping[str, Any], name: str, otherwise: int) -> int:
    text = str(given.get(name, otherwise))
    if not text.isdecimal() or not int(text):
        raise SpecError(f"{name}={text} is not a whole number above 0.")
    return int(text)


def to_yaml(objects: Iterable[Any]) -> str:
    """The objects as one stream of YAML documents."""
    try:
        import yaml
    except ImportError as error:
        raise missing_package("PyYAML", "kubernetes") from error

    class Plain(yaml.SafeDumper):  # type: ignore[misc]
        """Writes text of several lines as such."""

    def write_text(dumper: Any, text: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Plain.add_representer(str, write_text)
    # Through JSON: an object that occurs twice is then written twice, as people would.
    plain = json.loads(json.dumps(list(objects)))
    return str(yaml.dump_all(plain, Dumper=Plain, sort_keys=False, width=120, allow_unicode=True))
