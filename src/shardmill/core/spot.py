"""The notice by which a cloud tells a spot machine that it is about to be taken away.

SHARDMILL_SPOT_NOTICE names the cloud: aws, gcp or azure, or aws=URL if its metadata service has another address. Only
the standard library is used: workers look before their own libraries are imported.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable

from shardmill.core.errors import UsageError

_VARIABLE = "SHARDMILL_SPOT_NOTICE"
_VALUE = re.compile(r"(?P<cloud>aws|gcp|azure)(=(?P<address>https?://[\w.:-]+))?", re.ASCII)
_AT = {"gcp": "http://metadata.google.internal"}
_ANYWHERE = "http://169.254.169.254"
# The shortest notice, that of GCP and Azure, comes 30 s ahead.
_LOOK_EVERY_S, _ANSWERS_S = 5.0, 2.0


def environment() -> dict[str, str]:
    """The variable, to be handed on to workers on other machines, if it is set; refuses a value that is not valid."""
    value = os.environ.get(_VARIABLE, "")
    if not value:
        return {}
    _read(value)
    return {_VARIABLE: value}


def wait_for_notice() -> str:
    """Ask the metadata service until it says that this machine is taken away; what it said."""
    cloud, address = _read(os.environ[_VARIABLE])
    warned = False
    while True:
        try:
            if said := _CLOUDS[cloud](address):
                return said
        except (OSError, ValueError, LookupError) as error:
            if not warned:
                print(
                    f"{_VARIABLE}: {address} does not answer as that of {cloud}: {error}", file=sys.stderr, flush=True
                )
            warned = True
        time.sleep(_LOOK_EVERY_S)


def _read(value: str) -> tuple[str, str]:
    found = _VALUE.fullmatch(value)
    if found is None:
        raise UsageError(f"{_VARIABLE}={value} names no cloud.", hint="It is aws, gcp or azure, or aws=http://ADDRESS.")
    return found["cloud"], found["address"] or _AT.get(found["cloud"], _ANYWHERE)


def _ask(url: str, method: str = "GET", **headers: str) -> str:
    """What the metadata service answers, "" if it has nothing there. No proxy comes between it and its machine."""
    # A worker that no notice can reach does not import it.
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, Request, build_opener

    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with build_opener(ProxyHandler({})).open(Request(url, method=method, headers=named), timeout=_ANSWERS_S) as got:
            return str(got.read().decode())
    except HTTPError as error:
        if error.code == 404:
            return ""
        raise


def _ask_aws(address: str) -> str:
    token = _ask(f"{address}/latest/api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="60")
    said = _ask(f"{address}/latest/meta-data/spot/instance-action", X_aws_ec2_metadata_token=token)
    if not said:
        return ""
    action = json.loads(said)
    return f"AWS takes this machine at {action['time']} ({action['action']})."


def _ask_gcp(address: str) -> str:
    said = _ask(f"{address}/computeMetadata/v1/instance/preempted", Metadata_Flavor="Google")
    return "GCP takes this machine." if said.strip() == "TRUE" else ""


def _ask_azure(address: str) -> str:
    """Events of a scale set name all machines that they are about."""
    said = _ask(f"{address}/metadata/scheduledevents?api-version=2020-07-01", Metadata="true")
    events = [each for each in json.loads(said or "{}").get("Events", ()) if each["EventType"] == "Preempt"]
    if not events:
        return ""
    own = f"{address}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    name = _ask(own, Metadata="true").strip()
    meant = [each for each in events if name in each["Resources"]]
    return f"Azure takes this machine at {meant[0]['NotBefore']}." if meant else ""


_CLOUDS: dict[str, Callable[[str], str]] = {"aws": _ask_aws, "gcp": _ask_gcp, "azure": _ask_azure}
