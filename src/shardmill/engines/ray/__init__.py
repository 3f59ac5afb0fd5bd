"""Workers on a Ray cluster: one actor per worker, placed by Ray; each actor starts an ordinary worker process.

Design: docs/design/engines.md
"""

from shardmill.core.extras import missing_package

try:
    import ray  # noqa: F401
except ImportError as error:
    raise missing_package("ray") from error

from shardmill.engines.ray.engine import RayEngine

__all__ = ["RayEngine"]
