"""What goes on in a run, read from its folder."""

from shardmill.monitor.bar import Bar, say
from shardmill.monitor.status import Status, read_status

__all__ = ["Bar", "Status", "read_status", "say"]
