"""shardmill inside a larger Ray program.

import ray
import shardmill.ray

run = shardmill.ray.map_shards("reviews.jsonl", text="reviewText", out="s3://bucket/runs/reviews", workers=4)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from shardmill.plan.spec import Spec, make_spec
from shardmill.run import Run, start

__all__ = ["map_shards"]


def map_shards(
    source: str | Sequence[str] | Spec,
    *,
    out: str | os.PathLike[str],
    text: str | None = None,
    id: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    query: str | None = None,
    format: str | None = None,
    task: str = "embed",
    workers: int | None = None,
    num_gpus: float | None = None,
    num_cpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    placement: str | None = None,
    placement_group: Any = None,
    runtime_env: Mapping[str, Any] | None = None,
    wait_s: float | None = None,
    fresh: bool = False,
    quiet: bool = True,
    **params: Any,
) -> Run:
    """Run a task over every item of a source, with actors on the Ray cluster that this program is connected to.

    `num_gpus`, `num_cpus`, `resources` and `runtime_env` are per worker, as in `ray.remote`; `params` are the task's.
    `source` may be a whole `Spec`. The call blocks until all is committed; the same call resumes. To continue
    meanwhile, with the run as an ObjectRef:

    ref = ray.remote(num_cpus=0)(shardmill.ray.map_shards).remote("reviews.jsonl", text="reviewText", out=…)
    """
    options = {
        "num_gpus": num_gpus,
        "num_cpus": num_cpus,
        "resources": dict(resources) if resources else None,
        "placement": placement,
        "placement_group": placement_group.id.hex() if placement_group is not None else None,
        "runtime_env": dict(runtime_env) if runtime_env else None,
        "wait_s": wait_s,
    }
    execution = {"engine": "ray", "engine_options": {k: v for k, v in options.items() if v is not None}}
    if isinstance(source, Spec):
        given = source.execution.model_copy(update={**execution, **({"workers": workers} if workers else {})})
        return start(source.model_copy(update={"execution": given}), out, fresh=fresh, quiet=quiet)
    work = {"source": source, "text": text, "id": id, "keep": keep, "query": query, "format": format, "task": task}
    spec = make_spec({**work, "params": params}, {**execution, "workers": workers})
    return start(spec, out, fresh=fresh, quiet=quiet)
