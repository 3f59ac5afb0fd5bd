"""The options of `doctor`."""

from __future__ import annotations

from shardmill.plan.options import CallOptions, option
from shardmill.plan.shared import Printing
from shardmill.plan.values import Places


class Examining(CallOptions):
    """What is looked at besides the machine."""

    places: Places = option(
        (), "Folders, buckets and databases to look at, too.", metavar="PLACE", argument=True, common=True
    )


class DoctorOptions(Examining, Printing):
    """What `doctor` takes."""
