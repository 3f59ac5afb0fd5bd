"""Requests to a cluster's API server, as plain JSON. The library reads the kubeconfig and renews tokens."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from shardmill.core.errors import EngineRefused, EngineSilent, UsageError, is_passing, nearest
from shardmill.core.extras import missing_package

try:
    import httpx2
    from lightkube.config.client_adapter import Client, ConnectionParams
    from lightkube.config.kubeconfig import KubeConfig, SingleConfig
    from lightkube.core.exceptions import ConfigError
except ImportError as _missing:
    raise missing_package("lightkube") from _missing

_ANSWER_S, _CONNECT_S = 20.0, 5.0
# A watch ends after this long and begins again where it was; silence beyond it is a server that hangs.
_WATCH_S, _SILENT_S = 50, 65.0
_LONGEST_PAUSE_S = 15.0
_EXEC_API = "client.authentication.k8s.io/"
_MERGE_PATCH = "application/merge-patch+json"

Json = dict[str, Any]
_Answer = TypeVar("_Answer")


class ResourceGone(Exception):
    """A watch cannot continue where it was: the server has forgotten that version."""


class ClusterApi:
    """One cluster and one namespace of it."""

    def __init__(self, context: str = "", namespace: str = "") -> None:
        try:
            config = _read_config(context)
            timeout = httpx2.Timeout(_ANSWER_S, connect=_CONNECT_S)
            self._client = Client(config, ConnectionParams(timeout=timeout, trust_env=True))
        except UsageError:
            raise
        except Exception as error:
            # The library passes on whatever a file of any form makes it and its parsers raise.
            raise UsageError(f"The kubeconfig cannot be used: {error}.", hint="Try: kubectl config view") from error
        self.server = str(config.cluster.server)
        self.namespace = namespace or config.namespace or "default"

    def close(self) -> None:
        self._client.close()

    def path(self, kind: str, name: str = "", namespace: str = "") -> str:
        """The path of objects of a kind: "jobs" of "batch/v1", anything else of the core."""
        group, _, plural = kind.rpartition("/")
        root = f"/apis/{group}" if group else "/api/v1"
        return f"{root}/namespaces/{namespace or self.namespace}/{plural}" + (f"/{name}" if name else "")

    def ask(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        patch: bool = False,
        params: Mapping[str, str | int] | None = None,
    ) -> Json:
        """One request and its answer. EngineSilent if a retry may help, EngineRefused if not."""
        answer = self._send(method, path, body, patch, params or {})
        return dict(answer.json()) if answer.content else {}

    def read_text(self, path: str, **params: str | int) -> str:
        return str(self._send("GET", path, None, False, params).text)

    def find(self, path: str) -> Json | None:
        """An object, or None if there is none."""
        with self._explained():
            answer = self._client.get(path)
        if answer.status_code == 404:
            return None
        self._check(answer)
        return dict(answer.json())

    def items(self, path: str, **params: str | int) -> tuple[list[Json], str]:
        """All objects of a list, page by page, and the version from which a watch continues."""
        found: list[Json] = []
        more = ""
        while True:
            page = self.ask("GET", path, params={**params, "limit": 500, **({"continue": more} if more else {})})
            found += page.get("items") or []
            more = page["metadata"].get("continue", "")
            if not more:
                return found, str(page["metadata"]["resourceVersion"])

    def watch(self, path: str, version: str, **params: str | int) -> Iterator[tuple[str, Json]]:
        """Events after a version until the server ends the watch; ResourceGone if it no longer knows that version."""
        given = {**params, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": _WATCH_S}
        timeout = httpx2.Timeout(_SILENT_S, connect=_CONNECT_S)
        with (
            self._explained(),
            self._client.stream("GET", path, params={**given, "resourceVersion": version}, timeout=timeout) as answer,
        ):
            if answer.status_code == 410:
                raise ResourceGone
            if answer.status_code >= 400:
                answer.read()
            self._check(answer)
            for line in answer.iter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    if event["object"].get("code") == 410:
                        raise ResourceGone
                    raise EngineSilent(f"{self.server}: {event['object'].get('message', 'the watch failed')}.")
                yield event["type"], event["object"]

    def _send(
        self, method: str, path: str, body: Json | None, patch: bool, params: Mapping[str, str | int]
    ) -> httpx2.Response:
        headers = {"Content-Type": _MERGE_PATCH if patch else "application/json"} if body is not None else {}
        content = json.dumps(body).encode() if body is not None else None
        with self._explained():
            answer = self._client.request(method, path, content=content, headers=headers, params=dict(params))
        self._check(answer)
        return answer

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of the connection and of the program that makes tokens into ours."""
        try:
            yield
        except httpx2.HTTPError as error:
            raise EngineSilent(
                f"The cluster does not answer at {self.server}: {str(error) or type(error).__name__}.",
                hint="Check it with: kubectl cluster-info",
            ) from error
        except (ConfigError, OSError, KeyError, json.JSONDecodeError, subprocess.SubprocessError) as error:
            raise EngineRefused(
                f"No token for {self.server}: {error}", hint="Log in again, then try: kubectl auth whoami"
            ) from error

    def _check(self, answer: httpx2.Response) -> None:
        """Raise what a status says."""
        if answer.status_code < 400:
            return
        try:
            said = str(answer.json().get("message") or "")
        except ValueError:
            said = answer.text[:200]
        if is_passing(_answered(answer)):
            raise EngineSilent(f"{self.server} answered {answer.status_code}: {said or answer.reason_phrase}.")
        raise ApiRefused(answer.status_code, said or answer.reason_phrase, self)


