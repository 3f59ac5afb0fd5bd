"""Receipts: what they say, that a changed one is refused, and that a run which is not as its receipt says is named."""

from __future__ import annotations

import base64
import getpass
import hashlib
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import shardmill as library
from shardmill.core.dialect import speaking
from shardmill.core.errors import CorruptState, ShardmillError, UsageError
from shardmill.ledger import Commit
from shardmill.ledger.record import encode
from shardmill.results.receipt import TOLD, compare, describe_result, encode_statement
from shardmill.run import Run, start
from shardmill.testing import InProcessEngine
from shardmill.verbs.receipt.envelope import check_signature, open_envelope
from shardmill.verbs.receipt.keys import PASSPHRASE, open_public_key
from shardmill.verbs.receipt.receipt import Receipt
from tests.support.cli import Cli, assert_told
from tests.support.corpora import fake_rows, fake_spec
from tests.support.libraries import needed

pem = needed("cryptography.hazmat.primitives.serialization")
ec, ed25519, x25519 = (
    needed(f"cryptography.hazmat.primitives.asymmetric.{name}") for name in ("ec", "ed25519", "x25519")
)
FAILED = 17
EARLIER = Path(__file__).parents[3] / "data" / "earlier" / "0.2.0"
Key = Any


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source and a run of it."""
    made = tmp_path_factory.mktemp("site")
    make_run(made, "run")
    return made


@pytest.fixture
def run(site: Path, tmp_path: Path) -> Run:
    """A copy of the run."""
    return Run(shutil.copytree(site / "run", tmp_path / "run"))


def make_run(folder: Path, name: str, **params: Any) -> Run:
    rows: list[dict[str, Any]] = [*fake_rows(60)]
    rows[FAILED]["text"] = None
    source = folder / "items.jsonl"
    if not source.exists():
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return start(fake_spec(source, params=params, shard_bytes=500), folder / name, engine=InProcessEngine())


def write_key(path: Path, key: Key, passphrase: str = "") -> Path:
    how = pem.BestAvailableEncryption(passphrase.encode()) if passphrase else pem.NoEncryption()
    path.write_bytes(key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, how))
    public = key.public_key().public_bytes(pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return write_key(tmp_path / "key.pem", ed25519.Ed25519PrivateKey.generate())


@pytest.fixture
def public(key: Path) -> Path:
    return key.with_suffix(".pub")


def folder(run: Run) -> Path:
    return Path(run.ledger.url)


def failing(receipt: Receipt) -> dict[str, str]:
    return {check.name: check.seen for check in receipt.checks if not check.ok}


def statement_in(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.b64decode(json.loads(path.read_text())["payload"]))
    return found


def rewrite(path: Path, statement: dict[str, Any]) -> None:
    """Another statement in the same envelope."""
    envelope = json.loads(path.read_text())
    envelope["payload"] = base64.b64encode(encode_statement(statement)).decode()
    path.write_text(json.dumps(envelope, separators=(",", ":"), sort_keys=True) + "\n")


# What it says.


def test_a_receipt_is_written_signed_and_checked(run: Run, key: Path, public: Path, shardmill: Cli) -> None:
    run.verify()
    made = shardmill("receipt", run.ledger.url, "--key", key)
    assert (made.status, made.out) == (0, "")
    assert f"60 rows in {len(run.plan.shards)} parts" in made.err
    assert "signed by key" in made.err
    file = folder(run) / "receipt.json"
    alone = shardmill("receipt", "--check", file, "--public-key", public)
    assert (alone.status, "The receipt holds" in alone.out) == (0, True)
    both = shardmill("receipt", run.ledger.url, "--check", file, "--public-key", public)
    assert (both.status, both.out.count("  ok   ")) == (0, 3)
    assert json.loads(shardmill("receipt", "--check", file, "--public-key", public, "--json").out)["holds"] is True


def test_another_program_can_check_the_signature(run: Run, key: Path, public: Path) -> None:
    """The bytes that are signed are those of DSSE's specification."""
    place = library.receipt(run.ledger.url, key=key).place
    envelope = json.loads(Path(place).read_text())
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
    signed = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    verifier = pem.load_pem_public_key(public.read_bytes())
    assert isinstance(verifier, ed25519.Ed25519PublicKey)
    verifier.verify(base64.b64decode(envelope["signatures"][0]["sig"]), signed)


