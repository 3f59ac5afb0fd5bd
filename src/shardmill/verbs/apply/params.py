"""The parameters of the `apply` task."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from shardmill.plan.options import Params


class ApplyParams(Params):
    """The parameters of the task. People give them by the options of the verb, which say more.

    `call` names the function, `code` is its module's text if it is sent along. `fields` are the columns it is given,
    all of the source if they are missing; with `text`, also the item's text as a column of that name; with `template`,
    such a column instead of the fields it is made of, empty for items without a value; with `number`, a column
    `shardmill_item` that numbers the items of the run. `columns` are those it returns, by annotation or first result if
    they are missing. `arguments` are further keyword arguments.
    """

    call: str = Field(min_length=1)
    code: str = ""
    text: bool = False
    template: str = ""
    number: bool = False
    fields: tuple[str, ...] | None = None
    columns: dict[str, str] | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
