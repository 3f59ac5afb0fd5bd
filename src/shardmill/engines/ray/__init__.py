"""Workers on a Ray cluster: an actor a GPU, wherever Ray finds room, each with an ordinary worker process in it."""

from shardmill.errors import missing_extra

try:
    import ray  # noqa: F401
except ImportError as error:
    raise missing_extra("ray", "ray") from error

from shardmill.engines.ray.engine import RayEngine

__all__ = ["RayEngine"]
