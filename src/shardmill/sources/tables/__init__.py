"""Folders that are tables: Delta Lake and Iceberg keep the files of earlier versions beside those of the latest.

`choosing` finds the files of the latest version, and `columns` reads them as the table has them now.
"""

from __future__ import annotations

# What metadata of the wrong shape raises.
MALFORMED = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, NotImplementedError),
    *(OSError, RecursionError, TypeError, ValueError),
)
