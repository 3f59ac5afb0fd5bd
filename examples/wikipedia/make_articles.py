"""Write a stand-in for wikipedia.pkl: articles of made-up words and ten questions.

python examples/wikipedia/make_articles.py wikipedia.pkl --items 250010
"""

from __future__ import annotations

import argparse
import pickle
import random

QUESTIONS = 10
_SYLLABLES = ("ba", "cor", "del", "em", "fi", "gan", "hu", "il", "jo", "ka", "lu", "mer", "no", "or", "pe", "qua")


def make_items(items: int, words: int = 120, seed: int = 0) -> list[dict[str, str]]:
    """Make articles of about `words` words, then the questions; the same seed gives the same items."""
    chance = random.Random(seed)
    vocabulary = ["".join(chance.choices(_SYLLABLES, k=chance.randint(1, 4))) for _ in range(5000)]
    articles = max(0, items - QUESTIONS)
    made = []
    for i in range(items):
        count = max(5, int(chance.lognormvariate(0, 0.5) * words)) if i < articles else 8
        title = " ".join(chance.choices(vocabulary, k=2)).title()
        text = " ".join(chance.choices(vocabulary, k=count))
        made.append(
            {"id": f"article-{i}" if i < articles else f"question-{i - articles}", "title": title, "text": text}
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="where to write the pickle")
    parser.add_argument("--items", type=int, default=250_010)
    parser.add_argument("--words", type=int, default=120, help="median number of words per article")
    asked = parser.parse_args()
    with open(asked.out, "wb") as file:
        pickle.dump(make_items(asked.items, asked.words), file, protocol=4)


if __name__ == "__main__":
    main()