def test_it_names_every_part_and_what_the_run_was_made_of(run: Run) -> None:
    run.verify()
    said = library.receipt(run.ledger.url).statement
    parts = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (folder(run) / "parts").iterdir()}
    assert {each["name"].removeprefix("parts/"): each["digest"]["sha256"] for each in said["subject"]} == parts
    about = said["predicate"]
    assert about["plan"]["id"] == run.plan.id
    assert about["fingerprint"] == run.plan.fingerprint
    assert about["source"]["files"] == 1
    shards = len(run.plan.shards)
    assert about["counts"] | {"shards": shards, "items": 60, "rows": 60, "lines": 60} == about["counts"]
    assert (about["failed"]["count"], about["failed"]["items"]) == (1, [FAILED])
    assert about["hardware"] == [{"device": "cpu", "kernel": "", "precision": "", "shards": shards, "items": 60}]
    assert about["verification"]["verified"] is True
    assert {"commits", "digests", "source", "sample"} <= {check["name"] for check in about["verification"]["checks"]}
    assert about["cost"]["rows"] == 60
    listed = subprocess.run(
        "sha256sum parts/* | sha256sum", cwd=folder(run), shell=True, capture_output=True, text=True
    )
    assert listed.stdout.split()[0] == about["parts"]["sha256"]


def test_it_says_that_nobody_signed_it_and_that_the_run_was_not_verified(run: Run, shardmill: Cli) -> None:
    said = shardmill("receipt", run.ledger.url)
    assert "NOT signed" in said.err
    assert "was not verified" in said.err
    file = folder(run) / "receipt.json"
    assert statement_in(file)["predicate"]["verification"] is None
    assert "anybody may have written it" in shardmill("receipt", run.ledger.url, "--check", file).out


def test_it_says_that_the_verification_failed(run: Run, shardmill: Cli) -> None:
    run.verify(rows=61)
    assert "failed its last verification" in shardmill("receipt", run.ledger.url).err
    found = statement_in(folder(run) / "receipt.json")["predicate"]["verification"]
    assert found["verified"] is False
    assert [check["name"] for check in found["checks"] if not check["ok"]] == ["expected"]


def test_the_same_run_gives_the_same_bytes(run: Run, tmp_path: Path) -> None:
    def write() -> bytes:
        library.receipt(run.ledger.url)
        return (folder(run) / "receipt.json").read_bytes()

    run.verify(sample=0)
    first = write()
    assert write() == first
    # The check of the receipt is in the report, and not in the next receipt.
    assert "receipt" in {check.name for check in run.verify(sample=0).checks}
    assert write() == first
    # A resume marks the plan anew; a copy is elsewhere.
    run.ledger.confirm()
    assert write() == first
    shutil.copytree(folder(run), tmp_path / "elsewhere" / "copy")
    library.receipt(tmp_path / "elsewhere" / "copy", out=tmp_path / "copy.json")
    assert (tmp_path / "copy.json").read_bytes() == first


def test_whatever_a_report_has_is_taken_over_apart_from_lists_of_rows(run: Run) -> None:
    run.verify()
    report = run.ledger.notes.report() or {}
    report["checks"].append({"name": "power", "ok": True, "seen": "a fault in 5 % of the rows", "missed": 0.04})
    run.ledger.notes.put_report({**report, "sample": {"rows": 64, "of": 8243}, "bad": ["k1", "k2"]})
    found = library.receipt(run.ledger.url).statement["predicate"]["verification"]
    assert found["checks"][-1]["missed"] == 0.04
    assert found["sample"] == {"rows": 64, "of": 8243}
    assert "bad" not in found


