"""What one worker asks of the cluster, and whether the cluster can ever give it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardmill.devices import Device
from shardmill.engines.rays.cluster import amounts, describe, fits, group, node_types, nodes
from shardmill.engines.rays.options import Options
from shardmill.errors import SpecError

# What reading, tokenizing and launching take, and a fair share of a large machine's CPU.
_CPUS = 4.0
_ACCELERATOR = "accelerator_type:"


@dataclass(frozen=True, slots=True)
class Demand:
    kind: str
    num_cpus: float
    num_gpus: float
    resources: dict[str, float]
    placement_group: str = ""

    @classmethod
    def of(cls, options: Options, device: str) -> Demand:
        """What was asked for, completed by what the cluster has or could have."""
        if device == "all":
            raise SpecError("--device all is for one machine.", hint="With --engine ray use auto, cpu or cuda.")
        have = [*nodes(), *node_types()]
        kind = device
        if device == "auto":
            wanted = options.num_gpus if options.num_gpus is not None else any(node.get("GPU") for node in have)
            kind = "cuda" if wanted else "cpu"
        num_gpus = options.num_gpus if options.num_gpus is not None else float(kind == "cuda")
        if kind == "cuda" and not num_gpus:
            raise SpecError("--device cuda with num_gpus=0.", hint="Leave num_gpus out, or use --device cpu.")
        num_cpus = options.num_cpus
        if num_cpus is None:
            shares = [
                node.get("CPU", 0) / (max(1.0, node.get("GPU", 0) / num_gpus) if num_gpus else 1) for node in have
            ]
            usable = [s for s, node in zip(shares, have, strict=True) if node.get("GPU") or not num_gpus]
            num_cpus = min(_CPUS, max(1.0, float(int(min((s for s in usable if s), default=1.0)))))
        return cls(kind, num_cpus, num_gpus, options.resources, options.placement_group)

    @property
    def amounts(self) -> dict[str, float]:
        return {"GPU": self.num_gpus, "CPU": self.num_cpus, **self.resources}

    def room(self) -> int:
        """How many workers the cluster holds as it is; at least one."""
        if self.placement_group:
            return max(1, sum(fits(self.amounts, bundle) for bundle in group(self.placement_group).bundle_specs))
        return max(1, sum(fits(self.amounts, node) for node in nodes()))

    def missing(self) -> str:
        """Why no node could ever hold one worker; empty where one could."""
        if self.placement_group:
            bundles = group(self.placement_group).bundle_specs
            whole = {name: sum(bundle.get(name, 0) for bundle in bundles) for name in self.amounts}
            if fits(self.amounts, whole):
                return ""
            return f"a worker needs {amounts(self.amounts)}, and the placement group has {amounts(whole)}"
        have = nodes()
        if any(fits(self.amounts, node) for node in [*have, *node_types()]):
            return ""
        return f"a worker needs {amounts(self.amounts)}, and there are {describe(have, list(self.resources))}"

    def device(self, seat: int) -> Device:
        """What a worker will run on, before its node has been seen. A rate of such a device is not this machine's."""
        threads, sharing = max(1, int(self.num_cpus)), max(1, round(1 / (self.num_gpus or 1)))
        if self.kind == "cpu":
            return Device("cpu", "cpu of a Ray cluster", threads)
        names = [key.removeprefix(_ACCELERATOR) for node in nodes() for key in node if key.startswith(_ACCELERATOR)]
        return Device("cuda", (names or ["GPU"])[0], threads, visible=str(seat // sharing), sharing=sharing)

    def actor_options(self, options: Options) -> dict[str, Any]:
        """A worker's end is judged by the engine, so Ray restarts nothing; a second thread hears what work is told."""
        strategy: Any = options.placement
        if self.placement_group:
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

            strategy = PlacementGroupSchedulingStrategy(group(self.placement_group))
        return {
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "resources": self.resources,
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": 2,
            **({"scheduling_strategy": strategy} if strategy else {}),
            **({"runtime_env": options.runtime_env} if options.runtime_env else {}),
        }
