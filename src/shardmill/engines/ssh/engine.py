"""The engine `ssh`: checks its hosts, then places workers on them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

from shardmill.core.console import say
from shardmill.core.devices import Device
from shardmill.core.errors import HostLost, SpecError
from shardmill.engines.base import check_options
from shardmill.engines.ssh.at_home.earlier import find_earlier
from shardmill.engines.ssh.at_home.environment import check_look, used_gpus
from shardmill.engines.ssh.at_home.home import Home
from shardmill.engines.ssh.at_home.host import folder_name
from shardmill.engines.ssh.at_home.link import Looked, connect
from shardmill.engines.ssh.at_home.placement import SshPlacement
from shardmill.engines.ssh.at_home.uploads import check_reach, is_remote
from shardmill.engines.ssh.cluster import Cluster, Host, read_cluster
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.plan.spec import Execution
from shardmill.plugins import find_verb
from shardmill.sources.spans import is_ranged
from shardmill.store import is_url

_MIB = 1 << 20


class SshEngine:
    quiet = True

    def __init__(self, execution: Execution) -> None:
        check_options("ssh", execution.engine_options, ("hosts",))
        if "hosts" not in execution.engine_options:
            raise SpecError("The engine 'ssh' needs hosts.", hint="Name the hosts file: --hosts cluster.toml")
        if execution.workers is not None:
            raise SpecError("--workers does not say on which hosts.", hint="Set workers per host in cluster.toml.")
        self._execution = execution
        self._cluster: Cluster = read_cluster(str(execution.engine_options["hosts"]))

    @cached_property
    def devices(self) -> Sequence[Device]:
        """The devices of the hosts that answer. A host that does not match its entry is refused first."""
        # On its own thread: a notebook already has a running event loop.
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(asyncio.run, look_at(self._cluster)).result()
        missed = [looked for looked in found.values() if isinstance(looked, HostLost)]
        if len(missed) == len(found):
            raise missed[0]
        for lost in missed:
            if not self.quiet:
                say(f"{lost.message} The other hosts start without it.")
        return [
            device
            for host in self._cluster.hosts
            if isinstance(looked := found[host.name], Looked)
            for device in _devices(host, looked, self._execution.device)
        ]

    def start(self, run: str) -> SshPlacement:
        ledger = Ledger(run)
        common = self._cluster.shared or (is_url(ledger.url) and not ledger.url.startswith("file:"))
        if not common:
            check_together(self._cluster, self._execution.min_workers or 1)
        home = Home(ledger, self._execution.lease_s)
        if not common and find_verb(home.plan.work.task).publishes:
            raise _cannot_leave_model(self._cluster)
        check_reach(home.plan, self._cluster.shared, is_url(ledger.url))
        if not common and not self.quiet:
            self._announce(home.plan)
            if (earlier := find_earlier(ledger, home.plan)) is not None and (parts := earlier.parts()):
                size = sum(path.stat().st_size for path in parts.values())
                say(f"Each host is sent the edition before ({size / _MIB:,.0f} MiB), to take its rows over.")
        placement = SshPlacement(home, self._cluster, self._execution, common=common, quiet=self.quiet)
        placement.start()
        return placement

    def _announce(self, plan: Plan) -> None:
        whole = [f for f in plan.stat.files if not is_remote(plan, f.place) and not is_ranged(plan.stat, f)]
        if whole:
            size = sum(f.size_bytes for f in whole)
            say(f"Each host is sent the whole source ({size / _MIB:,.0f} MiB): only plain lines are sent in parts.")


def check_together(cluster: Cluster, least: int) -> None:
    """Refuse workers of several hosts that are to work on one item: each host has a run folder of its own."""
    most = max(host.workers or 1 for host in cluster.hosts)
    if least > most:
        names = ", ".join(host.name for host in cluster.hosts)
        raise SpecError(
            f"{least} workers are to work on one item, and no host has more than {most}: {names} do not reach "
            "each other's run folder.",
            hint="Use hosts with a shared disk or a run in an object store, or Slurm, Ray or Kubernetes; or lower "
            "min_workers.",
        )


def _cannot_leave_model(cluster: Cluster) -> SpecError:
    names = ", ".join(host.name for host in cluster.hosts)
    return SpecError(
        f"train leaves its checkpoints and its model in the run folder, which {names} do not reach.",
        hint="If they share a disk with this machine, say shared = true in the hosts file; or put the run in an object "
        "store (--out s3://…); or use Slurm, Ray or Kubernetes.",
    )


async def look_at(cluster: Cluster) -> dict[str, Looked | HostLost]:
    """What each host has, or why it does not answer; all hosts are asked in parallel."""

    async def look(host: Host) -> Looked | HostLost:
        try:
            async with connect(host) as link:
                found = await link.look()
        except HostLost as error:
            return error
        check_look(host, found)
        return found

    found = await asyncio.gather(*(look(host) for host in cluster.hosts))
    return {host.name: looked for host, looked in zip(cluster.hosts, found, strict=True)}


def end_workers(execution: Execution, run: str, plan: Plan) -> int:
    """End the workers of a run on all its hosts. If a host does not answer, raise after all others are done."""
    cluster = read_cluster(str(execution.engine_options["hosts"]))

    async def end(host: Host) -> int:
        async with connect(host) as link:
            return int((await link.remote("stop", folder_name(plan)))["stopped"])

    async def end_all() -> list[int | BaseException]:
        return await asyncio.gather(*map(end, cluster.hosts), return_exceptions=True)

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(asyncio.run, end_all()).result()
    for failure in ended:
        if isinstance(failure, BaseException):
            raise failure
    return sum(count for count in ended if isinstance(count, int))


def _devices(host: Host, found: Looked, kind: str) -> list[Device]:
    """The devices that size the shards; the host itself decides later which of its CPUs go with which GPU."""
    gpus = used_gpus(host, found, kind)
    if not gpus:
        threads = max(1, found.cores // (host.workers or 1))
        return [Device("cpu", f"cpu of {host.name}", threads, visible=host.name)] * (host.workers or 1)
    made = [
        Device("cuda", gpu["name"], 1, int(float(gpu["memory_mib"])) * _MIB, f"{host.name}:{gpu['index']}")
        for gpu in gpus
    ]
    return [made[i % len(made)] for i in range(host.workers or len(made))]