def test_no_path_host_user_or_secret_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: Path) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "machine-of-ann")
    monkeypatch.setattr(getpass, "getuser", lambda: "ann-example")
    place = tmp_path / "private place"
    place.mkdir()
    run = make_run(place, "run of ann")
    run.verify()
    report = run.ledger.notes.report() or {}
    seen = (
        f"delivered to lake://ann:s3cret@db.example/shop from {place}/items.jsonl on machine-of-ann, ann@host.example"
    )
    broken = 'FATAL: role "ann-example" is unknown to db.example'
    report["checks"] += [{"name": "into", "ok": True, "seen": seen}, {"name": "gone", "ok": False, "seen": broken}]
    run.ledger.notes.put_report(report)
    plan = replace(run.plan, fingerprint={"model": f"{place}/qwen3", "weights": "fake-1"})
    with monkeypatch.context() as patched:
        patched.setattr("shardmill.ledger.Ledger.plan", lambda ledger: plan)
        made = library.receipt(run.ledger.url, key=key, out=tmp_path / "receipt.json")
    text = encode_statement(made.statement).decode() + (tmp_path / "receipt.json").read_text()
    assert made.statement["predicate"]["fingerprint"]["model"] == "qwen3"
    assert '"name":"gone","ok":false,"seen":""' in text
    words = ["machine-of-ann", "ann-example", "s3cret", "db.example", "host.example", "private place", "run of ann"]
    words += ["items.jsonl", str(tmp_path), tmp_path.name, "key.pem", str(Path.home()) + "/", run.ledger.url]
    words += [beat["id"] for beat in run.ledger.workers.read()]
    assert [word for word in words if word in text] == []


# One byte of a receipt.


def test_a_receipt_with_any_byte_changed_is_refused(run: Run, key: Path, public: Path) -> None:
    place = library.receipt(run.ledger.url, key=key).place
    good, signer = Path(place).read_bytes(), open_public_key(str(public))
    assert check_signature(open_envelope(good, place), signer).ok
    for at in range(len(good)):
        changed = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        try:
            held = check_signature(open_envelope(changed, place), signer).ok
        except CorruptState:
            held = False
        assert not held, at


@pytest.mark.parametrize("part", ["payload", "signatures", "payloadType"])
def test_a_changed_receipt_is_told(part: str, run: Run, key: Path, public: Path, shardmill: Cli) -> None:
    file = Path(library.receipt(run.ledger.url, key=key).place)
    envelope = json.loads(file.read_text())
    at = envelope["signatures"][0] if part == "signatures" else envelope
    name = "sig" if part == "signatures" else part
    at[name] = ("B" if at[name][0] == "A" else "A") + at[name][1:]
    file.write_text(json.dumps(envelope, separators=(",", ":"), sort_keys=True) + "\n")
    said = shardmill("receipt", "--check", file, "--public-key", public)
    if part == "payloadType":
        assert_told(said, 2, "was changed after it was written", "Ask for the file as it was written")
    else:
        assert (said.status, "did not sign this; ask for the receipt as it was written" in said.out) == (1, True)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in pairs:
            yield from leaves(each, (*path, name))
    else:
        yield path


def change(statement: dict[str, Any], path: tuple[Any, ...]) -> dict[str, Any]:
    changed: Any = json.loads(json.dumps(statement))
    at = changed
    for name in path[:-1]:
        at = at[name]
    was = at[path[-1]]
    at[path[-1]] = f"{was}0" if isinstance(was, str) else not was if isinstance(was, bool) else (was or 0) + 1
    found: dict[str, Any] = changed
    return found


def test_every_field_of_a_statement_counts(run: Run, key: Path, public: Path, tmp_path: Path) -> None:
    """Signed, every change is refused; unsigned, the run tells it, and only what may change is no fault."""
    run.verify()
    library.receipt(run.ledger.url, key=key)
    signed, unsigned = folder(run) / "receipt.json", tmp_path / "unsigned.json"
    library.receipt(run.ledger.url, out=unsigned)
    said = statement_in(unsigned)
    paths = [*leaves(said)]
    assert len(paths) > 80
    for path in paths:
        rewrite(signed, change(said, path))
        rewrite(unsigned, change(said, path))
        if path[0] in ("_type", "predicateType"):
            with pytest.raises(CorruptState, match="another kind"):
                library.receipt(run.ledger.url, check=unsigned)
            continue
        assert failing(library.receipt(check=signed, public_key=public)).keys() == {"signature"}, path
        found = library.receipt(run.ledger.url, check=unsigned)
        if path[1] in TOLD:
            assert found.holds, path
            assert len(found.checks) == 4, path
        else:
            assert failing(found).keys() == {"result"}, path


# The run is not as the receipt says.


def test_a_part_with_one_changed_byte_is_named(run: Run, key: Path, public: Path, shardmill: Cli) -> None:
    library.receipt(run.ledger.url, key=key)
    part = sorted((folder(run) / "parts").iterdir())[3]
    data = part.read_bytes()
    part.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    file = folder(run) / "receipt.json"
    said = shardmill("receipt", run.ledger.url, "--check", file, "--public-key", public)
    assert said.status == 1
    assert re.search(rf"FAIL bytes +parts/{part.name} is missing or was changed; restore it", said.out)
    assert "does NOT hold" in said.out
    part.unlink()
    assert "bytes" in failing(library.receipt(run.ledger.url, check=file))


