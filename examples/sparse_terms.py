"""Which words stand for a text: the heaviest ones of its sparse vector, by their names in the model's vocabulary.

python examples/sparse_terms.py docs.jsonl text ./splade
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import shardmill

SHOWN, WORDS = 5, 8


def main(source: str, text: str, model: str) -> None:
    run = shardmill.embed_sparse(source, text=text, keep=text, model=model, out="runs/sparse")
    vocabulary = json.loads((Path(model) / "tokenizer.json").read_text())["model"]["vocab"]
    names = {index: word for word, index in vocabulary.items()}
    for row in run.table().slice(0, SHOWN).to_pylist():
        heaviest = sorted(row["sparse"], key=lambda each: -each["weight"])[:WORDS]
        words = ", ".join(f"{names.get(each['index'], '?')} {each['weight']:.2f}" for each in heaviest)
        print(f"{row[text][:40]}: {words}")


if __name__ == "__main__":
    main(*sys.argv[1:])
