"""The verb that has a text written for every item."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shardmill.cli import options as o
from shardmill.cli.command import Verb, takes
from shardmill.cli.specs import read_options
from shardmill.cli.tasks import FAMILY, carry_out
from shardmill.errors import SpecError, UsageError


def add_to(app: typer.Typer) -> None:
    app.command("generate", cls=Verb, rich_help_panel=FAMILY, epilog=_GENERATE)(generate)


_GENERATE = """\
shardmill generate news.jsonl --template "Translate into French: {body}" --model ./Qwen3-0.6B --out runs/french
shardmill generate tickets.parquet --template "{subject}: {body}" --schema ticket.json --model ./Qwen3-0.6B --out runs/t
shardmill generate chats.jsonl --messages messages --model qwen3 --endpoint http://gpu1:8000/v1 --out runs/chats"""

Template = Annotated[
    str, o.option(o.PROMPT, metavar="TEXT", help='The prompt of an item: "Translate into French: {body}".')
]
Messages = Annotated[str, o.option(o.PROMPT, metavar="COLUMN", help="The column with a conversation, instead.")]
ResponseSchema = Annotated[
    Path | None, o.option(o.PROMPT, "--schema", metavar="FILE", help="A JSON schema that the answers must fit.")
]


@takes(
    "source",
    "query",
    "format",
    *o.GENERATING,
    *o.STORING,
    *o.KEEPING,
    *o.PLACING,
    "detach",
    "then",
    *o.LIMITING,
    *o.PRICING,
)
def generate(
    template: Template = "",
    messages: Messages = "",
    response_schema: ResponseSchema = None,
    out: o.Out = "",
    spec: o.SpecFile = None,
    resume: o.Resume = None,
    as_json: o.AsJson = False,
    **options: Any,
) -> None:
    """Answer a prompt for every item of a source. The same command resumes an interrupted run."""
    if template and messages:
        raise UsageError("Both --template and --messages are given.", hint="Give one of them.")
    params = {name: value for name in ("model", *o.REPLYING) if (value := options.pop(name, None)) not in (None, [])}
    work, execution = read_options(spec, options)
    task = work.setdefault("task", "generate")
    if task != "generate":
        raise SpecError(f"{spec}: its task is {task!r}.", hint=f"shardmill run --spec {spec} runs any task.")
    if messages:
        work["text"], params["messages"] = f"{{{messages}:json}}", True
    elif template:
        work["text"] = template
    if response_schema is not None:
        from shardmill.schema import AnswerSchema

        params["response_schema"] = AnswerSchema.read(response_schema).value
    work["params"] = {**work.get("params", {}), **params}
    if not work["params"].get("model"):
        raise UsageError("No model was given.", hint="Pass a folder of a model that generates: --model ./Qwen3-0.6B")
    if not work.get("text"):
        raise UsageError("No prompt was given.", hint='Write one: --template "Translate into French: {body}"')
    carry_out(work, execution, out, resume, as_json)
