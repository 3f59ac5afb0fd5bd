"""Explains the errors of a store, and what to do about them."""

from __future__ import annotations

import re

from shardmill.core.errors import Cure, StoreError

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_UNKNOWN_KEYS = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity"}
_NO_BUCKET = {
    "NoSuchBucket": ("bucket", "Check its name, AWS_REGION and AWS_ENDPOINT_URL."),
    "ContainerNotFound": ("container", "Check its name and AZURE_STORAGE_ACCOUNT_NAME."),
}
_ELSEWHERE = {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint"}

NO_CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; from a profile: "
    '`eval "$(aws configure export-credentials --format env)"`. Or AWS_SKIP_SIGNATURE=true for a public bucket.',
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for a public bucket.",
    "az": "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, "
    "or AZURE_SKIP_SIGNATURE=true for a public container.",
}


def explain(place: str, error: Exception) -> StoreError:
    """Turn the error of a client into a StoreError; it is not retryable if a retry cannot help."""
    said = str(error).partition("\n\nDebug source")[0]
    code = found.group(1) if (found := _CODE.search(said)) else ""
    status = int(found.group(1)) if (found := _STATUS.search(said)) else 0
    if "169.254.169.254" in said or "/latest/api/token" in said or "metadata.google.internal" in said:
        return no_credentials(place)
    if code in _NO_BUCKET:
        kind, hint = _NO_BUCKET[code]
        return _final(f"{_bucket(place)}: no such {kind}.", hint)
    if code in _EXPIRED:
        return _final(
            f"{place}: the credentials have expired ({code}).",
            "Renew them in the environment and run the same command again: it resumes.",
        )
    if code == "RequestTimeTooSkewed":
        return _final(f"{place}: the clock of this machine is wrong ({code}).", "Set the clock.")
    if code in _UNKNOWN_KEYS:
        return _final(
            f"{place}: the store does not accept the credentials ({code}).",
            "Check the keys in the environment, and that AWS_ENDPOINT_URL is the store they are for.",
        )
    if code in _ELSEWHERE or "incorrectly configured region" in said:
        return _final(
            f"{_bucket(place)}: the bucket is in another region or behind another endpoint.",
            "Set AWS_REGION (or AWS_ENDPOINT_URL) to that of the bucket.",
        )
    if status in (401, 403) or type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError"):
        return _final(
            f"{place}: access is denied ({code or status or 'refused'}).",
            "Check the credentials in the environment: have they expired, and what do they allow?"
            + (" Set AWS_REQUEST_PAYER=requester if the reader pays." if place.startswith("s3") else ""),
        )
    if status == 400:
        return _final(
            f"{place}: the store does not understand the request ({code or '400 Bad Request'}).",
            "Check for expired credentials or a wrong AWS_REGION.",
        )
    first = said.partition("\n")[0]
    away = "error sending request" in first
    return StoreError(f"{place}: {first}", hint="Check that the store can be reached from here." if away else "")


def is_about_bucket(error: Exception) -> bool:
    """Whether an object is missing because its whole bucket or container is."""
    return any(f"<Code>{code}<" in str(error) for code in _NO_BUCKET)


def no_credentials(place: str) -> StoreError:
    scheme = {"gs": "gs", "s3": "s3", "s3a": "s3"}.get(place.partition("://")[0], "az")
    return _final(f"{place}: no credentials were found.", NO_CREDENTIALS[scheme])


def _bucket(place: str) -> str:
    return "/".join(place.split("/")[:3])


def _final(message: str, hint: str) -> StoreError:
    explained = StoreError(message, hint=hint)
    explained.cure = Cure.FINAL
    return explained