def test_a_part_that_was_forged_with_its_commit_is_named_also_by_verify(run: Run, key: Path) -> None:
    library.receipt(run.ledger.url, key=key)
    commits = run.ledger.commits.read()
    donor, victim = commits[3], commits[4]
    data = (folder(run) / donor.part).read_bytes()
    (folder(run) / victim.part).write_bytes(data)
    forge(run, replace(victim, digest=donor.digest, part_bytes=len(data), rows=donor.rows))
    forged = Run(run.ledger.url)
    [check] = [check for check in forged.verify().checks if check.name == "receipt"]
    assert not check.ok
    assert f"{victim.part}: other content" in check.seen
    assert "shardmill receipt" in check.seen
    found = failing(library.receipt(run.ledger.url, check=folder(run) / "receipt.json"))
    assert f"{victim.part}: other content" in found["result"]


def forge(run: Run, commit: Commit) -> None:
    (folder(run) / run.ledger.commits.key(commit.shard)).write_bytes(encode(commit))


def test_verify_compares_with_a_receipt_and_says_what_differs(run: Run) -> None:
    assert "receipt" not in {check.name for check in run.verify().checks}
    library.receipt(run.ledger.url)
    assert run.verify().verified
    file = folder(run) / "receipt.json"
    said = statement_in(file)
    said["predicate"]["counts"]["items"] = 61
    rewrite(file, said)
    [check] = [check for check in run.verify().checks if not check.ok]
    assert "counts items is 60, and the receipt says 61" in check.seen
    file.write_text("{}")
    [check] = [check for check in run.verify().checks if not check.ok]
    assert "is no receipt" in check.seen


def test_a_failed_verification_since_is_a_fault_and_a_good_one_is_told(run: Run) -> None:
    run.verify(sample=0)
    library.receipt(run.ledger.url)
    file = folder(run) / "receipt.json"
    run.verify(sample=8)
    later = library.receipt(run.ledger.url, check=file)
    assert later.holds
    assert "again since" in later.checks[-1].seen
    run.verify(rows=61)
    assert "expected" in failing(library.receipt(run.ledger.url, check=file))["verified"]


def test_the_receipt_of_another_run_is_refused(run: Run, site: Path, shardmill: Cli) -> None:
    other = make_run(site, "other", version="2")
    library.receipt(other.ledger.url)
    said = shardmill("receipt", run.ledger.url, "--check", folder(other) / "receipt.json")
    assert said.status == 1
    assert (
        f"it is the receipt of another run: of plan {other.plan.id}, and this is {run.plan.id}; name the run"
        in said.out
    )
    # The same work done again is another result.
    again = make_run(site, "again")
    found = failing(library.receipt(again.ledger.url, check=library.receipt(run.ledger.url).place))
    assert "not in the run" in found["result"]


def test_starting_over_takes_the_receipt_away(run: Run) -> None:
    library.receipt(run.ledger.url)
    run.ledger.start_over(run.plan)
    assert not (folder(run) / "receipt.json").exists()


def test_a_receipt_of_many_parts_stays_small_and_names_a_few_shards(run: Run) -> None:
    one = replace(run.ledger.commits.read()[0], errors=0, errors_file="")
    digests = [hashlib.sha256(b"%d" % i).hexdigest() for i in range(5_000)]
    commits = [replace(one, shard=i, part=f"parts/{i:06d}.ab.parquet", digest=d) for i, d in enumerate(digests)]
    said = describe_result(run.ledger, run.plan, commits)
    assert len(said["subject"]) <= 1024
    assert len(encode_statement(said)) < 200_000
    assert compare(said, describe_result(run.ledger, run.plan, commits)) == []
    commits[2_345] = replace(commits[2_345], digest=digests[0])
    first, *others = compare(said, describe_result(run.ledger, run.plan, commits))
    named = re.fullmatch(r"parts of shards (\d+) to (\d+): other content", first)
    assert named
    assert int(named[1]) <= 2_345 <= int(named[2]) < int(named[1]) + 5
    assert others == ["parts sha256 differs"]


