"""Losses and gradients are those of sentence-transformers where both define the same loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.libraries import needed
from tests.support.training import a_model, a_network, pairs_of, topic_pairs

torch = needed("torch")
SentenceTransformer = needed("sentence_transformers").SentenceTransformer
theirs = needed("sentence_transformers.sentence_transformer.losses")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_model(tmp_path_factory.mktemp("model"))


def distinct(count: int = 12) -> list[dict[str, Any]]:
    """Rows without a text that occurs twice: there both count the same negatives."""
    rows = topic_pairs(count)
    return [
        {**row, "passage": f"{row['passage']} {n}", "negative": f"{row['negative']} x{n}"} for n, row in enumerate(rows)
    ]


def by_loop(folder: Path, rows: list[dict[str, Any]], *, kept_tokens: int | None = None, **options: Any) -> Any:
    """Our loss and the gradients of all weights."""
    network = a_network(folder)
    if kept_tokens is not None:
        network._room_bytes, network._mini_tokens = kept_tokens * network._token_bytes, kept_tokens
    pairs = pairs_of(rows, folder, **options)
    batch = pairs.batch(np.arange(len(rows)))
    done = network.forward(network.prepare(batch.texts))
    vectors = done.vectors.requires_grad_()
    loss = batch.loss(vectors, pairs.options)
    loss.backward()
    network.backward(done, vectors.grad)
    return loss.item(), {name: weight.grad for name, weight in network.weights().items()}


def by_reference(folder: Path, rows: list[dict[str, Any]], make: Any, columns: list[str], label: str = "") -> Any:
    model = SentenceTransformer(str(folder), device="cpu").eval()
    loss = make(model)
    loss.eval()
    features = [model.preprocess([row[name] for row in rows]) for name in columns]
    labels = torch.tensor([row[label] for row in rows]) if label else None
    value = loss(features, labels)
    value.backward()
    return value.item(), [weight.grad for weight in model[0].parameters() if weight.grad is not None]


PAIR, TRIPLE = ["question", "passage"], ["question", "passage", "negative"]
CASES = {
    "pairs": (lambda m: theirs.MultipleNegativesRankingLoss(m), {}, PAIR),
    "hard negatives": (lambda m: theirs.MultipleNegativesRankingLoss(m), {}, TRIPLE),
    "temperature": (lambda m: theirs.MultipleNegativesRankingLoss(m, scale=50.0), {"temperature": 0.02}, PAIR),
    "matryoshka": (
        lambda m: theirs.MatryoshkaLoss(m, theirs.MultipleNegativesRankingLoss(m), [32, 16, 8]),
        {"dims": (32, 16, 8)},
        PAIR,
    ),
    "cosent": (lambda m: theirs.CoSENTLoss(m), {"label": "score"}, PAIR),
    "cosine": (lambda m: theirs.CosineSimilarityLoss(m), {"label": "score", "loss": "cosine"}, PAIR),
    "triplet": (
        lambda m: theirs.TripletLoss(m, theirs.TripletDistanceMetric.COSINE, 0.2),
        {"loss": "triplet"},
        TRIPLE,
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kept_tokens", [None, 40], ids=["graphs kept", "computed twice"])
def test_loss_and_gradients_are_those_of_sentence_transformers(
    folder: Path, case: str, kept_tokens: int | None
) -> None:
    make, options, columns = CASES[case]
    rows = distinct()
    loss, gradients = by_loop(folder, rows, kept_tokens=kept_tokens, columns=tuple(columns), **options)
    wanted, reference = by_reference(folder, rows, make, columns, options.get("label", ""))
    assert loss == pytest.approx(wanted, abs=1e-5)
    assert len(gradients) == len(reference)
    for ours, other in zip(gradients.values(), reference, strict=True):
        torch.testing.assert_close(ours, other, atol=2e-5, rtol=1e-3)


def test_equal_positives_are_no_negatives(folder: Path) -> None:
    rows = distinct(6)
    doubled = [*rows, {**rows[0], "question": "another question on the same passage"}]
    pairs = pairs_of(doubled, folder)
    candidates, own, hidden = pairs.batch(np.arange(7))._candidates()
    assert len(candidates) == 6
    assert own[0] == own[6]
    assert not hidden.any()


def test_another_partner_of_the_same_anchor_is_hidden(folder: Path) -> None:
    rows = distinct(4)
    rows[1]["question"] = rows[0]["question"]
    rows[3]["passage"] = rows[2]["question"]
    _, own, hidden = pairs_of(rows, folder).batch(np.arange(4))._candidates()
    assert hidden[0, own[1]]
    assert hidden[1, own[0]]
    assert hidden[2, own[3]]
    assert hidden.sum() == 3


def test_one_vector_per_distinct_text(folder: Path) -> None:
    rows = topic_pairs(48)
    batch = pairs_of(rows, folder).batch(np.arange(48))
    assert len(batch.texts) == len({row["question"] for row in rows}) + len({row["passage"] for row in rows}) < 96
