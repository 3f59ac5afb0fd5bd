"""The book of the alerts: nothing leaves it before its target has it."""

from __future__ import annotations

import pytest

from shardmill.core.errors import CorruptState
from shardmill.watch.alerts.book import AlertBook, AlertMessage
from shardmill.watch.alerts.rules import AlertCondition, LostWorkers, RunMemory
from shardmill.watch.alerts.targets import summarize

STALLED = AlertCondition("stalled", "stalled", "no row was finished for 10 min")
TARGETS = ("mail", "team")


def note(book: AlertBook, *conditions: AlertCondition, now: float, run: str = "a") -> bool:
    return book.note(run, conditions, targets=TARGETS, link="http://m/a", now=now)


def told(book: AlertBook) -> list[tuple[str, str, str]]:
    return [(message.alert.id, message.event, message.target) for message in book.outbox]


def test_an_alert_is_told_once_to_each_target_and_again_when_it_clears() -> None:
    book = AlertBook()
    assert note(book, STALLED, now=1.0)
    assert not note(book, STALLED, now=2.0)
    ((first, *_), *_) = raised = told(book)
    assert raised == [(first, "raised", "mail"), (first, "raised", "team")]
    assert note(book, now=3.0)
    assert told(book)[2:] == [(first, "cleared", "mail"), (first, "cleared", "team")]
    assert note(book, STALLED, now=4.0)
    assert book.outbox[-1].alert.id != first


def test_alerts_of_two_runs_are_apart() -> None:
    book = AlertBook()
    note(book, STALLED, now=1.0)
    note(book, STALLED, now=1.0, run="b")
    book.forget("a", targets=TARGETS, now=2.0)
    assert [alert.run for alert in book.open.values()] == ["b"]
    assert [message.event for message in book.outbox if message.alert.run == "a"] == ["raised"] * 2 + ["cleared"] * 2


def test_a_message_that_fails_lets_others_go_first_but_no_end_precedes_its_start() -> None:
    book = AlertBook()
    note(book, STALLED, now=1.0)
    first = book.next_for("team")
    assert first is not None
    first.faults += 1
    note(book, now=2.0)
    assert book.next_for("team") is first
    note(book, STALLED, now=3.0, run="b")
    other = book.next_for("team")
    assert other is not None
    assert other.alert.run == "b"
    book.outbox.remove(other)
    book.outbox.remove(first)
    last = book.next_for("team")
    assert last is not None
    assert (last.event, last.alert.id) == ("cleared", first.alert.id)
    assert book.next_for("nobody") is None


def test_a_book_is_read_as_it_was_written() -> None:
    memory = RunMemory("g", 5, 1.5, lost={"w": LostWorkers(["w"], 2)}, turned={"deadline": 3.0})
    book = AlertBook(runs={"a": memory})
    note(book, STALLED, now=1.0)
    assert AlertBook.decode(book.encode(), "alerts.state.json") == book
    assert book.drop_strangers(["mail"]) == 1
    assert [message.target for message in book.outbox] == ["mail"]


@pytest.mark.parametrize("data", [b"", b"[]", b'{"outbox": [{"alert": 3}]}', b'{"runs": {"a": {}}}'])
def test_a_damaged_book_says_what_to_do(data: bytes) -> None:
    with pytest.raises(CorruptState, match=r"alerts.state.json is damaged.*\n.*told once more"):
        AlertBook.decode(data, "alerts.state.json")


def test_texts_from_data_are_cut_and_cleaned() -> None:
    book = AlertBook()
    note(book, AlertCondition("finished", "finished", "failed: \u202ex\n\x1b[31m" + "y" * 10_000), now=1.0)
    message: AlertMessage = book.outbox[0]
    line = summarize(message)
    assert line.isprintable()
    assert len(line) < 400
