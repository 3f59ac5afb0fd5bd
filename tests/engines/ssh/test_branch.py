"""What hosts are handed: branches of a run, the bytes they read, and the file that names them."""

from __future__ import annotations

import asyncio
import csv
import errno
import fcntl
import json
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardmill.core.devices import Device
from shardmill.core.errors import HostError, RunExists, SpecError
from shardmill.engines.ssh.at_home.home import Home, Share
from shardmill.engines.ssh.cluster import Cluster, Host, read_cluster
from shardmill.engines.ssh.engine import check_together
from shardmill.engines.ssh.on_host.seats import Seat
from shardmill.ledger import Assignment, Ledger
from shardmill.run.planner import make_plan
from shardmill.sinks.parquet import ParquetSink
from shardmill.sources import Fields, discover, open_source
from shardmill.sources.spans import extents
from shardmill.worker import Worker
from shardmill.worker.tally import OpenShard
from tests.support.corpora import fake_rows, fake_spec
from tests.support.ledgers import make_commit

Write = Callable[..., Path]


def _ledger(tmp_path: Path, write_jsonl: Write) -> Ledger:
    spec = fake_spec(write_jsonl(fake_rows(400)))
    ledger = Ledger(tmp_path / "run")
    ledger.create(make_plan(spec, [Device("cpu", "cpu")]))
    ledger.put_execution(spec.execution.model_dump(mode="json"))
    return ledger


def test_a_branch_works_on_its_hand_and_waits_for_more(tmp_path: Path, write_jsonl: Write) -> None:
    now = [100.0]
    ledger = Ledger(_ledger(tmp_path, write_jsonl).url, lambda: now[0])
    shards = len(ledger.plan().shards)
    assert shards > 6
    ledger.branch.assign(Assignment((3, 5), until=200.0))
    claims = [ledger.claim("w", shards, lease_s=60, held=held) for held in ((), (3,), (3, 5))]
    assert [c and c.shard for c in claims] == [3, 5, None]
    ledger.branch.assign(Assignment((3, 6), until=200.0))
    taken = ledger.claim("w", shards, lease_s=60, held=(3, 5))
    assert taken is not None
    assert taken.shard == 6
    ledger.branch.assign(Assignment((), until=200.0))
    assert not ledger.is_over(shards)
    now[0] = 200.0
    assert ledger.is_over(shards)
    ledger.branch.assign(Assignment((3,), until=200.0))
    assert not ledger.is_over(shards)


def test_a_shard_that_home_forgets_is_worked_on_again(tmp_path: Path, write_jsonl: Write) -> None:
    """A part that arrives damaged is forgotten and assigned again, perhaps to the only host and its only worker."""
    agent = _ledger(tmp_path, write_jsonl)
    worker, shards = Ledger(agent.url), len(agent.plan().shards)
    agent.branch.assign(Assignment((0,), until=time.time()))
    worker.plan()
    worker.commits.add(make_commit(0))
    assert worker.claim("w", shards, lease_s=60) is None
    assert worker.is_over(shards)
    assert agent.commits.is_done(0)
    agent.commits.delete([0])
    assert not agent.commits.is_done(0)
    assert not worker.is_over(shards)
    claim = worker.claim("w", shards, lease_s=60)
    assert claim is not None
    assert claim.shard == 0


def _lose_a_shard(tmp_path: Path, write_jsonl: Write) -> tuple[Ledger, Worker, OpenShard]:
    """A host's ledger and its worker, whose shard another worker committed meanwhile."""
    agent = _ledger(tmp_path, write_jsonl)
    agent.branch.assign(Assignment((0,), until=time.time() + 1000))
    worker = Worker(Ledger(agent.url), device=Device("cpu", "cpu"))
    claim = worker.choice.claim({})
    assert claim is not None
    shard = worker._shards.open(claim, ParquetSink(worker.ledger, pa.schema([]), pa.schema([])).begin(claim))
    agent.commits.add(make_commit(0, "another"))
    agent.leases.retire(0)
    worker._shards.renew()
    return agent, worker, shard


def test_a_shard_that_was_lost_stays_lost_when_home_forgets_it(tmp_path: Path, write_jsonl: Write) -> None:
    """The rows since the loss are not in the part, so this attempt must not commit it."""
    agent, worker, shard = _lose_a_shard(tmp_path, write_jsonl)
    assert shard.lost
    agent.commits.delete([0])
    assert worker.choice.claim({0: 0}) is None
    worker._shards.renew()
    assert shard.lost
    worker._shards.give_up(shard)


def test_a_worker_that_lost_a_shard_leaves_the_lease_of_its_next_holder(tmp_path: Path, write_jsonl: Write) -> None:
    """Home forgot the commit that made it lose, so the shard is not done, and another worker has begun it."""
    agent, worker, shard = _lose_a_shard(tmp_path, write_jsonl)
    agent.commits.delete([0])
    assert agent.claim("next", 1, lease_s=60) is not None
    worker._shards.give_up(shard)
    assert agent.leases.read()[0].worker == "next"


def test_a_host_with_too_little_takes_over_what_another_has_not_begun(tmp_path: Path, write_jsonl: Write) -> None:
    ledger = _ledger(tmp_path, write_jsonl)
    home = Home(ledger, 60.0)
    slow, quick = home.shares = [Share("slow", seats=1), Share("quick", seats=1)]
    for _ in range(3):
        claim = ledger.claim("slow", len(home.plan.shards), lease_s=60)
        assert claim is not None
        slow.held[claim.shard] = claim
    slow.ready, slow.begun = set(slow.held), {0}
    taken = home.take_back(quick)
    assert taken is not None
    assert taken.shard == 2
    assert sorted(slow.held) == [0, 1]
    assert sorted(slow.ready) == [0, 1]
    assert ledger.leases.read()[2].worker == "quick"
    quick.held[2] = taken
    assert home.take_back(quick) is None
    with pytest.raises(RunExists, match="another process already assigns this run"):
        Home(ledger, 60.0)
    home.close()


