"""Summarize news items, then each topic, and compare the items with reference summaries.

python examples/summarize_news.py [FOLDER]
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


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    news = folder / "news.jsonl"
    news.write_text("".join(json.dumps(item) + "\n" for item in NEWS), encoding="utf-8")

    run = shardmill.summarize(
        str(news), text="article", keep="topic", sentences=2, reference="reference", out=folder / "run"
    )
    for row in run.table(["topic", "summary", "rouge1"]).to_pylist():
        print(f"{row['topic']}, ROUGE-1 {row['rouge1']:.2f}: {row['summary']}")
    report = run.verify()
    print(f"verified: {report.verified}, {report.figures}")

    topics = shardmill.summarize(str(news), text="article", sentences=2, group_by="topic", out=folder / "topics")
    for row in topics.table(["topic", "items", "summary"]).to_pylist():
        print(f"{row['topic']}, {row['items']} items: {row['summary']}")
    if not report.verified or not topics.verify().verified:
        raise SystemExit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "summaries"))
