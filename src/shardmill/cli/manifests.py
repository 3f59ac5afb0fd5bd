"""`shardmill kubernetes`: what would be applied to a cluster, and what a workflow's end means for its run."""

from __future__ import annotations

import click

from shardmill.core.console import print_json, say
from shardmill.core.errors import UsageError
from shardmill.plan.execution import OnDevices, SettingOptions, Staffing
from shardmill.plan.options import PLACE, RESULT, CallOptions, EngineOptions, option
from shardmill.plan.shared import FromSpec, Printing, Trusting
from shardmill.plan.values import Place
from shardmill.run.request import Request

_ROLE = "role"


class RenderedKind(CallOptions):
    """What is rendered, and for which run."""

    kind: str = option(
        ...,
        "job, jobset, argo, pool or cron; refresh or argo-refresh, by a schedule; or role, the rights to place them.",
        metavar="KIND",
        argument=True,
    )
    out: Place = option(
        "", "The run; of a pool or a cron, the folder of its runs.", group=RESULT, metavar="RUN", common=True
    )


class ImageOfPods(EngineOptions):
    """What the pods run."""

    image: str = option("", "The image of the pods, with shardmill in it.", group=PLACE, metavar="IMAGE", common=True)


class RenderOptions(RenderedKind, ImageOfPods, Staffing, OnDevices, SettingOptions, Trusting, FromSpec, Printing):
    """What `kubernetes render` takes."""


class CheckedCluster(CallOptions):
    """The cluster that is checked, and the store that its pods see."""

    namespace: str = option("", "The namespace.", group=PLACE, metavar="NAME", common=True, shown="kubectl's")
    out: Place = option("", "A place in the store that a pod shall see.", group=RESULT, metavar="URL", common=True)


class CheckOptions(CheckedCluster, ImageOfPods, OnDevices, SettingOptions, FromSpec, Printing):
    """What `kubernetes check` takes."""


class ProbeOptions(CallOptions):
    """What `kubernetes probe` takes."""

    place: str = option("", "A place in the store.", metavar="URL", argument=True)


class EndOptions(CallOptions):
    """What `kubernetes report` takes."""

    run: Place = option(..., "The run folder: a path or a URL.", metavar="RUN", argument=True)
    workflow: str = option("", "The workflow that has ended.", metavar="NAME", common=True)
    status: str = option("", "How it ended: Succeeded, Failed or Error.", metavar="STATUS", common=True)


def render(request: Request) -> None:
    """Print the objects that would be applied for a spec."""
    from shardmill.engines.kubernetes.render import REFRESHES, check_kind, render_refresh, to_yaml
    from shardmill.engines.kubernetes.render import render as render_objects
    from shardmill.engines.kubernetes.rights import make_role
    from shardmill.plan.spec import make_execution, make_spec

    work, execution, options = request.work, request.execution, request.options
    check_kind(options.kind, _ROLE)
    if options.allow_code and options.kind not in REFRESHES:
        raise UsageError("--allow-code is for a refresh.", hint="Leave it out: whoever starts a run permits its code.")
    if options.kind in REFRESHES:
        refreshing = make_execution({**execution, "engine": "kubernetes"})
        made = render_refresh(options.kind, refreshing, options.out, allow_code=options.allow_code)
    elif options.kind == _ROLE:
        made = make_role(str((execution.get("engine_options") or {}).get("namespace") or ""))
    else:
        made = render_objects(options.kind, make_spec(work, execution), options.out)
    print_json(made) if options.as_json else print(to_yaml(made), end="")


def check(request: Request) -> None:
    """Check a cluster for runs, one line each."""
    from shardmill.engines.kubernetes.api import ClusterApi
    from shardmill.engines.kubernetes.checking import check_cluster
    from shardmill.engines.kubernetes.options import read_pod_options
    from shardmill.plan.spec import make_execution

    options, execution = request.options, request.execution
    namespace = {"namespace": options.namespace} if options.namespace else {}
    given = {**(execution.get("engine_options") or {}), **namespace}
    # What is installed has two accounts, each with its own way to the store.
    accounts = [name.strip() for name in str(given.pop("service_account", "")).split(",") if name.strip()]
    given |= {"service_account": accounts[0]} if accounts else {}
    whole = make_execution({**execution, "engine": "kubernetes", "engine_options": given})
    pod = read_pod_options(whole) if given.get("image") else None
    facts, api = [], ClusterApi(given.get("context", ""), given.get("namespace", ""))
    for fact in check_cluster(api, pod, options.out, accounts):
        facts.append(fact)
        if not options.as_json:
            print(f"  {'ok  ' if fact.ok else 'FAIL'} {fact.name:<12} {fact.said}")
            if not fact.ok and fact.fix:
                print(f"       {'':<12} {fact.fix}")
    if options.as_json:
        print_json([fact.to_json() for fact in facts])
    if not all(fact.ok for fact in facts):
        raise click.exceptions.Exit(1)


def probe(request: Request) -> None:
    """Look at the store from a pod."""
    from shardmill.core.errors import ShardmillError
    from shardmill.engines.kubernetes.probe import probe_store
    from shardmill.run.working import for_scheduler

    try:
        if request.options.place:
            probe_store(request.options.place)
    except ShardmillError as error:
        raise for_scheduler(error) from None
    say("ok")


def report(request: Request) -> None:
    """Record in a run's folder how its workflow ended."""
    from shardmill.run.reporting import report_end

    run, workflow, status = request.options.run, request.options.workflow, request.options.status
    for name in ("workflow", "status"):
        if not getattr(request.options, name):
            raise UsageError(f"No --{name} was given.", hint="See: shardmill kubernetes report --help")
    state = report_end(run, status, f"The workflow {workflow}")
    if state is None:
        say(f"{run}: no run found here; the workflow {workflow} ended as {status} before there was one.")
        return
    say(f"{run}: {state.state}{f' ({state.cause})' if state.cause else ''}.")
