"""The command line: each verb as a command. Data goes to stdout, messages to stderr; no logic is here.

`app` is the program, `group` lists the verbs from their declarations, `command` makes a command of a verb's options.
`declared` and `machines` declare the commands that are no verbs of a task; the other modules are what these do.
"""

from __future__ import annotations

from shardmill.cli.app import app, main

__all__ = ["app", "main"]
