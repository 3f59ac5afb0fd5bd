"""`shardmill kubernetes`: what would be applied to a cluster, and what a workflow's end means for its run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shardmill.cli import options as o
from shardmill.cli.command import Verb, Verbs, print_json, takes
from shardmill.cli.specs import read_options
from shardmill.console import say

app = typer.Typer(
    name="kubernetes",
    cls=Verbs,
    help="Render what --engine kubernetes, argo and pools apply to a cluster.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_RENDER = """\
shardmill kubernetes render argo --spec job.toml --out s3://bucket/runs/reviews > argo.yaml
shardmill kubernetes render pool --spec job.toml --out s3://bucket/runs --set most=24 | kubectl apply -f -
shardmill kubernetes render cron --spec job.toml --out s3://bucket/nightly --set "schedule=0 2 * * *\""""
_ROLE = "role"
_CHECK = """\
shardmill kubernetes check --namespace ml
shardmill kubernetes check --namespace ml --image registry.example.org/shardmill:1 --out s3://bucket/runs"""
_REPORT = "shardmill kubernetes report s3://bucket/runs/reviews --workflow ml/reviews --status Failed"
Kind = Annotated[str, o.argument("KIND", "job, argo, pool or cron; or role, the rights to place them.")]
Out = Annotated[str, o.option(o.RESULT, metavar="RUN", help="The run; of a pool or a cron, the folder of its runs.")]


@app.command(cls=Verb, epilog=_RENDER)
@takes("workers", "device", "set_")
def render(kind: Kind, spec: o.SpecFile = None, out: Out = "", as_json: o.AsJson = False, **options: Any) -> None:
    """Print the objects that would be applied for a spec, as YAML: to review, and to keep in git."""
    from shardmill.engines.kubernetes.render import render as render_objects
    from shardmill.engines.kubernetes.render import to_yaml
    from shardmill.engines.kubernetes.rights import make_role
    from shardmill.spec import make_spec

    work, execution = read_options(spec, options)
    if kind == _ROLE:
        made = make_role(str((execution.get("engine_options") or {}).get("namespace") or ""))
    else:
        made = render_objects(kind, make_spec(work, execution), out)
    print_json(made) if as_json else print(to_yaml(made), end="")


@app.command(cls=Verb, epilog=_CHECK)
@takes("image", "device", "set_")
def check(
    namespace: Annotated[str, o.option(o.PLACE, metavar="NAME", help="The namespace.  [default: kubectl's]")] = "",
    spec: o.SpecFile = None,
    out: Annotated[str, o.option(o.RESULT, metavar="URL", help="A place in the store that a pod shall see.")] = "",
    as_json: o.AsJson = False,
    **options: Any,
) -> None:
    """Check a cluster for runs, one line each: API, rights, CRDs, GPUs; with --image also a pod, and what it sees."""
    from shardmill.engines.kubernetes.api import ClusterApi
    from shardmill.engines.kubernetes.checking import check_cluster
    from shardmill.engines.kubernetes.options import read_pod_options
    from shardmill.spec import make_execution

    execution = read_options(spec, options)[1]
    given = {**(execution.get("engine_options") or {}), **({"namespace": namespace} if namespace else {})}
    whole = make_execution({**execution, "engine": "kubernetes", "engine_options": given})
    pod = read_pod_options(whole) if given.get("image") else None
    facts = []
    for fact in check_cluster(ClusterApi(given.get("context", ""), given.get("namespace", "")), pod, out):
        facts.append(fact)
        if not as_json:
            print(f"  {'ok  ' if fact.ok else 'FAIL'} {fact.name:<12} {fact.said}")
            if not fact.ok and fact.fix:
                print(f"       {'':<12} {fact.fix}")
    if as_json:
        print_json([fact.to_json() for fact in facts])
    if not all(fact.ok for fact in facts):
        raise typer.Exit(1)


@app.command(cls=Verb, hidden=True)
def probe(place: Annotated[str, o.argument("URL", "A place in the store.")] = "") -> None:
    """Look at the store from a pod. `shardmill kubernetes check` starts it."""
    from shardmill.engines.kubernetes.probe import probe_store
    from shardmill.errors import ShardmillError
    from shardmill.run.working import for_scheduler

    try:
        if place:
            probe_store(place)
    except ShardmillError as error:
        raise for_scheduler(error) from None
    say("ok")


@app.command(cls=Verb, epilog=_REPORT)
def report(
    run: o.Run,
    workflow: Annotated[str, typer.Option(metavar="NAME", help="The workflow that has ended.", show_default=False)],
    status: Annotated[str, typer.Option(help="How it ended: Succeeded, Failed or Error.", show_default=False)],
) -> None:
    """Record in a run's folder how its workflow ended. The exit handler of every workflow calls it."""
    from shardmill.run.reporting import report_end

    state = report_end(run, status, f"The workflow {workflow}")
    if state is None:
        say(f"{run}: no run found here; the workflow {workflow} ended as {status} before there was one.")
        return
    say(f"{run}: {state.state}{f' ({state.cause})' if state.cause else ''}.")
