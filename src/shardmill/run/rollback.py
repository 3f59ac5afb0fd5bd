"""Goes back to an edition that was read before."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from shardmill.core.dialect import shell_command
from shardmill.core.errors import UsageError
from shardmill.ledger import Editions, Ledger


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Which edition was read, and which is read from now on."""

    run: str
    before: int
    edition: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def roll_back(place: str | os.PathLike[str], number: int | None = None) -> RolledBack:
    """Let the edition be read that was read before the current one, or the one with this number.

    Nothing is deleted: the current one stays until it is pruned.
    """
    # Refuses a folder that holds no run.
    Ledger(place).plan()
    editions = Editions(place)
    current, known = editions.current(), editions.all()
    left = [edition.number for edition in known if edition.complete and not edition.pruned and not edition.current]
    if number is None:
        earlier = [each.number for each in known if each.was_read and each.number < current and each.number in left]
        if not earlier:
            forward = shell_command("rollback", editions.run, "--edition", str(left[-1])) if left else ""
            raise UsageError(
                f"{editions.run} has no edition before {current} that could be read.",
                hint=f"For edition {left[-1]}: {forward}" if left else "There is none, or it was pruned.",
            )
        number = earlier[-1]
    elif number not in left:
        if number == current:
            raise UsageError(f"Edition {number} of {editions.run} is the one that is read.")
        raise UsageError(
            f"{editions.run} has no complete edition {number}: there are {', '.join(map(str, left)) or 'no others'}.",
            hint=f"For the one before: {shell_command('rollback', editions.run)}",
        )
    if number > 1:
        ledger = Ledger(editions.open(number))
        ledger.seal(ledger.plan())
    if not editions.switch(current, number):
        raise UsageError(f"{editions.run}: another edition was chosen meanwhile.", hint="Run the same command again.")
    return RolledBack(editions.run, current, number)
