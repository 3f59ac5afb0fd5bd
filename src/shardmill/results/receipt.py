"""What a receipt says of a result, and how a result is compared with its receipt later.

Design: docs/design/audits-and-receipts.md
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from shardmill.core.console import clean, count
from shardmill.core.errors import CorruptState, ShardmillError
from shardmill.core.pool import in_order
from shardmill.core.records import read_object
from shardmill.ledger import Commit, Ledger
from shardmill.plan import Plan
from shardmill.results.report import Check

STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "urn:shardmill:receipt:v1"
# More parts than this are listed in groups, and more failed rows are only counted: a receipt of any run stays small.
_MOST_SUBJECTS = _MOST_FAILED = 1024
# What changes without the result: a later verification, and what is known of workers and prices.
TOLD = ("verification", "software", "cost")
# A name as of a model on the hub or of a package with its version; another text may be a path.
_NAME = re.compile(r"\w[\w.+-]*(/[\w.+-]+)?( [\w.+-]+)?")
_NAMED = 3
_DIGEST_CHARACTERS = 32


def describe_result(ledger: Ledger, plan: Plan, commits: Sequence[Commit]) -> dict[str, Any]:
    """The in-toto statement about the result that these commits make, in the order of their shards.

    It depends on the run alone, and has no name of a file outside the run, of a machine or of a person in it.
    """
    parts = [(name_part(commit), commit.digest) for commit in commits]
    beside = ledger.published.digests()
    return {
        "_type": STATEMENT,
        "subject": [*_subjects(commits), *({"name": name, "digest": {"sha256": beside[name]}} for name in beside)],
        "predicateType": PREDICATE,
        "predicate": {
            "plan": {"id": plan.id, "sha256": _digest_plan(ledger)},
            "source": _describe_source(plan) | _digest_all(commits, "items_digest", "items"),
            "task": plan.work.task,
            "fingerprint": {name: _without_path(value) for name, value in plan.fingerprint.items()},
            "packages": dict(plan.packages),
            "parts": {
                "count": len(parts),
                "bytes": sum(commit.part_bytes for commit in commits),
                "sha256": _digest_list(parts),
                **_digest_all(commits, "rows_digest", "rows"),
            },
            "counts": _count(commits),
            "failed": _describe_failed(ledger, commits),
            "hardware": _describe_hardware(commits),
            "finished": _date(max((commit.finished_at for commit in commits), default=0.0)),
        },
    }


def encode_statement(statement: Mapping[str, Any]) -> bytes:
    """The same bytes for the same statement."""
    return json.dumps(statement, separators=(",", ":"), sort_keys=True).encode()


def name_part(commit: Commit) -> str:
    """The part of a shard in the run folder; the rows of a shard that went into a table have a name of their own."""
    return commit.part or f"shards/{commit.shard:06d}"


def _subjects(commits: Sequence[Commit]) -> Iterator[dict[str, Any]]:
    """Each part with its digest. Of many parts, groups of as many shards, with the digest of their list."""
    size = max(1, -(-len(commits) // _MOST_SUBJECTS))
    for start in range(0, len(commits), size):
        group = commits[start : start + size]
        if size == 1:
            # What is written into a table has a sum over its rows, which is no digest of a file.
            yield {"name": name_part(group[0]), "digest": {"sha256" if group[0].part else "rows": group[0].digest}}
        else:
            name = f"parts of shards {group[0].shard} to {group[-1].shard}"
            listed = [(name_part(commit), commit.digest) for commit in group]
            yield {"name": name, "digest": {"sha256": _digest_list(listed)}}


def _digest_list(parts: Iterable[tuple[str, str]]) -> str:
    """The digest of the list that `sha256sum` prints for these files."""
    total = hashlib.sha256()
    for name, digest in parts:
        total.update(f"{digest}  {name}\n".encode())
    return total.hexdigest()


def _digest_all(commits: Sequence[Commit], field: str, name: str) -> dict[str, str]:
    """The digest of what all commits say in a field, under a name; nothing if a version wrote some that has it not."""
    listed = [(str(commit.shard), getattr(commit, field, "")) for commit in commits]
    return {name: _digest_list(listed)} if listed and all(value for _, value in listed) else {}


def _digest_plan(ledger: Ledger) -> str:
    stored = read_object(ledger.store.get("plan.json"), "plan.json")
    # Each resume writes it anew with another mark.
    stored.pop("confirmed", None)
    return hashlib.sha256(encode_statement(stored)).hexdigest()


def _describe_source(plan: Plan) -> dict[str, Any]:
    """What identifies the content of the source, wherever it is: the size of each file and a digest of its edges."""
    files = [[file.size_bytes, file.edges or file.tag] for file in plan.stat.files]
    return {
        "format": plan.stat.format,
        "files": len(files),
        "bytes": sum(file.size_bytes for file in plan.stat.files),
        "sha256": hashlib.sha256(encode_statement({"files": files})).hexdigest(),
    }


def _without_path(value: str) -> str:
    """A digest or a name as it is; of a path, as the name of a model on its server may be, the last part.

    >>> _without_path("BAAI/bge-small-en"), _without_path("/home/ann/qwen3")
    ('BAAI/bge-small-en', 'qwen3')
    """
    return value if _NAME.fullmatch(value) else re.split(r"[\\/@\s]", value)[-1]


def _count(commits: Sequence[Commit]) -> dict[str, int]:
    names = ("lines", "dropped", "truncated", "tokens", "tokens_out")
    return {
        "shards": len(commits),
        "items": sum(commit.rows for commit in commits),
        "rows": sum(commit.rows_in_part for commit in commits),
        **{name: sum(getattr(commit, name) for commit in commits) for name in names},
    }


def _describe_failed(ledger: Ledger, commits: Sequence[Commit]) -> dict[str, Any]:
    """How many items failed, which ones unless they are many, and a digest of their records."""
    starts, at = {}, 0
    for commit in commits:
        starts[commit.shard], at = at, at + commit.rows
    having = [commit for commit in commits if commit.errors_file]
    digests: list[tuple[str, str]] = []
    items: list[int] = []
    for commit, data in zip(having, in_order(lambda commit: _read_errors(ledger, commit), having), strict=True):
        digests.append((commit.errors_file, hashlib.sha256(data).hexdigest()))
        if len(items) <= _MOST_FAILED:
            items += [starts[commit.shard] + error["row_in_shard"] for error in ledger.errors.parse(commit, data)]
    failed = sum(commit.errors for commit in commits)
    return {
        "count": failed,
        **({"items": sorted(items)} if len(items) <= _MOST_FAILED else {}),
        "sha256": _digest_list(digests),
    }


def _read_errors(ledger: Ledger, commit: Commit) -> bytes:
    try:
        return ledger.store.get(commit.errors_file)
    except FileNotFoundError:
        raise CorruptState(
            f"{ledger.url}/{commit.errors_file} is missing.", hint=f"See what else is: shardmill verify {ledger.url}"
        ) from None


def _describe_hardware(commits: Sequence[Commit]) -> list[dict[str, Any]]:
    """Shards and items by the device that made them, and how it computed."""
    shards: Counter[tuple[str, str, str]] = Counter()
    items: Counter[tuple[str, str, str]] = Counter()
    for commit in commits:
        how = commit.device, commit.kernel, commit.precision
        shards[how] += 1
        items[how] += commit.rows
    return [
        {"device": how[0], "kernel": how[1], "precision": how[2], "shards": shards[how], "items": items[how]}
        for how in sorted(shards)
    ]


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


# A result and its receipt.


def check_receipt(ledger: Ledger, plan: Plan, commits: Mapping[int, Commit]) -> Iterator[Check]:
    """Compare the run with the receipt in its folder, if there is one. Its signature is checked with `receipt`."""
    data = ledger.notes.receipt()
    if data is None:
        return
    place = f"{ledger.url}/receipt.json"
    try:
        said = read_statement(data, place)
        found = compare(said, describe_result(ledger, plan, [commits[shard] for shard in sorted(commits)]))
    except (ShardmillError, FileNotFoundError) as error:
        yield Check("receipt", False, str(error).partition("\n")[0])
        return
    if found:
        remedy = f"if that is meant, make a new one: shardmill receipt {ledger.url}"
        yield Check("receipt", False, f"receipt.json says otherwise: {tell_differences(found)}; {remedy}")
    else:
        yield Check("receipt", True, f"{tell_result(said)}, as receipt.json says")


def read_statement(data: bytes, place: str) -> dict[str, Any]:
    """The statement in an envelope; whether it is signed is not looked at."""
    hint = f"Make it anew: shardmill receipt RUN --out {place}"
    envelope = read_object(data, place, hint)
    try:
        statement = json.loads(base64.b64decode(envelope["payload"], validate=True))
        kind = statement["_type"], statement["predicateType"]
        # What is read of it later.
        described = [statement["predicate"][name] for name in ("plan", "parts", "counts")]
        sound = all(isinstance(each, dict) for each in described)
        sound = sound and all(isinstance(each["name"], str) and "digest" in each for each in statement["subject"])
        tell_result(statement)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise CorruptState(f"{place} is no receipt, or is damaged.", hint=hint) from error
    if kind != (STATEMENT, PREDICATE) or not sound:
        raise CorruptState(f"{place} is a statement of another kind: {kind[1]}.", hint=hint)
    found: dict[str, Any] = statement
    return found


def tell_result(statement: Mapping[str, Any]) -> str:
    said = statement["predicate"]
    return f"{count(int(said['counts']['rows']), 'row')} in {count(int(said['parts']['count']), 'part')}"


def compare(said: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What a run has otherwise than its receipt says, by name: first the parts, then the rest."""
    was, is_ = said["predicate"], now["predicate"]
    if was["plan"].get("id") != is_["plan"]["id"]:
        return [f"it is the receipt of another run: of plan {was['plan'].get('id')}, and this is {is_['plan']['id']}"]
    listed, there = ({each["name"]: each["digest"] for each in statement["subject"]} for statement in (said, now))
    found = [f"{name}: other content" for name in listed if name in there and listed[name] != there[name]]
    found += [f"{name}: not in the run" for name in listed if name not in there]
    found += [f"{name}: not in the receipt" for name in there if name not in listed]
    for name in (name for name in is_ if name not in TOLD):
        left, right = was.get(name), is_[name]
        if not (isinstance(left, dict) and isinstance(right, dict)):
            left, right = {"": left}, {"": right}
        for key in sorted({*left, *right}):
            if left.get(key) != right.get(key):
                found.append(f"{name} {key}".strip() + _tell_change(left.get(key), right.get(key)))
    return found


def tell_differences(found: Sequence[str]) -> str:
    """The first of them, and how many more there are. Names come from the receipt, which anybody may have written."""
    more = f"; and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    return clean("; ".join(found[:_NAMED])) + more


def _tell_change(was: Any, is_: Any) -> str:
    """Two values in words, unless they are too long to help: digests and lists are only said to differ."""
    if any(isinstance(value, list) or len(str(value)) >= _DIGEST_CHARACTERS for value in (was, is_)):
        return " differs"
    return f" is {is_}, and the receipt says {was}"
