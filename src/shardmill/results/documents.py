"""Which document a row of a result is of, and where in it, also if the run did not keep that."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

from shardmill.plan import Plan
from shardmill.sources.documents.document import PAGE, PAGES, TEXT
from shardmill.sources.documents.names import is_archive
from shardmill.sources.formats import find_format

FILE = "file"


def is_of_documents(plan: Plan) -> bool:
    """Whether its items are documents."""
    return find_format(plan.stat.format).bordered and not plan.work.group_by


def list_files(plan: Plan) -> Sequence[str]:
    """The file of each item, as far as the plan tells it: up to the first archive, which has any number of items."""
    if not is_of_documents(plan):
        return ()
    return [*itertools.takewhile(lambda name: not is_archive(name), (file.name for file in plan.stat.files))]


def take_page(plan: Plan, values: dict[str, Any], start: int | None, stop: int | None) -> int | None:
    """The page of a row, taken out of its values: as it was kept, or by the pages that its document begins."""
    if not is_of_documents(plan):
        return None
    page: int | None = values.pop(PAGE, None)
    pages: str | None = values.pop(PAGES, None)
    # In a template, other fields may come before the text.
    if page is not None or not pages or start is None or stop is None or plan.work.text != TEXT:
        return page
    return bisect.bisect_right([int(at) for at in pages.split()], (start + stop) // 2)
