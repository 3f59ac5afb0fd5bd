"""Writes a receipt, or checks one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shardmill.core.console import Bar, count
from shardmill.core.dialect import name_option
from shardmill.core.errors import UsageError
from shardmill.core.pool import in_order
from shardmill.core.records import read_object
from shardmill.ledger import Ledger
from shardmill.plan import Plan
from shardmill.results.parts import digest
from shardmill.results.receipt import (
    compare,
    encode_statement,
    name_part,
    read_statement,
    tell_differences,
    tell_result,
)
from shardmill.results.report import Check
from shardmill.run.request import Request
from shardmill.store import locate
from shardmill.verbs.receipt.envelope import check_signature, open_envelope, seal
from shardmill.verbs.receipt.keys import open_key, open_public_key, read_file
from shardmill.verbs.receipt.options import ReceiptOptions
from shardmill.verbs.receipt.receipt import Receipt
from shardmill.verbs.receipt.statement import describe_run

_ANOTHER = "name the run that it was made of, or ask for a new receipt"
_MENDED = "restore it from a copy, or delete its commit and resume: the shard is run again"


def start(request: Request) -> Receipt:
    """Write the receipt of a run, or check a receipt."""
    options: ReceiptOptions = request.options
    if options.check:
        _refuse(options, ("key", "out"), "is of a receipt that is written, and --check reads one")
        return check(options, quiet=request.quiet or options.as_json)
    _refuse(options, ("public_key",), "needs --check FILE, the receipt that it is to have signed")
    if not options.run:
        raise UsageError("No RUN was given.", hint="shardmill receipt runs/reviews --key key.pem")
    return write(options)


def _refuse(options: ReceiptOptions, names: Sequence[str], why: str) -> None:
    for name in names:
        if getattr(options, name):
            raise UsageError(f"{name_option(name)} {why}.", hint="See: shardmill receipt --help")


def write(options: ReceiptOptions) -> Receipt:
    """Write the receipt of a run."""
    signer = open_key(options.key) if options.key else None
    ledger = Ledger(options.run)
    statement = describe_run(ledger, ledger.plan())
    data = seal(encode_statement(statement), signer)
    place = options.out or f"{ledger.url}/receipt.json"
    if options.out:
        store, name = locate(options.out)
        store.put(name, data)
    else:
        _keep_signature(ledger, place, signed=signer is not None)
        ledger.notes.put_receipt(data)
    return Receipt(place, statement, (signer.public_key.keyid,) if signer else ())


def _keep_signature(ledger: Ledger, place: str, *, signed: bool) -> None:
    """Refuse to put a receipt without a signature in the place of one with it."""
    before = ledger.notes.receipt()
    if before is not None and not signed and read_object(before, place, "Delete it first.").get("signatures"):
        raise UsageError(
            f"{place} is signed, and this one would not be.",
            hint="Sign it with --key FILE, or name another --out FILE.",
        )


def check(options: ReceiptOptions, *, quiet: bool) -> Receipt:
    """Check the signature of a receipt, and compare a run with it. What the key did not sign is not read."""
    if not (options.public_key or options.run):
        raise UsageError(
            f"Nothing to check {options.check} with.",
            hint="Give --public-key FILE for its signature, the run folder for what it says, or both.",
        )
    key = open_public_key(options.public_key) if options.public_key else None
    data = read_file(options.check, "Name the receipt: --check receipt.json")
    envelope = open_envelope(data, options.check)
    signed_by, checks = tuple(envelope.signatures), [check_signature(envelope, key)]
    if not checks[0].ok:
        return Receipt(options.check, {}, signed_by, tuple(checks))
    said = read_statement(data, options.check)
    if options.run:
        checks += _check_run(Ledger(options.run), said, quiet=quiet)
    return Receipt(options.check, said, signed_by, tuple(checks))


def _check_run(ledger: Ledger, said: dict[str, Any], *, quiet: bool) -> Iterator[Check]:
    plan = ledger.plan()
    now = describe_run(ledger, plan)
    found = compare(said, now)
    seen = f"{tell_differences(found)}; {_ANOTHER}" if found else f"{tell_result(said)}, as it says"
    yield Check("result", not found, seen)
    if said["predicate"]["plan"]["id"] == plan.id:
        yield _check_bytes(ledger, plan, quiet=quiet)
        yield from _check_told(said["predicate"], now["predicate"])


def _check_bytes(ledger: Ledger, plan: Plan, *, quiet: bool) -> Check:
    """Read every part, and what the run left beside its rows, and compare the bytes with their digests."""
    if plan.work.to is not None:
        return Check("bytes", True, "none here: its rows are in a table, which shardmill verify reads")
    commits = [commit for commit in ledger.commits.read_complete(plan) if commit.part]
    files = [(name_part(commit), commit.digest, commit.part_bytes) for commit in commits]
    files += [(key, expected, 0) for key, expected in ledger.published.digests().items()]
    total, read, wrong = sum(size for _, _, size in files), 0, []
    with Bar("checking", quiet=quiet) as bar:
        for (key, expected, size), seen in zip(files, in_order(lambda f: _digest(ledger, f[0]), files), strict=True):
            wrong += [key] * (seen != expected)
            bar.count(read := read + size, total, "bytes")
    if wrong:
        lost = f"{wrong[0]} is missing or was changed" + (f", and {len(wrong) - 1:,} more" if wrong[1:] else "")
        return Check("bytes", False, f"{lost}; {_MENDED}")
    return Check("bytes", True, f"{total:,} bytes in {count(len(files), 'file')} have the digests it says")


def _digest(ledger: Ledger, key: str) -> str:
    try:
        return digest(ledger.store, key)
    except FileNotFoundError:
        return ""


def _check_told(said: dict[str, Any], now: dict[str, Any]) -> Iterator[Check]:
    """What may change without the result is told if it did; only a verification that failed since is a fault."""
    last, since = said.get("verification"), now["verification"]
    failed = [check["name"] for check in since["checks"] if not check.get("ok")] if since else []
    if since is None and last is not None:
        yield Check("verified", True, "the run has no report of it any more")
    elif since != last:
        wrong = f"the last verify failed: {', '.join(failed)}; see what it says: shardmill verify"
        yield Check("verified", not failed, wrong if failed else "again since, with another report")
    for name in ("software", "cost"):
        if said.get(name) != now[name]:
            yield Check(name, True, "not what the records of the workers say now")
