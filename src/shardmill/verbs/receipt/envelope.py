"""The envelope of a receipt (DSSE): the statement's bytes, and the signatures over them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shardmill.core.dialect import name_option
from shardmill.core.errors import CorruptState
from shardmill.core.extras import missing_package
from shardmill.core.records import read_object
from shardmill.results.report import Check

if TYPE_CHECKING:
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import CryptoSigner, SSlibKey

_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_SHOWN = 16


def seal(statement: bytes, signer: CryptoSigner | None) -> bytes:
    """The file of a receipt; without a signer it has no signature."""
    try:
        from securesystemslib.dsse import Envelope
    except ImportError as error:
        raise missing_package("securesystemslib") from error
    envelope = Envelope(statement, _PAYLOAD_TYPE, {})
    if signer is not None:
        envelope.sign(signer)
    return _encode(envelope)


def open_envelope(data: bytes, place: str) -> Envelope:
    """The envelope in a file, which is refused if one byte is not as `seal` writes it."""
    try:
        from securesystemslib.dsse import Envelope
        from securesystemslib.exceptions import FormatError
    except ImportError as error:
        raise missing_package("securesystemslib") from error
    hint = "Ask for the file as it was written, or make it anew: shardmill receipt RUN"
    try:
        envelope = Envelope.from_dict(read_object(data, place, hint))
        sound = _encode(envelope) == data and envelope.payload_type == _PAYLOAD_TYPE
    except (ValueError, TypeError, LookupError, AttributeError, FormatError) as error:
        raise CorruptState(f"{place} is no receipt, or is damaged.", hint=hint) from error
    if not sound:
        raise CorruptState(f"{place} was changed after it was written.", hint=hint)
    return envelope


def check_signature(envelope: Envelope, key: SSlibKey | None) -> Check:
    """Whether the owner of the key signed it. Without a key, it is only said which one signed."""
    from securesystemslib.exceptions import VerificationError

    signers = ", ".join(keyid[:_SHOWN] for keyid in envelope.signatures)
    if key is None:
        said = f"by key {signers}, not checked without {name_option('public_key')}"
        return Check("signature", True, said if signers else "none, anybody may have written it")
    own = key.keyid[:_SHOWN]
    if not signers:
        return Check("signature", False, f"none, so not by key {own}; ask for a receipt that is signed")
    if key.keyid not in envelope.signatures:
        return Check("signature", False, f"by key {signers}, not by {own}; ask the signer for the right public key")
    try:
        envelope.verify([key], 1)
    except VerificationError:
        return Check("signature", False, f"key {own} did not sign this; ask for the receipt as it was written")
    return Check("signature", True, f"by key {own}")


def _encode(envelope: Envelope) -> bytes:
    return json.dumps(envelope.to_dict(), separators=(",", ":"), sort_keys=True).encode() + b"\n"
