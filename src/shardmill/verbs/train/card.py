"""The card of a trained model: its README.md, with data, parameters and figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shardmill.verbs.train.data import Pairs
from shardmill.verbs.train.loop import Outcome

_SHOWN = 20
# Said elsewhere on the card, or nothing that the weights depend on.
_NOT_PARAMETERS = ("model", "columns", "label", "checkpoint_every", "max_errors")


def write_card(pairs: Pairs, done: Outcome, model: str, versions: Mapping[str, str], hub: str = "") -> str:
    """Markdown with the front matter that model hubs read; `hub` is the name of the `model` there, if it has one."""
    options = pairs.options
    columns = ", ".join(map(_code, (*options.columns, *filter(None, [options.label]))))
    parts = [
        _front(hub),
        f"# {_plain(model)}, fine-tuned",
        f"Trained by shardmill on {done.items:,} items ({columns}) from {_plain(model)}.",
        _figures(done),
        "## Parameters",
        _table(("parameter", "value"), [(name, _show(value)) for name, value in _parameters(pairs).items()]),
        "## Data",
        _data(pairs, done),
        "## Use",
        '```python\nfrom sentence_transformers import SentenceTransformer\n\nmodel = SentenceTransformer("model")\n```',
        "```\nshardmill embed docs.jsonl --text body --model RUN/model --out runs/docs\n```",
        "" if options.lora is None else "`adapter` has the LoRA adapter alone, as PEFT reads it; here it is merged.",
        f"Made with {', '.join(f'{name} {version}' for name, version in versions.items())}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front(hub: str) -> str:
    said: dict[str, Any] = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        **({"base_model": hub} if hub else {}),
        "tags": ["sentence-transformers", "sentence-similarity", "feature-extraction", "shardmill"],
    }
    return "\n".join(["---", *(f"{name}: {json.dumps(value)}" for name, value in said.items()), "---"])


def _figures(done: Outcome) -> str:
    rows = [(each["step"], each.get("loss"), each.get("figure")) for each in done.curve]
    shown = [(f"{step:,}", _number(loss), _number(figure)) for step, loss, figure in _thin(rows)]
    said = ""
    if done.best is not None and done.before is not None:
        said = (
            f"{done.metric} on {done.held_out:,} held-out items: {done.before:.4f} before, {done.best:.4f} after "
            f"(step {done.best_step:,} of {done.steps:,}, whose weights these are).\n\n"
        )
    return f"## Figures\n\n{said}" + _table(("step", "mean loss", done.metric or "held out"), shown)


def _thin(rows: list[Any]) -> list[Any]:
    """At most a few rows, evenly, the last among them."""
    step = -(-len(rows) // _SHOWN)
    return [row for i, row in enumerate(rows) if i % step == 0 or i == len(rows) - 1]


def _data(pairs: Pairs, done: Outcome) -> str:
    said = [f"{done.items:,} items were trained on, {done.held_out:,} were held out"]
    if done.held_out:
        share = pairs.options.describe_held_out(done.items, done.held_out)
        said[0] += f", by {_code(pairs.options.split_column)}: {share}"
    said[0] += "."
    if pairs.left_out:
        said.append(f"{len(pairs.left_out):,} rows of the source were left out:\n")
        said += [f"- {_plain(why)}" for why in pairs.left_out[:_SHOWN]]
        said += [f"- and {len(pairs.left_out) - _SHOWN:,} more"] if len(pairs.left_out) > _SHOWN else []
    return "\n".join(said)


def _parameters(pairs: Pairs) -> dict[str, Any]:
    options = pairs.options
    said = options.model_dump(exclude=set(_NOT_PARAMETERS), exclude_none=True)
    # A card is shown to others, whom a path of this machine tells nothing.
    said["hard_negatives"] = options.hard_negatives.rstrip("/").rpartition("/")[2]
    return {**{name: value for name, value in said.items() if value not in ("", (), {})}, "loss": options.objective}


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return _plain("; ".join(f"{name}: {each!r}" for name, each in value.items()))
    return _plain(", ".join(map(str, value)) if isinstance(value, tuple) else str(value))


def _code(name: str) -> str:
    """A name as it is written, for which Markdown has no escapes; one that could end the mark is plain text."""
    return _plain(name) if "`" in name or "\n" in name else f"`{name}`"


def _plain(text: str) -> str:
    """A user's text in one cell: no markup, no line break."""
    return "".join(f"\\{c}" if c in "|<>`[]*_#\\" else c for c in " ".join(text.split()))
