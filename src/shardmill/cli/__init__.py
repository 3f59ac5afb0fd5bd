"""The command line: verbs by family, options declared once. Data goes to stdout, talk to stderr; no logic lives here.

`options` declares what several verbs take, `command` prints help in groups with examples, and each other module holds a
family of verbs. A new task brings its verb in `tasks`.
"""

from __future__ import annotations

from shardmill.cli.app import app, main

__all__ = ["app", "main"]
