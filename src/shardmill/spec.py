"""The request of a run: `make_spec`, `Spec` and its tables."""

from shardmill.plan.spec import *  # noqa: F403
from shardmill.plan.spec import __all__ as __all__
