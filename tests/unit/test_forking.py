"""The servers that tests fork workers from."""

from __future__ import annotations

import sys

from tests.support.forking import Forking
from tests.support.waiting import PATIENCE_S


def _look() -> None:
    sys.exit(sum(flag for name, flag in (("colorsys", 1), ("wave", 2)) if name in sys.modules))


def test_each_list_of_modules_has_its_server() -> None:
    """Whoever asks last, and whichever server runs already."""
    lists = [["colorsys"], ["wave"], ["colorsys"]]
    contexts = [Forking(modules) for modules in lists]
    started = [context.Process(target=_look) for context in contexts]
    for each in started:
        each.start()
        each.join(PATIENCE_S)
    assert [each.exitcode for each in started] == [1, 2, 1]