@dataclass(frozen=True, slots=True)
class CommitWithDigests(Commit):
    items_digest: str = ""


def test_digests_of_items_are_in_it_if_all_commits_have_them(run: Run) -> None:
    there = [asdict(commit) for commit in run.ledger.commits.read_complete(run.plan)]
    commits = [CommitWithDigests(**{**each, "items_digest": "ab"}) for each in there]
    said = describe_result(run.ledger, run.plan, commits)
    assert len(said["predicate"]["source"]["items"]) == 64
    changed = [replace(commits[0], items_digest="cd"), *commits[1:]]
    assert compare(said, describe_result(run.ledger, run.plan, changed)) == ["source items differs"]
    without = [replace(commits[0], items_digest=""), *commits[1:]]
    assert "items" not in describe_result(run.ledger, run.plan, without)["predicate"]["source"]


def test_rows_of_a_table_have_sums_in_place_of_files(tmp_path: Path) -> None:
    loaded = Run(shutil.copytree(EARLIER / "table" / "run", tmp_path / "run"))
    made = library.receipt(loaded.ledger.url)
    sums = [commit.digest for commit in loaded.ledger.commits.read_complete(loaded.plan)]
    assert [each["digest"] for each in made.statement["subject"]] == [{"rows": each} for each in sums]
    assert made.statement["subject"][1]["name"] == "shards/000001"
    checked = library.receipt(loaded.ledger.url, check=made.place)
    assert checked.holds
    assert "in a table" in checked.checks[-1].seen


def test_a_trained_model_is_a_subject_and_is_read(tmp_path: Path) -> None:
    trained = Run(shutil.copytree(EARLIER / "runs" / "train", tmp_path / "run"))
    place = library.receipt(trained.ledger.url).place
    config = folder(trained) / "model" / "config.json"
    assert config.relative_to(folder(trained)).as_posix() in {
        each["name"] for each in statement_in(Path(place))["subject"]
    }
    assert library.receipt(trained.ledger.url, check=place).holds
    config.write_bytes(config.read_bytes() + b" ")
    assert "model/config.json" in failing(library.receipt(trained.ledger.url, check=place))["bytes"]


# Keys.


@pytest.mark.parametrize(
    "make",
    [
        ed25519.Ed25519PrivateKey.generate,
        *(lambda c=c: ec.generate_private_key(c) for c in (ec.SECP256R1(), ec.SECP384R1())),
    ],
)
@pytest.mark.parametrize("phrase", ["", "correct horse"])
def test_a_key_signs(
    make: Callable[[], Key], phrase: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSPHRASE, phrase)
    own = write_key(tmp_path / "own.pem", make(), phrase)
    place = library.receipt(run.ledger.url, key=own).place
    assert library.receipt(check=place, public_key=own.with_suffix(".pub")).holds


def test_a_key_that_cannot_sign_is_refused(
    run: Run, key: Path, tmp_path: Path, shardmill: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(key: Path, *words: str) -> None:
        assert_told(shardmill("receipt", run.ledger.url, "--key", key), 2, *words)
        assert not (folder(run) / "receipt.json").exists()

    make = "openssl genpkey"
    refused(tmp_path / "none.pem", "none.pem: no such file", make)
    refused(key.with_suffix(".pub"), "is a public key, and cannot sign", make)
    refused(folder(run) / "plan.json", "no private key in PEM", make)
    refused(folder(run), "run", make)
    refused(write_key(tmp_path / "exchange.pem", x25519.X25519PrivateKey.generate()), "cannot sign", make)
    refused(write_key(tmp_path / "curve.pem", ec.generate_private_key(ec.SECP256K1())), "cannot sign", make)
    shell = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "shell.pem").write_bytes(
        shell.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.OpenSSH, pem.NoEncryption())
    )
    refused(tmp_path / "shell.pem", "OpenSSH", make)
    (tmp_path / "torn.pem").write_bytes(key.read_bytes()[:60])
    refused(tmp_path / "torn.pem", "cannot sign", make)
    locked = write_key(tmp_path / "locked.pem", ed25519.Ed25519PrivateKey.generate(), "right")
    monkeypatch.delenv(PASSPHRASE, raising=False)
    refused(locked, "has a passphrase", PASSPHRASE)
    monkeypatch.setenv(PASSPHRASE, "wrong")
    refused(locked, "does not open", PASSPHRASE)


