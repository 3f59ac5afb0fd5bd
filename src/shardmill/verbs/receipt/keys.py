"""The user's keys: PEM files that sign a receipt, or say who signed it."""

from __future__ import annotations

import getpass
import os
import sys
from typing import TYPE_CHECKING, Any

from shardmill.core.errors import ShardmillError, UsageError
from shardmill.core.extras import missing_package
from shardmill.store import locate

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

PASSPHRASE = "SHARDMILL_KEY_PASSPHRASE"
_MAKE = "Make one: openssl genpkey -algorithm ed25519 -out key.pem"
_PUBLIC = "Write it with: openssl pkey -in key.pem -pubout -out key.pub"


def open_key(place: str) -> CryptoSigner:
    """The private key in a PEM file."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from securesystemslib.signer import CryptoSigner
    except ImportError as error:
        raise missing_package(error.name or "securesystemslib", "receipt") from error
    data = read_file(place, _MAKE)
    if b"PRIVATE KEY" not in data:
        what = "a public key" if b"PUBLIC KEY" in data else "no private key in PEM"
        raise UsageError(f"{place} is {what}, and cannot sign.", hint=_MAKE)
    if b"OPENSSH" in data:
        raise UsageError(f"{place} is a key of OpenSSH, not in PEM.", hint=_MAKE)
    try:
        return CryptoSigner(_decrypt(place, data))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{place} cannot sign: {_first_line(error)}.", hint=_MAKE) from error


def open_public_key(place: str) -> SSlibKey:
    """The public key in a PEM file."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
        from securesystemslib.signer import SSlibKey
    except ImportError as error:
        raise missing_package(error.name or "securesystemslib", "receipt") from error
    data = read_file(place, _PUBLIC)
    if b"PRIVATE KEY" in data:
        raise UsageError(f"{place} is a private key: --public-key takes its public one.", hint=_PUBLIC)
    try:
        return SSlibKey.from_crypto(load_pem_public_key(data))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{place} is no public key: {_first_line(error)}.", hint=_PUBLIC) from error


def read_file(place: str, hint: str) -> bytes:
    """The content of a file that an option names."""
    store, name = locate(place)
    try:
        return store.get(name)
    except FileNotFoundError as error:
        raise UsageError(f"{place}: no such file.", hint=hint) from error
    except ShardmillError as error:
        if error.retryable:
            raise
        raise UsageError(error.message, hint=hint) from error


def _decrypt(place: str, data: bytes) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(data, None)
    except TypeError:
        # It has a passphrase.
        phrase = _find_passphrase(place)
    try:
        return load_pem_private_key(data, phrase.encode())
    except ValueError as error:
        raise UsageError(
            f"The passphrase does not open {place}.", hint=f"Put the right one into {PASSPHRASE}, or type it."
        ) from error


def _find_passphrase(place: str) -> str:
    if phrase := os.environ.get(PASSPHRASE):
        return phrase
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{place} has a passphrase.", hint=f"Put it into the environment variable {PASSPHRASE}.")
    return getpass.getpass(f"Passphrase of {place}: ")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].rstrip(".")