def test_a_mount_without_locks(tmp_path: Path, write_jsonl: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run may be on one, as on Lustre without flock; the work folder of a host may not, and that is said."""

    def refuse(*args: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    Home(_ledger(tmp_path, write_jsonl), 60.0).close()
    seat = Seat(tmp_path / "work", 0, Device("cpu", "cpu"))
    with pytest.raises(HostError, match="no file locks") as caught:
        seat.start(str(tmp_path / "run"), "w", {})
    assert "work = " in caught.value.hint


@pytest.mark.parametrize(
    "changes",
    [
        {"part": "parts/../../outside.parquet"},
        {"part": "/tmp/outside.parquet"},
        {"part": "plan.json"},
        {"errors_file": "errors/../../outside.jsonl"},
        {"attempt": "../x", "part": "parts/000000.../x.parquet"},
        {"shard": 1000, "part": "parts/001000.a1.parquet"},
    ],
)
def test_files_that_a_host_names_outside_of_its_parts_are_refused(
    tmp_path: Path, write_jsonl: Write, changes: dict[str, Any]
) -> None:
    home = Home(_ledger(tmp_path, write_jsonl), 60.0)
    record = {**asdict(make_commit(0)), **changes}
    with pytest.raises(
        HostError, match=r"a commit (that it cannot have made|is damaged: .* is not a file of this run)"
    ):
        asyncio.run(home.fetch(_NoLink(), Share("ssh-a"), "/work", record))  # type: ignore[arg-type]
    home.close()


class _NoLink:
    host = Host(address="a", name="a")

    @property
    def sftp(self) -> Any:
        raise AssertionError("nothing may be fetched")


lines = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=lines, target=st.integers(20, 90), kind=st.sampled_from(["jsonl", "csv"]))
def test_a_shard_reads_the_same_from_a_copy_with_only_its_bytes(
    tmp_path: Path, texts: list[str], target: int, kind: str
) -> None:
    original, copy = tmp_path / f"a.{kind}", tmp_path / "copy"
    with open(original, "w", newline="") as file:
        if kind == "csv":
            writer = csv.writer(file)
            writer.writerow(["id", "text"])
            writer.writerows([[i, f"x{t}"] for i, t in enumerate(texts)])
        else:
            file.writelines(
                json.dumps({"id": str(i), "text": t}, ensure_ascii=False) + "\n" for i, t in enumerate(texts)
            )
    fields = Fields("text", ("id",))
    stat = discover([str(original)], fields)
    whole = original.read_bytes()
    for shard in open_source(stat, fields).shards(target):
        sparse = bytearray(len(whole))
        for start, stop in extents(stat, shard, shard.file):
            sparse[start:stop] = whole[start:stop]
        copy.write_bytes(sparse)
        copied = replace(stat, files=(replace(stat.files[0], place=str(copy), tag=""),))
        assert list(open_source(copied, fields).read(shard)) == list(open_source(stat, fields).read(shard))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no host"),
        ("[[host]]\naddress = 'a'", "unknown key 'host'"),
        ("[[hosts]]\naddres = 'a'", "no 'addres'"),
        ("[[hosts]]\nuser = 'a'", "no address"),
        ("[[hosts]]\naddress = 'a'\ngpu = 1", "a host has no 'gpu'"),
        ("[[hosts]]\naddress = 'a'\ngpus = -1", "gpus"),
        ("[[hosts]]\naddress = 'a'\ngpus = 'all'", "gpus"),
        ("[[hosts]]\naddress = 'a'\npython = 'p'\nconda = 'c'", "both python and conda"),
        ("[[hosts]]\naddress = 'a'\n[[hosts]]\naddress = 'a'", "two hosts are called 'a'"),
        ("hosts = 3", "hosts must be tables"),
        ("[[hosts]", "cluster.toml"),
    ],
)
def test_a_hosts_file_that_does_not_hold_together(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_cluster(str(path))
    assert said in caught.value.message


def test_hosts_without_a_common_folder_do_not_work_on_one_item_together() -> None:
    cluster = Cluster(hosts=(Host(name="gpu1", workers=2), Host(name="gpu2")))
    check_together(cluster, 2)
    with pytest.raises(SpecError, match=r"no host has more than 2: gpu1, gpu2 do not reach"):
        check_together(cluster, 3)


def test_what_hosts_have_in_common_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(
        "shared = true\nknown_hosts = 'k'\n[defaults]\nuser = 'ann'\nport = 22\n"
        "[[hosts]]\naddress = '10.0.0.7'\ngpus = [0, 3]\n[[hosts]]\nname = 'gpu-b'\nport = 2222\n"
    )
    cluster = read_cluster(str(path))
    assert cluster.shared
    first, second = cluster.hosts
    assert (first.name, first.user, first.port, first.known_hosts, first.gpus) == (
        "10.0.0.7",
        "ann",
        22,
        str(tmp_path / "k"),
        (0, 3),
    )
    assert (second.address, second.name, second.user, second.port, second.gpus) == (
        "gpu-b",
        "gpu-b",
        "ann",
        2222,
        "auto",
    )
