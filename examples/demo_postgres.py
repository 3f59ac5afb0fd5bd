"""PostgreSQL demo: load generated reviews and products into a private server, verify and search them."""

from __future__ import annotations

import json
import random
import shlex
import subprocess
import sys
from pathlib import Path

HOME = Path("demo")
REVIEWS, PRODUCTS = 400, 20
KINDS = ("phone", "charger", "case", "headset", "cable")
OPINIONS = (
    "The battery dies after two hours, and charging takes all night.",
    "Fits well and looks as good as on the first day.",
    "The sound is thin and one side went silent after a week.",
    "Works as it should; I would buy it again.",
    "The screen broke when it fell off a low table.",
    "Arrived late, and the box was open.",
)


def write_reviews(folder: Path) -> tuple[Path, Path]:
    """Write reviews and products in the format of 2023; the product of one review is unknown."""
    choose = random.Random(7)
    folder.mkdir(parents=True, exist_ok=True)
    products, reviews = folder / "products.jsonl", folder / "reviews.jsonl"
    with open(products, "w") as file:
        for i in range(PRODUCTS):
            kind = KINDS[i % len(KINDS)]
            product = {"parent_asin": f"P{i:03d}", "main_category": "Phones", "title": f"A {kind}, model {i}"}
            product |= {
                "average_rating": 3.5,
                "rating_number": i,
                "features": [f"a good {kind}"],
                "description": [kind],
            }
            product |= {"price": f"{i}.99", "images": [], "videos": [], "store": "A store", "categories": [kind]}
            file.write(json.dumps({**product, "details": {"Color": "Black"}, "bought_together": []}) + "\n")
    with open(reviews, "w") as file:
        for i in range(REVIEWS):
            product_id = f"P{choose.randrange(PRODUCTS):03d}" if i else "UNKNOWN"
            opinion = choose.choice(OPINIONS)
            review = {"user_id": f"U{i:04d}", "asin": product_id, "parent_asin": product_id, "title": opinion[:20]}
            review |= {
                "timestamp": 1_600_000_000_000 + i,
                "rating": choose.randint(1, 5),
                "text": f"{opinion} (no. {i})",
            }
            file.write(json.dumps({**review, "images": [], "helpful_vote": 0, "verified_purchase": True}) + "\n")
    return reviews, products


def shardmill(*arguments: str) -> None:
    print("$ shardmill " + shlex.join(arguments), flush=True)
    subprocess.run([sys.executable, "-m", "shardmill", *arguments], check=True)


def main() -> None:
    reviews, products = write_reviews(HOME)
    place, out = f"embedded:{HOME}/shop", f"{HOME}/reviews"
    schema = "amazon-reviews-2023"
    shardmill("load", str(reviews), "--metadata", str(products), "--to", place, "--schema", schema, "--out", out)
    shardmill("status", out)
    shardmill("show", out, "--errors")
    shardmill("verify", out)
    shardmill(
        "search", f"{place}/user_reviews", "it does not last a day", "-k", "3", "--hybrid", "--where", "rating <= 2"
    )
    print(f"The server keeps running. To stop it: {sys.executable} -m shardmill.postgres.embedded stop {HOME}/shop")


if __name__ == "__main__":
    main()
