"""A receipt that was written or checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardmill.results.report import Check


@dataclass(frozen=True, slots=True)
class Receipt:
    """A receipt: its file, its statement, and the ids of the keys that it names as signers.

    `checks` are of a receipt that was checked; it `holds` if all of them passed. One that the given key did not sign
    has no statement.
    """

    place: str
    statement: dict[str, Any]
    signed_by: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def holds(self) -> bool:
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        checks = [{"name": check.name, "ok": check.ok, "seen": check.seen} for check in self.checks]
        told: dict[str, Any] = {"receipt": self.place, "signed_by": list(self.signed_by), "statement": self.statement}
        return {**told, "holds": self.holds, "checks": checks} if checks else told
