"""The Job of a run on a cluster: found by name, created, resized, deleted."""

from __future__ import annotations

import time

from shardmill.core.errors import EngineRefused, EngineSilent
from shardmill.engines.kubernetes.api import ApiRefused, ClusterApi, Json, patiently
from shardmill.engines.kubernetes.pod import GENERATION, RUN
from shardmill.engines.kubernetes.state import job_end

JOBS = "batch/v1/jobs"
# How long the API server may be away while something has to be said to it.
PATIENCE_S = 30.0
_LOOK_S = 0.3
_FOREGROUND = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}


class RunJob:
    """A Job by the name that its run gives it. Another run's Job of that name is left alone."""

    def __init__(self, api: ClusterApi, name: str, run: str) -> None:
        self._api, self.name, self._run = api, name, run
        self._path = api.path(JOBS, name)

    def find(self) -> Json | None:
        found = patiently(lambda: self._api.find(self._path), PATIENCE_S)
        if found is None:
            return None
        other = (found["metadata"].get("annotations") or {}).get(RUN)
        if other != self._run:
            raise EngineRefused(
                f"The name {self.name!r} in the namespace {self._api.namespace!r} is taken by a Job of "
                f"{other or 'somebody else'}.",
                hint=f"See: kubectl -n {self._api.namespace} get job {self.name}; or --set namespace=ANOTHER",
            )
        return found

    def place(self, manifest: Json, workers: int, grace_s: int) -> bool:
        """Create the Job, or adopt the one that still works on this generation of the run; True if it was adopted.

        A finished Job, or one of an earlier generation, is deleted first.
        """
        found = self.find()
        if found is not None and not self._is_current(found, manifest):
            self.delete(grace_s)
            found = None
        if found is None:
            try:
                patiently(lambda: self._api.ask("POST", self._api.path(JOBS), manifest), PATIENCE_S)
                return False
            except ApiRefused as error:
                # Another command was first, or the answer to our own request was lost.
                if error.status != 409 or (found := self.find()) is None:
                    raise
        if found["spec"]["parallelism"] != workers:
            self.resize(workers, found)
        return True

    def resize(self, workers: int, found: Json) -> None:
        """Change the number of workers in mid-run: of an Indexed Job both numbers change together.

        There may not be fewer indexes than may fail, and that limit is fixed. Below it only the pods become fewer.
        """
        fits = workers >= int(found["spec"].get("maxFailedIndexes") or 0)
        change = {"spec": {"parallelism": workers, **({"completions": workers} if fits else {})}}
        patiently(lambda: self._api.ask("PATCH", self._path, change, patch=True), PATIENCE_S)

    def delete(self, grace_s: int) -> int:
        """Delete the Job and its pods, and wait until they have ended; the number of pods that there were."""
        found = self.find()
        if found is None:
            return 0
        pods = int((found.get("status") or {}).get("active") or 0)
        deadline = time.monotonic() + grace_s + PATIENCE_S

        def delete() -> None:
            try:
                self._api.ask("DELETE", self._path, dict(_FOREGROUND))
            except ApiRefused as error:
                if error.status != 404:
                    raise

        patiently(delete, PATIENCE_S)
        while patiently(lambda: self._api.find(self._path), PATIENCE_S) is not None:
            if time.monotonic() > deadline:
                raise EngineSilent(
                    f"The cluster has not ended the Job {self.name} in {grace_s + PATIENCE_S:.0f} s.",
                    hint=f"See: kubectl -n {self._api.namespace} get pods -l job-name={self.name}",
                )
            time.sleep(_LOOK_S)
        return pods

    def _is_current(self, found: Json, manifest: Json) -> bool:
        of = [(each["metadata"].get("annotations") or {}).get(GENERATION, "") for each in (found, manifest)]
        return of[0] in ("", of[1]) and not job_end(found)[0] and not found["metadata"].get("deletionTimestamp")
