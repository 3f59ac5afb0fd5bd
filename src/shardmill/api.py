"""The verbs as functions; `shardmill` itself has them, too."""

from shardmill.verbs.functions import *  # noqa: F403
