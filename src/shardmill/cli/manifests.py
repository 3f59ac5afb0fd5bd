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
_REPORT = "shardmill kubernetes report s3://bucket/runs/reviews --workflow ml/reviews --status Failed"
Kind = Annotated[str, o.argument("KIND", "job, argo, pool or cron.")]
Out = Annotated[str, o.option(o.RESULT, metavar="RUN", help="The run; of a pool or a cron, the folder of its runs.")]


@app.command(cls=Verb, epilog=_RENDER)
@takes("workers", "device", "set_")
def render(kind: Kind, spec: o.SpecFile = None, out: Out = "", as_json: o.AsJson = False, **options: Any) -> None:
    """Print the objects that would be applied for a spec, as YAML: to review, and to keep in git."""
    from shardmill.engines.kubernetes.render import render as render_objects
    from shardmill.engines.kubernetes.render import to_yaml
    from shardmill.spec import make_spec

    work, execution = read_options(spec, options)
    made = render_objects(kind, make_spec(work, execution), out)
    print_json(made) if as_json else print(to_yaml(made), end="")


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
