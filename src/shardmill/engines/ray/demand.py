"""The resources that one worker asks for, and whether the cluster can ever provide them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardmill.core.devices import Device
from shardmill.core.errors import SpecError
from shardmill.engines.ray.cluster import Resources, amounts, bundles, describe, fits, group, node_types, nodes, total
from shardmill.engines.ray.options import RayOptions

# CPUs of a worker by default, at most: enough to feed a GPU, and a fair share of a large machine.
_CPUS = 4
_ACCELERATOR = "accelerator_type:"


@dataclass(frozen=True, slots=True)
class Demand:
    kind: str
    num_cpus: float
    num_gpus: float
    resources: dict[str, float]
    placement_group: str = ""
    gpu: str = "GPU"

    @classmethod
    def of(cls, options: RayOptions, device: str, workers: int | None) -> Demand:
        """The options given, with defaults from the nodes that the cluster has or can add."""
        if device == "all":
            raise SpecError("--device all is for one machine.", hint="With --engine ray use auto, cpu or cuda.")
        have = bundles(options.placement_group) if options.placement_group else [*nodes(), *node_types()]
        num_gpus = options.num_gpus
        if num_gpus is None:
            num_gpus = float(device == "cuda" or (device == "auto" and any(node.get("GPU") for node in have)))
        if device == "cuda" and not num_gpus:
            raise SpecError("--device cuda with num_gpus=0.", hint="Leave num_gpus out, or use --device cpu.")
        kind = "cuda" if num_gpus and device != "cpu" else "cpu"
        num_cpus = options.num_cpus
        if num_cpus is None:
            num_cpus = _cpus({**options.resources, "GPU": num_gpus}, have, workers)
        names = [key.removeprefix(_ACCELERATOR) for node in have for key in node if key.startswith(_ACCELERATOR)]
        return cls(kind, num_cpus, num_gpus, options.resources, options.placement_group, *names[:1])

    @property
    def amounts(self) -> dict[str, float]:
        return {"GPU": self.num_gpus, "CPU": self.num_cpus, **self.resources}

    def room(self) -> int:
        """How many workers fit on the nodes that exist now; at least one."""
        have = bundles(self.placement_group) if self.placement_group else nodes()
        return max(1, sum(fits(self.amounts, each) for each in have))

    def missing(self) -> str:
        """Why no node can ever hold a worker; empty if one can."""
        if self.placement_group:
            whole = total(bundles(self.placement_group))
            if fits(self.amounts, whole):
                return ""
            return f"a worker needs {amounts(self.amounts)}, and the placement group has {amounts(whole)}"
        have = nodes()
        if any(fits(self.amounts, node) for node in [*have, *node_types()]):
            return ""
        return f"a worker needs {amounts(self.amounts)}, and there are {describe(have, list(self.resources))}"

    def device(self, seat: int) -> Device:
        """A worker's device before its node is known; its name keeps measured rates apart from this machine's."""
        threads, sharing = max(1, int(self.num_cpus)), max(1, round(1 / (self.num_gpus or 1)))
        if self.kind == "cpu":
            return Device("cpu", "cpu of a Ray cluster", threads)
        return Device("cuda", self.gpu, threads, visible=str(seat // sharing), sharing=sharing)

    def actor_options(self, options: RayOptions) -> dict[str, Any]:
        """Options of the actor. The engine restarts workers, not Ray. The second thread receives signals to pass on."""
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


def _cpus(others: Resources, have: Sequence[Resources], workers: int | None) -> float:
    """CPUs per worker, as many as leave room for all workers: the number asked for, or one per GPU or per node."""

    def room(cpus: int) -> int:
        return sum(fits({**others, "CPU": cpus}, node) for node in have)

    most = room(1)
    wanted = min(most, workers or (most if others["GPU"] else sum(bool(node.get("CPU")) for node in have)))
    return float(next((cpus for cpus in range(_CPUS, 1, -1) if room(cpus) >= wanted > 0), 1))