def test_the_public_key_of_somebody_else_is_told(
    run: Run, key: Path, public: Path, tmp_path: Path, shardmill: Cli
) -> None:
    place = library.receipt(run.ledger.url, key=key).place
    other = write_key(tmp_path / "other.pem", ed25519.Ed25519PrivateKey.generate()).with_suffix(".pub")
    said = shardmill("receipt", run.ledger.url, "--check", place, "--public-key", other)
    assert said.status == 1
    [line] = [line for line in said.out.splitlines() if "FAIL" in line]
    assert "ask the signer for the right public key" in line
    assert_told(shardmill("receipt", "--check", place, "--public-key", key), 2, "private key", "openssl pkey")
    assert_told(shardmill("receipt", "--check", place, "--public-key", place), 2, "no public key", "openssl pkey")
    bare = tmp_path / "bare.json"
    library.receipt(run.ledger.url, out=bare)
    assert "ask for a receipt that is signed" in shardmill("receipt", "--check", bare, "--public-key", public).out


def test_a_signed_receipt_is_not_replaced_by_one_without_a_signature(run: Run, key: Path, shardmill: Cli) -> None:
    library.receipt(run.ledger.url)
    library.receipt(run.ledger.url, key=key)
    signed = (folder(run) / "receipt.json").read_bytes()
    assert_told(shardmill("receipt", run.ledger.url), 2, "is signed", "--key FILE")
    assert (folder(run) / "receipt.json").read_bytes() == signed


# What cannot be done.


def test_an_incomplete_run_has_no_receipt(run: Run, shardmill: Cli) -> None:
    place = library.receipt(run.ledger.url).place
    (folder(run) / run.ledger.commits.key(2)).unlink()
    for words in ([], ["--check", place]):
        assert_told(
            shardmill("receipt", run.ledger.url, *words),
            1,
            f"1 of {len(run.plan.shards)} shards are not done",
            "shardmill resume",
        )
    [check] = [check for check in Run(run.ledger.url).verify().checks if check.name == "receipt"]
    assert "not in the run" in check.seen


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], ["No RUN was given", "shardmill receipt"]),
        (["RUN", "--public-key", "key.pub"], ["--public-key needs --check FILE"]),
        (["RUN", "--check", "RECEIPT", "--key", "key.pem"], ["--key is of a receipt that is written"]),
        (["--check", "RECEIPT", "--out", "x.json"], ["--out is of a receipt that is written"]),
        (["--check", "RECEIPT"], ["Nothing to check", "--public-key FILE"]),
        (["RUN", "--check", "none.json"], ["none.json: no such file", "--check receipt.json"]),
        (["RUN", "--check", "RUN"], ["Name the receipt"]),
        (["RUN", "--check", "RUN/plan.json"], ["is no receipt, or is damaged", "shardmill receipt RUN"]),
        (["nowhere"], ["no run found here", "--out"]),
    ],
)
def test_what_is_wrong_is_said_in_a_line_with_the_next_step(
    words: list[str], told: list[str], run: Run, shardmill: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    library.receipt(run.ledger.url, out="receipt.json")
    given = [word.replace("RUN", str(run.ledger.url)).replace("RECEIPT", "receipt.json") for word in words]
    assert_told(shardmill("receipt", *given), 2, *told)


def test_a_folder_that_loses_files_meanwhile_is_told(run: Run, shardmill: Cli) -> None:
    commit = next(commit for commit in run.ledger.commits.read().values() if commit.errors_file)
    (folder(run) / commit.errors_file).unlink()
    assert_told(shardmill("receipt", run.ledger.url), 2, commit.errors_file, "shardmill verify")


def test_functions_say_the_same_in_the_words_of_python(run: Run, tmp_path: Path) -> None:
    place = library.receipt(run.ledger.url, out=tmp_path / "receipt.json").place
    with pytest.raises(UsageError) as told:
        library.receipt(check=place)
    with speaking("python"):
        assert "public_key=" in str(told.value)


def test_without_its_extra_it_says_how_to_get_it(run: Run, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "securesystemslib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "securesystemslib", None)
    for how in ({}, {"key": key}):
        with pytest.raises(ShardmillError, match=re.escape("shardmill[receipt]")):
            library.receipt(run.ledger.url, **how)
    # `verify` needs it not.
    assert run.verify().verified
