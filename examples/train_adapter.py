"""Train a LoRA adapter on questions and passages, then embed with the base model and the adapter.

python examples/train_adapter.py [FOLDER] [MODEL]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import shardmill

TOPICS = {
    "harbour": ["It closes in May.", "Divers found cracks in its wall.", "Ferries leave from another town."],
    "storks": ["Two pairs nest on a chimney.", "The marsh was flooded in 2019.", "Farmers are paid for wet fields."],
    "brickworks": ["The kiln burnt until 1978.", "Its chimney is 40 metres high.", "The clay came by boat."],
}


def main(folder: Path, model: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pairs, passages = folder / "pairs.jsonl", folder / "passages.jsonl"
    texts = [(topic, f"About the {topic}: {text}") for topic, found in TOPICS.items() for text in found]
    questions = ("What is said about the {0}, number {1}?", "Tell me of the {0} ({1}).", "{0}, {1}: what happened?")
    rows = [
        {"question": ask.format(topic, n), "passage": text}
        for ask in questions
        for n, (topic, text) in enumerate(texts)
    ]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    passages.write_text("".join(json.dumps({"text": text}) + "\n" for _, text in texts), encoding="utf-8")

    tuned = shardmill.train(
        str(pairs),
        columns="question,passage",
        model=model,
        lora=8,
        learning_rate=1e-3,
        out=folder / "tuned",
        batch=9,
        epochs=4,
        held_out=0.2,
    )
    (row,) = tuned.table().to_pylist()
    print(f"{row['trained_on']} items, {row['steps']} steps: {row['metric']} {row['before']:.2f} -> {row['best']:.2f}")
    adapter = folder / "tuned" / "model" / "adapter"
    size = (adapter / "adapter_model.safetensors").stat().st_size
    print(f"adapter: {size / (adapter.parent / 'model.safetensors').stat().st_size:.1%} of the size of the model")
    run = shardmill.embed(str(passages), text="text", model=model, adapter=str(adapter), out=folder / "passages")
    for hit in run.search("What happened to the storks?", k=2):
        print(f"{hit.score:.2f}  {texts[hit.row][1]}")
    print(f"verified: {tuned.verify().verified and run.verify().verified}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo/adapter"), sys.argv[2] if len(sys.argv) > 2 else "demo")
