"""The file of the alerts: which rules there are, and who is told. Nothing of it comes from a run folder."""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from shardmill.core.errors import SpecError, nearest
from shardmill.plan.spec import ErrorLimit, parse_duration


def _as_seconds(value: Any) -> float:
    seconds = parse_duration(str(value))
    if seconds <= 0:
        raise ValueError("is not a time to wait")
    return seconds


def _as_share(value: Any) -> float:
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not text.endswith("%") or not 0 < share < 1:
        raise ValueError("is not a percentage like 50%")
    return share


def _as_limit(value: Any) -> ErrorLimit:
    return ErrorLimit.parse(str(value))


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)


class AlertRules(_Table):
    """`[rules]`: what is told. A rule that is left out is off."""

    stalled: Annotated[float, BeforeValidator(_as_seconds)] | None = None
    error_rate: Annotated[ErrorLimit, BeforeValidator(_as_limit)] | None = None
    rate_drop: Annotated[float, BeforeValidator(_as_share)] | None = None
    deadline: bool = False
    budget: bool = False
    worker_lost: bool = False
    finished: bool = False
    verified: bool = False
    edition_age: Annotated[float, BeforeValidator(_as_seconds)] | None = None
    edition_lag: Annotated[float, BeforeValidator(_as_seconds)] | None = None
    refresh_failures: Annotated[int, Field(ge=1)] | None = None

    def is_on(self, rule: str) -> bool:
        return bool(getattr(self, rule))


class WebhookTarget(_Table):
    """A URL that takes Slack's messages. As the URL is often a secret, a variable may hold it."""

    kind: Literal["webhook"]
    url: str = ""
    url_variable: str = ""

    @model_validator(mode="after")
    def _one_url(self) -> WebhookTarget:
        if bool(self.url) == bool(self.url_variable):
            raise ValueError("a webhook has either a url or a url_variable")
        return self

    def read_url(self) -> str:
        return self.url or os.environ[self.url_variable].strip()

    def check(self) -> str:
        """What is wrong with it on this machine; "" if nothing is."""
        if missing := _missing(self.url_variable):
            return missing
        parts = urlsplit(self.read_url())
        return "" if parts.scheme in ("http", "https") and parts.hostname else "its url is not an http or https address"


class CommandTarget(_Table):
    """A program and its arguments, run without a shell; it gets the alert as JSON on its standard input."""

    kind: Literal["command"]
    command: tuple[str, ...] = Field(min_length=1)

    def check(self) -> str:
        program = self.command[0]
        return "" if shutil.which(program) else f"there is no program {program!r} to run"


class EmailTarget(_Table):
    """Mail by SMTP. The password, if there is one, is in a variable."""

    kind: Literal["email"]
    to: tuple[str, ...] = Field(min_length=1)
    sender: str
    host: str
    port: int = Field(default=587, ge=1, le=65535)
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password_variable: str = ""

    @field_validator("to", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _plain(self) -> EmailTarget:
        if not all("@" in each and each.isprintable() for each in (*self.to, self.sender)):
            raise ValueError("to and sender are addresses like ann@example.org")
        if bool(self.user) != bool(self.password_variable):
            raise ValueError("user and password_variable belong together")
        if self.user and self.security == "none":
            raise ValueError("a password is sent only with starttls or tls")
        return self

    def check(self) -> str:
        return _missing(self.password_variable)


AlertTarget = Annotated[WebhookTarget | CommandTarget | EmailTarget, Field(discriminator="kind")]
_KINDS: dict[str, type[_Table]] = {"webhook": WebhookTarget, "command": CommandTarget, "email": EmailTarget}


class AlertsFile(_Table):
    """The whole file. `link` is the address of the monitor as the readers of alerts reach it."""

    link: str = ""
    rules: AlertRules
    targets: dict[str, AlertTarget] = Field(min_length=1)


def read_alerts(path: Path) -> AlertsFile:
    """Read and check a file, and that each target can be used on this machine."""
    try:
        tables = tomllib.loads(path.read_text())
        made = AlertsFile(**tables)
    except FileNotFoundError as error:
        raise SpecError(f"{path}: no such file.") from error
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}.") from error
    except ValidationError as error:
        raise _explain(path, error) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise SpecError(f"{path}: {error}.") from error
    if not any(made.rules.is_on(rule) for rule in AlertRules.model_fields):
        raise SpecError(f"{path}: [rules] turns none on.", hint=nearest("", [*AlertRules.model_fields]))
    for name, target in made.targets.items():
        if wrong := target.check():
            raise SpecError(f"{path}: [targets.{name}]: {wrong}.")
    return made


def _missing(variable: str) -> str:
    if not variable or os.environ.get(variable, "").strip():
        return ""
    return f"the environment variable {variable} is not set"


def _explain(path: Path, error: ValidationError) -> SpecError:
    found = error.errors(include_url=False)
    first = next((each for each in found if each["type"] == "extra_forbidden"), found[0])
    place = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        *table, name = place
        if table == ["rules"]:
            return SpecError(f"{path}: there is no rule {name!r}.", hint=nearest(name, [*AlertRules.model_fields]))
        model: type[_Table] = _KINDS[table[-1]] if table else AlertsFile
        where = f"[{'.'.join(table[:2])}] has" if table else "there is"
        return SpecError(f"{path}: {where} no key {name!r}.", hint=nearest(name, [*model.model_fields]))
    # The kind of a target stands in the place of what is wrong with it.
    where = ".".join(part for part in place if part not in _KINDS or len(place) < 3)
    if first["type"] == "missing":
        return SpecError(f"{path}: no {where} is given.", hint="See docs/monitor.md for a file with everything.")
    if first["type"].startswith("union_tag"):
        return SpecError(f"{path}: {where} has no kind that is known.", hint=nearest("", [*_KINDS]))
    return SpecError(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}.")
