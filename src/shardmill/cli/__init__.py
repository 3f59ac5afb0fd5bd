"""The command line: verbs by family, options declared once. Data goes to stdout, messages to stderr; no logic is here.

`options` declares the options that verbs share, `command` prints help in groups with examples, and each other module
holds a family of verbs. The verb of a new task belongs in `tasks`.
"""

from __future__ import annotations

from shardmill.cli.app import app, main

__all__ = ["app", "main"]
