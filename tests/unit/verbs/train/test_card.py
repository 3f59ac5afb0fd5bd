"""The card says where a model comes from: by its name on the hub, or by that of its folder, never by a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardmill.models.location import find_model
from tests.support.libraries import needed
from tests.support.training import pairs_of, topic_pairs

needed("torch")

from shardmill.verbs.train.card import write_card  # noqa: E402
from shardmill.verbs.train.data import Pairs  # noqa: E402
from shardmill.verbs.train.loop import Outcome  # noqa: E402

CURVE = ({"step": 0, "figure": 0.5}, {"step": 3, "loss": 0.1, "figure": 0.75})
DONE = Outcome(3, 20, 4, "mrr@10", 0.5, 0.75, 3, CURVE)


@pytest.fixture
def pairs() -> Pairs:
    made: Pairs = pairs_of(topic_pairs(24), "m", hard_negatives="/home/ann/runs/passages")
    return made


def test_a_model_of_the_hub_is_linked(pairs: Pairs) -> None:
    origin = find_model("all-MiniLM-L6-v2")
    card = write_card(pairs, DONE, origin.name, {}, origin.hub)
    assert 'base_model: "sentence-transformers/all-MiniLM-L6-v2"' in card
    assert "# all-MiniLM-L6-v2, fine-tuned" in card


def test_a_folder_is_named_and_not_linked(pairs: Pairs, tmp_path: Path) -> None:
    origin = find_model(str(tmp_path))
    card = write_card(pairs, DONE, origin.name, {}, origin.hub)
    assert "base_model" not in card
    assert "/home/ann" not in card
    assert "| hard_negatives | passages |" in card
