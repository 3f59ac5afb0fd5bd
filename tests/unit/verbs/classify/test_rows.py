"""Probabilities as columns, and how far a stored row may be from one that is computed again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardmill.models.labels import to_probabilities
from shardmill.verbs.classify.rows import LabelRows, NumberRows
from shardmill.verbs.classify.spans import SpanRows, SpelledText

NAMES = ("a", "b", "c")


def probabilities(*rows: tuple[float, ...]) -> Any:
    return np.array(rows, np.float32)


def of_one(**options: Any) -> LabelRows:
    return LabelRows(NAMES, **{"threshold": None, "listed": False, "most": None, **options})


def far(rows: Any, before: Any, now: Any) -> dict[str, float]:
    """The distance in each column of a row of `before`, stored, from one of `now`, which is computed last."""
    stored, again = rows.make(before), rows.make(now)
    return {name: rows.distance(name, stored.column(name)[0], again.column(name)[0]) for name in rows.schema.names}


def test_a_row_has_the_likeliest_label() -> None:
    made = of_one().make(probabilities((0.1, 0.7, 0.2), (0.5, 0.3, 0.2)), [1])
    assert made.to_pydict() == {"label": ["b", None], "score": [pytest.approx(0.7), None]}


def test_lists_are_sorted_and_cut() -> None:
    row = probabilities((0.1, 0.7, 0.2))
    assert [e["label"] for e in of_one(listed=True).make(row).to_pydict()["labels"][0]] == ["b", "c", "a"]
    assert [e["label"] for e in of_one(listed=True, most=2).make(row).to_pydict()["labels"][0]] == ["b", "c"]
    assert of_one(listed=True).make(row, [0]).to_pydict()["labels"] == [None]


def test_labels_that_do_not_exclude_each_other_reach_the_threshold() -> None:
    rows = probabilities((0.9, 0.6, 0.2), (0.1, 0.2, 0.3))
    made = of_one(threshold=0.5).make(rows).to_pydict()
    assert made["label"] == ["a", None]
    assert made["score"][1] is None
    assert [[each["label"] for each in row] for row in made["labels"]] == [["a", "b"], []]
    assert [len(row) for row in of_one(threshold=0.5, listed=True, whole=True).make(rows).to_pydict()["labels"]] == [
        3,
        3,
    ]


def test_equal_rows_are_no_distance_apart() -> None:
    row = probabilities((0.9, 0.6, 0.2))
    for rows in (of_one(), of_one(listed=True), of_one(threshold=0.5), NumberRows()):
        assert set(far(rows, row, row).values()) == {0.0}


def test_a_label_may_flip_between_near_probabilities_only() -> None:
    near = far(of_one(), probabilities((0.4001, 0.4, 0.2)), probabilities((0.4, 0.4001, 0.2)))
    assert near["label"] == pytest.approx(0.0001, abs=1e-5)
    # The scores are the same, and the label is another: as if two rows had been swapped.
    swapped = far(of_one(), probabilities((0.9, 0.05, 0.05)), probabilities((0.05, 0.9, 0.05)))
    assert swapped["score"] == 0
    assert swapped["label"] == pytest.approx(0.85)


def test_a_label_that_the_model_does_not_have_is_far() -> None:
    rows = of_one()
    again = rows.make(probabilities((0.9, 0.05, 0.05)))
    other = LabelRows(("x", "y", "z"), threshold=None, listed=False, most=None)
    stored = other.make(probabilities((0.9, 0.05, 0.05)))
    assert rows.distance("label", stored.column("label")[0], again.column("label")[0]) == 1.0


def test_a_label_may_cross_the_threshold_if_it_is_near() -> None:
    near = far(of_one(threshold=0.5), probabilities((0.5001, 0.1, 0.1)), probabilities((0.4999, 0.1, 0.1)))
    assert max(near.values()) == pytest.approx(0.0002, abs=1e-5)
    wide = far(of_one(threshold=0.5), probabilities((0.8, 0.1, 0.1)), probabilities((0.3, 0.1, 0.1)))
    assert min(wide.values()) > 0.19


def test_a_list_may_lose_its_last_label_if_the_next_is_near() -> None:
    rows = of_one(listed=True, most=2)
    near = far(rows, probabilities((0.5, 0.2501, 0.2499)), probabilities((0.5, 0.2499, 0.2501)))
    assert near["labels"] < 0.001
    assert far(rows, probabilities((0.5, 0.4, 0.1)), probabilities((0.5, 0.1, 0.4)))["labels"] == pytest.approx(0.3)


def test_a_number_is_compared_by_its_size() -> None:
    assert far(NumberRows(), probabilities((200.0,)), probabilities((202.0,)))["score"] == pytest.approx(2 / 202)
    assert far(NumberRows(), probabilities((0.0,)), probabilities((0.5,)))["score"] == 0.5


TAGS = ("O", "B-PER", "I-PER", "LOC")
TEXT = "Ann Bo in Rome"
SPELLED = SpelledText(
    TEXT, np.arange(6, dtype=np.int32), 1, np.array([0, 4, 7, 10], np.int32), np.array([3, 6, 9, 14], np.int32)
)


def tags(*best: int, sure: float = 0.9) -> Any:
    rows = np.full((len(best), len(TAGS)), (1 - sure) / 3, np.float32)
    rows[np.arange(len(best)), list(best)] = sure
    return rows


def spans(*best: int) -> list[tuple[str, str]]:
    made = SpanRows(TAGS).make([SPELLED], [tags(*best)], []).to_pydict()["spans"][0]
    return [(each["text"], each["label"]) for each in made]


def test_tokens_with_one_label_are_a_span() -> None:
    assert spans(1, 2, 0, 3) == [("Ann Bo", "PER"), ("Rome", "LOC")]
    assert spans(1, 1, 0, 3) == [("Ann", "PER"), ("Bo", "PER"), ("Rome", "LOC")]
    assert spans(2, 2, 3, 3) == [("Ann Bo", "PER"), ("in Rome", "LOC")]
    assert spans(0, 0, 0, 0) == []


def spans_apart(before: Any, now: Any) -> float:
    rows = SpanRows(TAGS)
    stored, again = (rows.make([SPELLED], [each], []).column("spans")[0] for each in (before, now))
    return rows.distance("spans", stored, again)


def test_the_same_spans_differ_by_their_scores() -> None:
    assert spans_apart(tags(1, 2, 0, 3), tags(1, 2, 0, 3)) == 0
    assert spans_apart(tags(1, 2, 0, 3), tags(1, 2, 0, 3, sure=0.8)) == pytest.approx(0.1)


@pytest.mark.parametrize("best", [(1, 1, 0, 3), (1, 2, 2, 3), (0, 1, 0, 3), (1, 2, 0, 0), (1, 3, 0, 3), (0, 0, 0, 0)])
def test_a_token_may_have_another_label_if_both_are_as_likely(best: tuple[int, ...]) -> None:
    sure, other = tags(1, 2, 0, 3), tags(*best)
    assert spans_apart(other, sure) > 0.5
    # Where they differ, both labels are as likely.
    near = np.where((sure.argmax(1) == other.argmax(1))[:, None], sure, (sure + other) / 2)
    near += 1e-5 * sure
    assert near.argmax(1).tolist() == [1, 2, 0, 3]
    assert spans_apart(other, near) < 0.001


def test_a_span_of_another_text_is_far() -> None:
    rows = SpanRows(TAGS)
    other = SPELLED._replace(text="Eve Bo in Rome")
    stored = rows.make([other], [tags(1, 2, 0, 3)], []).column("spans")[0]
    again = rows.make([SPELLED], [tags(1, 2, 0, 3)], []).column("spans")[0]
    assert rows.distance("spans", stored, again) == 1.0


def test_large_logits_have_probabilities() -> None:
    logits = np.array([[1000.0, -1000.0]], np.float32)
    assert to_probabilities(logits, "softmax").tolist() == [[1.0, 0.0]]
    assert to_probabilities(logits, "sigmoid").tolist() == [[1.0, 0.0]]
    assert to_probabilities(logits, "number") is logits
