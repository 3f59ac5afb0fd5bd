"""The engines that come with shardmill, as declarations. None of them is imported before it is used."""

from __future__ import annotations

from shardmill.plugins.base import EngineKind

_KUBERNETES = "shardmill.engines.kubernetes"

LOCAL = EngineKind(
    name="local",
    engine="shardmill.engines.local:LocalEngine",
    commands=(),
    detachable=True,
    stays_here=True,
    gpus_by="",
)
SSH = EngineKind(
    name="ssh",
    engine="shardmill.engines.ssh.engine:SshEngine",
    end_workers="shardmill.engines.ssh.engine:end_workers",
    commands=(),
    own_files=("hosts",),
    gpus_by="the hosts file (gpus = [0, 2])",
)
SLURM = EngineKind(
    name="slurm",
    engine="shardmill.engines.slurm:SlurmEngine",
    end_workers="shardmill.engines.slurm.engine:end_workers",
    commands=("setup", "wrap", "python", "directives"),
    detachable=True,
)
RAY = EngineKind(
    name="ray",
    engine="shardmill.engines.ray:RayEngine",
    commands=("runtime_env", "address"),
    detachable=True,
)
KUBERNETES = EngineKind(
    name="kubernetes",
    engine=f"{_KUBERNETES}.engine:KubernetesEngine",
    end_workers=f"{_KUBERNETES}.engine:end_workers",
    is_placed=f"{_KUBERNETES}.engine:is_placed",
    commands=("image", "secret", "service_account", "env", "context"),
    detachable=True,
)
ARGO = EngineKind(
    name="argo",
    engine=f"{_KUBERNETES}.workflow:ArgoEngine",
    end_workers=f"{_KUBERNETES}.workflow:end_workers",
    commands=("context",),
    detachable=True,
)
POOL = EngineKind(
    name="pool",
    engine="shardmill.engines.pool:PoolEngine",
    commands=(),
    detachable=True,
)
