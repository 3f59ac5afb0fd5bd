"""`cluster.toml`: the hosts, how to reach them and what to use of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shardmill.core.errors import SpecError, nearest

_TABLES = ("hosts", "defaults", "shared", "known_hosts")
WORK = "~/.cache/shardmill-work"

Gpus = Literal["auto"] | Annotated[int, Field(ge=0)] | Annotated[tuple[int, ...], Field(min_length=1)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Host(_Model):
    """One host. `gpus` is "auto" for all that nvidia-smi shows, a number, or a list of indexes; 0 is the CPU.

    `python` or `conda` names an environment that has shardmill; without either, a private one is created in `work`. A
    host with twice the `weight` is assigned twice as many shards until its speed is known.
    """

    address: str = Field(min_length=1)
    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    user: str = ""
    port: int | None = Field(default=None, ge=1, le=65535)
    key: str = ""
    known_hosts: str = ""
    gpus: Gpus = "auto"
    workers: int | None = Field(default=None, ge=1)
    python: str = ""
    conda: str = ""
    work: str = Field(default=WORK, min_length=1)
    weight: float = Field(default=1.0, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _one_name_is_enough(cls, data: Any) -> Any:
        if isinstance(data, dict) and (address := data.get("address") or data.get("name")):
            return {"name": re.sub(r"[^A-Za-z0-9._-]", "-", str(address)), **data, "address": address}
        return data

    @model_validator(mode="after")
    def _one_environment(self) -> Host:
        if self.python and self.conda:
            raise ValueError("has both python and conda; name one of them")
        return self


class Cluster(_Model):
    """The hosts of one file. With `shared` they see the run folder and the source at the same paths as home."""

    hosts: tuple[Host, ...] = Field(min_length=1)
    shared: bool = False


def read_cluster(place: str) -> Cluster:
    path = Path(place).expanduser()
    try:
        tables = tomllib.loads(path.read_text())
    except OSError as error:
        raise SpecError(f"{place}: {error.strerror}.", hint="Name the hosts file with --hosts cluster.toml.") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{place}: {error}.") from error
    for name in tables:
        if name not in _TABLES:
            raise SpecError(f"{place}: unknown key {name!r}.", hint=nearest(name, list(_TABLES)))
    common = dict(tables.get("defaults", {}))
    if "known_hosts" in tables:
        common["known_hosts"] = tables["known_hosts"]
    hosts = tables.get("hosts", [])
    if not isinstance(hosts, list) or not all(isinstance(h, dict) for h in hosts):
        raise SpecError(f"{place}: hosts must be tables.", hint="Start each with a line [[hosts]].")
    if not hosts:
        raise SpecError(f"{place} names no host.", hint='Start one with a line [[hosts]], then: address = "gpu-a"')
    cluster = Cluster(
        hosts=tuple(_host(place, number, {**common, **host}) for number, host in enumerate(hosts, 1)),
        shared=bool(tables.get("shared", False)),
    )
    names = [host.name for host in cluster.hosts]
    for name in names:
        if names.count(name) > 1:
            raise SpecError(f"{place}: two hosts are called {name!r}.", hint="Give each a name of its own: name = …")
    return cluster


def _host(place: str, number: int, table: dict[str, Any]) -> Host:
    """One host. Relative paths in it are relative to the folder of the hosts file."""
    folder = Path(place).expanduser().absolute().parent
    files = {n: str(folder / Path(table[n]).expanduser()) for n in ("key", "known_hosts") if _is_path(table.get(n))}
    try:
        return Host(**{**table, **files})
    except ValidationError as error:
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        field = str(first["loc"][0]) if first["loc"] else ""
        where = f"{place}: host {table.get('name') or table.get('address') or number}"
        if first["type"] == "extra_forbidden":
            known = sorted(Host.model_fields)
            raise SpecError(f"{where}: a host has no {field!r}.", hint=nearest(field, known)) from error
        if first["type"] == "missing":
            raise SpecError(f"{where}: no address is given.", hint='For example: address = "10.0.0.7"') from error
        said = first["msg"].removeprefix("Value error, ")
        raise SpecError(
            f"{where}: {field} {said} (it is {table.get(field)!r})." if field else f"{where} {said}."
        ) from error


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and bool(value)
