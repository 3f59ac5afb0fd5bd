"""Answer questions over a few passages, and compare the answers with the right ones.

python examples/answer_questions.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import shardmill

PASSAGES = {
    "lighthouse": "The lighthouse of Cap Roig stands 41 metres above the sea. It was built in 1864 by Elena Puig, the "
    "first woman to lead such works on this coast. Its lamp burned oil until 1926.",
    "bridge": "The Old Bridge of Vallclara has seven arches. A flood destroyed two of them in 1907. They were rebuilt "
    "from the same stone within three years.",
    "museum": "The museum of paper is in a mill from 1715. Visitors make a sheet of their own. It is closed on Mondays "
    "and in January.",
    "bakery": "Forn Serra has sold bread since 1932. The oven burns almond shells. On Sundays there is a queue for its "
    "flat cake with figs.",
}
QUESTIONS = [
    ("Who built the lighthouse of Cap Roig?", "lighthouse"),
    ("When did a flood destroy two arches of the bridge?", "bridge"),
    ("On which day is the museum of paper closed?", "museum"),
    ("What does the oven of the bakery burn?", "bakery"),
]


def main(folder: Path, model: str | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    passages, questions = folder / "passages.jsonl", folder / "questions.jsonl"
    rows = [{"id": name, "text": text} for name, text in PASSAGES.items()]
    passages.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    asked = [{"id": f"q{n}", "question": q, "passage_id": right} for n, (q, right) in enumerate(QUESTIONS)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in asked), encoding="utf-8")

    shardmill.embed(str(passages), text="text", id="id", keep="text", model=model, out=folder / "passages")
    run = shardmill.answer(
        str(questions), over=folder / "passages", text="question", id="id", keep="question", k=3, out=folder / "answers"
    )
    for row in run.table(["question", "answer", "passage"]).to_pylist():
        print(f"{row['question']}  {row['answer']}  ({row['passage']})")
    figures = run.evaluate(questions).figures
    print(f"recall@1 {figures['recall@1']:.2f}, MRR@10 {figures['MRR@10']:.2f}")
    if not run.verify().verified:
        raise SystemExit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "answers"), sys.argv[2] if len(sys.argv) > 2 else None)
