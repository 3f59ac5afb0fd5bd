"""Workers on a Ray cluster: one actor per worker, placed by Ray; each actor starts an ordinary worker process.

Design: docs/design/engines.md
"""

from shardmill.core.errors import missing_extra

try:
    import ray  # noqa: F401
except ImportError as error:
    raise missing_extra("ray", "ray") from error

from shardmill.engines.ray.engine import RayEngine

__all__ = ["RayEngine"]
