"""What others make of the same answers: golden values for the tests, each in an environment of its own.

    python -m venv peers && peers/bin/pip install 'transformers<5' torch
    peers/bin/python benchmarks/answers_peers.py spans TOKENIZER_FOLDER tests/golden/answer_spans.json
    peers/bin/python benchmarks/answers_peers.py squad tests/golden/answer_figures.json
    peers/bin/pip install pytrec-eval-terrier && peers/bin/pip install --no-deps beir
    peers/bin/python benchmarks/answers_peers.py ranking tests/golden/answer_figures.json

This file imports nothing of shardmill. `spans` cuts and reads with transformers 4's SQuAD code and the logits of
`logits`; `squad` and `ranking` add the figures of transformers 4 and of beir to a file of answers.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MOST_TOKENS, STEP, QUESTION_TOKENS, N_BEST, ANSWER_TOKENS = 384, 128, 64, 20, 30
_PRIME = 10_007

_TOWER = "The tower was built by Eiffel's company from 1887 to 1889; it is 330 metres (1,083 ft) tall."
_ACCENTS = "In Zürich the café opened in March 1995, says José Núñez-Álvarez (b. 1961), its owner: “It's mine!”"
_LONG = " ".join(
    f"In {1200 + 7 * i}, the {word} of part {i} was rebuilt, at a cost of ${i * 31 % 97}.50 per unit."
    for i, word in enumerate(["bridge", "harbour", "mill", "abbey", "gate", "market", "canal"] * 6)
)
PAIRS = [
    ("Who built the tower?", _TOWER),
    ("How tall is it?", _TOWER),
    ("Who owns the café?", _ACCENTS),
    ("When did it open?", _ACCENTS),
    ("When was the mill rebuilt?", _LONG),
    ("What did the gate cost?", _LONG),
    ("why " * 100 + "was it rebuilt?", _LONG),
    ("Where?", "Paris."),
    ("What is written?", "東京 is written with two characters, 東 and 京, and read Tōkyō."),
]


def logits(case: int, window: int, tokens: int) -> tuple[list[float], list[float]]:
    """Start and end logits that are the same everywhere; those of every third case make "no answer" likely."""
    both = []
    for side in range(2):
        seeds = ((i + 1) * 7_919 + window * 104_729 + case * 1_299_709 + side * 15_485_863 for i in range(tokens))
        values = [(seed * seed % _PRIME) / _PRIME * 12 - 6 for seed in seeds]
        values[0] += 7 if case % 3 == 0 else 0
        both.append(values)
    return both[0], both[1]


def read_spans(folder: str) -> list[dict[str, Any]]:
    from transformers import BertTokenizer
    from transformers.data.metrics.squad_metrics import compute_predictions_logits
    from transformers.data.processors.squad import (
        SquadExample,
        squad_convert_example_to_features,
        squad_convert_example_to_features_init,
    )

    tokenizer = BertTokenizer.from_pretrained(folder, model_max_length=512)
    squad_convert_example_to_features_init(tokenizer)
    found = []
    for case, (question, passage) in enumerate(PAIRS):
        example = SquadExample(str(case), question, passage, None, None, "")
        features = squad_convert_example_to_features(
            example, MOST_TOKENS, STEP, QUESTION_TOKENS, padding_strategy="do_not_pad", is_training=False
        )
        results = []
        for number, feature in enumerate(features):
            feature.unique_id = number
            starts, ends = logits(case, number, len(feature.input_ids))
            results.append(SimpleNamespace(unique_id=number, start_logits=starts, end_logits=ends))
        files = [Path(f"/tmp/squad-{name}.json") for name in ("best", "nbest", "null")]
        best = compute_predictions_logits(
            *([example], features, results, N_BEST, ANSWER_TOKENS, True),
            *(str(files[0]), str(files[1]), str(files[2]), False, True, 0.0, tokenizer),
        )
        nbest = json.loads(files[1].read_text())[str(case)]
        found.append(
            {
                "question": question,
                "passage": passage,
                "windows": [[len(f.input_ids), _digest(f.input_ids)] for f in features],
                "best": best[str(case)],
                "nbest": [[n["text"], n["start_logit"], n["end_logit"], n["probability"]] for n in nbest],
            }
        )
    return found


def _digest(ids: list[int]) -> str:
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]


def measure_squad(answers: list[dict[str, Any]]) -> dict[str, Any]:
    from transformers.data.metrics.squad_metrics import squad_evaluate

    examples = [
        SimpleNamespace(qas_id=a["id"], answers=[{"text": text} for text in a["right"]], is_impossible=not a["right"])
        for a in answers
    ]
    figures = squad_evaluate(examples, {a["id"]: a["answer"] for a in answers})
    return {name: figures[name] for name in ("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")}


def measure_ranking(answers: list[dict[str, Any]]) -> dict[str, Any]:
    from beir.retrieval.evaluation import EvaluateRetrieval

    right = {a["id"]: a["grades"] for a in answers}
    found = {a["id"]: {name: 1.0 / rank for rank, name in enumerate(a["passages"], 1)} for a in answers}
    ndcg, _, recall, _ = EvaluateRetrieval.evaluate(right, found, [1, 5, 10])
    return {**ndcg, **recall, **EvaluateRetrieval.evaluate_custom(right, found, [10], metric="mrr")}


def main() -> None:
    what, *rest = sys.argv[1:]
    path = Path(rest[-1])
    if what == "spans":
        path.write_text(json.dumps(read_spans(rest[0]), indent=1, ensure_ascii=False) + "\n")
        return
    held = json.loads(path.read_text())
    held[what] = {"squad": measure_squad, "ranking": measure_ranking}[what](held["answers"])
    path.write_text(json.dumps(held, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
