"""The engine `kubernetes`: checks the options and places an Indexed Job."""

from __future__ import annotations

from shardmill.core import passwords, permission
from shardmill.core.devices import Device
from shardmill.core.errors import UsageError
from shardmill.engines.kubernetes.api import ClusterApi, patiently
from shardmill.engines.kubernetes.job import JOBS, RunJob
from shardmill.engines.kubernetes.manifests import check_reachable, job_name, make_job
from shardmill.engines.kubernetes.options import read_pod_options
from shardmill.engines.kubernetes.placement import JobPlacement
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.plan.spec import Execution

_ANSWERS_S = 20.0


class KubernetesEngine:
    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self.options = read_pod_options(execution)
        self.kind = "cuda" if self.options.gpus else "cpu"
        if passwords.environment():
            raise UsageError(
                "A password in a URL cannot be passed to a pod: its manifest would show it.",
                hint="Remove it from the URL; put PGPASSWORD or MYSQL_PWD into a Secret and name it: --set secret=NAME",
            )
        self._api = ClusterApi(self.options.context, self.options.namespace)
        # Before a source is scanned: whether there is a cluster, and one that lets this user in.
        patiently(lambda: self._api.ask("GET", self._api.path(JOBS), params={"limit": 1}), _ANSWERS_S)

    @property
    def devices(self) -> list[Device]:
        """One per GPU asked for. Their names are placeholders: the real device is known once a node is found."""
        selected = ",".join(f"{key}={value}" for key, value in sorted(self.options.selector.items()))
        name = f"kubernetes {self.options.gpu_resource if self.options.gpus else 'cpu'} {selected}".strip()
        count = (self._execution.workers or 1) * max(1, self.options.gpus)
        return [Device(self.kind, name, 1, visible=str(i)) for i in range(count)]

    def start(self, run: str) -> JobPlacement:
        check_reachable(run)
        name = job_name(run)
        generation = Ledger(run).plan().generation
        manifest = make_job(
            run, self.options, self._execution.workers or 1, generation=generation, env=permission.environment()
        )
        placement = JobPlacement(run, self._api, RunJob(self._api, name, run), self.options, self._execution)
        placement.start(manifest)
        return placement


def is_placed(execution: Execution, run: str) -> bool:
    """Whether a Job of the run exists whose pods are what these options would make."""
    options = read_pod_options(execution)
    found = RunJob(ClusterApi(options.context, options.namespace), job_name(run), run).find()
    if found is None:
        return False
    made, placed = make_job(run, options, 1)["spec"]["template"]["spec"], found["spec"]["template"]["spec"]
    parts = [({**spec["containers"][0]}, spec.get("serviceAccountName", "")) for spec in (made, placed)]
    keys = ("image", "command", "args", "envFrom")
    same = len({str([container.get(key) for key in keys] + [account]) for container, account in parts}) == 1
    # It has more variables than the options: what the one who placed it permitted.
    known = {variable["name"]: variable.get("value", "") for variable in parts[1][0].get("env", ())}
    return same and all(known.get(name) == value for name, value in options.env.items())


def end_workers(execution: Execution, run: str, plan: Plan) -> int:
    """Delete the Job of a run and wait until its pods have ended; how many there were."""
    options = read_pod_options(execution)
    api = ClusterApi(options.context, options.namespace)
    ended = RunJob(api, job_name(run), run).delete(options.grace_s)
    Ledger(run).notes.put_placement("")
    return ended