class ApiRefused(EngineRefused):
    """The API server refuses a request; `status` is that of HTTP."""

    def __init__(self, status: int, said: str, api: ClusterApi) -> None:
        self.status = status
        if status == 401:
            message = f"{api.server} does not accept the credentials: they are wrong or have expired."
            hint = "Log in again, then try: kubectl auth whoami"
        elif status == 403 and "exceeded quota" not in said:
            message = f"The cluster denies it: {said}"
            hint = (
                f"Ask for the Role that this prints: shardmill kubernetes render role --set namespace={api.namespace}"
            )
        elif status == 404 and "namespaces" in said:
            message = f"There is no namespace {api.namespace!r}."
            hint = "See: kubectl get namespaces. Then: --set namespace=NAME"
        else:
            message, hint = f"The cluster refuses ({status}): {said}", ""
        super().__init__(message, hint=hint)

    def __reduce__(self) -> tuple[object, ...]:
        return (EngineRefused, (self.message,))


def patiently(request: Callable[[], _Answer], patience_s: float) -> _Answer:
    """Ask again, with growing pauses, while the cluster does not answer."""
    deadline, faults = time.monotonic() + patience_s, 0
    while True:
        try:
            return request()
        except EngineSilent:
            faults += 1
            pause_s = pause(faults)
            if time.monotonic() + pause_s >= deadline:
                raise
            time.sleep(pause_s)


def pause(faults: int) -> float:
    """A random pause, longer after each fault."""
    return min(_LONGEST_PAUSE_S, 0.5 * 2.0 ** min(faults - 1, 8)) * random.uniform(0.5, 1.0)


def _answered(answer: httpx2.Response) -> BaseException:
    return httpx2.HTTPStatusError("", request=answer.request, response=answer)


def _read_config(context: str) -> SingleConfig:
    places = [Path(place).expanduser() for place in os.environ.get("KUBECONFIG", "").split(os.pathsep) if place]
    in_pod = not places and not context and os.environ.get("KUBERNETES_SERVICE_HOST")
    if in_pod:
        return _chosen(KubeConfig.from_service_account(), "")
    places = places or [Path("~/.kube/config").expanduser()]
    there = [place for place in places if place.is_file()]
    if not there:
        raise UsageError(
            f"No cluster is configured: {places[0]} does not exist.",
            hint="Log in to a cluster, or name its kubeconfig: export KUBECONFIG=FILE",
        )
    return _chosen(KubeConfig.from_file(there[0]), context)


def _chosen(config: KubeConfig, context: str) -> SingleConfig:
    if context and context not in config.contexts:
        raise UsageError(f"The kubeconfig has no context {context!r}.", hint=nearest(context, sorted(config.contexts)))
    found = config.get(context or None)
    if found is None or found.user is None:
        raise UsageError("The kubeconfig names no user for the cluster.", hint="Try: kubectl config view")
    run = found.user.exec
    if run is not None and run.apiVersion == f"{_EXEC_API}v1":
        # The library refuses v1, whose answer with a token has the form of v1beta1.
        run.apiVersion = f"{_EXEC_API}v1beta1"
    return found
