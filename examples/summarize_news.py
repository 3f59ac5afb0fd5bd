"""Summarize news items, then each topic, and compare the items with reference summaries.

python examples/summarize_news.py [FOLDER] [MODEL]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import shardmill

NEWS = [
    {
        "topic": "harbour",
        "article": "The harbour of Port Vell will close for six weeks in May. Divers found cracks in its northern wall "
        "on Tuesday. The wall was built in 1931, and Mr. Oller, who runs the port, calls it tired. Fishing boats move "
        "to the old basin. Ferries to the islands leave from the town of Sant Pere, 14 km away. The repair costs "
        "3.5 million euros, half of it paid by the state.",
        "reference": "Port Vell closes its harbour for six weeks to repair cracks in the wall for 3.5 million euros.",
    },
    {
        "topic": "harbour",
        "article": "Ferry passengers waited for hours in Sant Pere on the first day without a harbour in Port Vell. "
        "The town has one pier. 'We had 4,000 people for 900 seats,' said a clerk. More buses come from Monday. "
        "Shops in Port Vell say they have lost a third of their guests. Some of them are closed until June.",
        "reference": "With Port Vell's harbour closed, ferry passengers waited for hours in Sant Pere.",
    },
    {
        "topic": "birds",
        "article": "Storks nest in the valley again after forty years. Two pairs built their nests on the chimney of "
        "the old brickworks. Dr. Amat of the university counted five young. The marsh was flooded anew in 2019, and "
        "frogs came back first. Farmers get money for fields that stay wet. Next year ten pairs are expected.",
        "reference": "After forty years storks nest in the valley again, since its marsh was flooded anew.",
    },
]


def main(folder: Path, model: str | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    news = folder / "news.jsonl"
    news.write_text("".join(json.dumps(item) + "\n" for item in NEWS), encoding="utf-8")

    options = {"sentences": 2, "reference": "reference", "group_by": "topic", "model": model}
    topics = shardmill.summarize(str(news), text="article", out=folder / "topics", **options)
    items = shardmill.Run(folder / "topics-items")
    for row in items.table(["topic", "summary", "rouge1"]).to_pylist():
        print(f"{row['topic']}, ROUGE-1 {row['rouge1']:.2f}: {row['summary']}")
    for row in topics.table(["topic", "items", "summary"]).to_pylist():
        print(f"{row['topic']}, {row['items']} items: {row['summary']}")
    report = items.verify()
    means = ", ".join(f"{name} {report.figures[name]['mean']:.3f}" for name in ("rouge1", "rouge2", "rougeL"))
    print(f"verified: {report.verified}; means: {means}")
    if not report.verified:
        raise SystemExit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "summaries"), *sys.argv[2:])
