"""The options of `receipt`."""

from __future__ import annotations

from shardmill.plan.options import CallOptions, option
from shardmill.plan.shared import Printing
from shardmill.plan.values import Place


class Signing(CallOptions):
    """A receipt that is written."""

    out: Place = option("", "The file.", metavar="FILE", common=True, shown="receipt.json in the run folder")
    key: Place = option(
        "", "Your private key, to sign with: a PEM file with an Ed25519 or ECDSA key.", metavar="FILE", common=True
    )


class Checking(CallOptions):
    """A receipt that is checked."""

    check: Place = option(
        "", "Check this receipt; with RUN, also compare the run with it.", metavar="FILE", common=True
    )
    public_key: Place = option(
        "", "The public key that must have signed the receipt: a PEM file.", metavar="FILE", common=True
    )


class ReceiptOptions(Signing, Checking, Printing):
    """What `receipt` takes."""

    run: Place = option("", "The run folder: a path or a URL.", metavar="[RUN]", argument=True, accepts="Place")
