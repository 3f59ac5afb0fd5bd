"""Makes the sources of tests/golden/test_plan_ids.py, one of every format. A plan's id has the digest of their bytes.

    python tests/data/plans/make.py tests/data/plans

The files are kept, since libraries write other bytes with every version. All texts are invented.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import sqlite3
import sys
from pathlib import Path

ROWS = [
    {"id": f"k{i}", "n": i, "title": f"Heron {i}", "body": f"It waits for rain, {i} steps away.", "topic": "ab"[i % 2],
     "price": i / 4, "gold": f"It waits {i}.", "messages": [{"role": "user", "content": f"Who waits {i}?"}]}
    for i in range(6)
]  # fmt: skip
REVIEWS = [{"user_id": "u1", "asin": "x1", "timestamp": 1_600_000_000_000, "parent_asin": "x0", "rating": 4.0,
            "title": "Good", "text": "A lamp.", "images": [], "helpful_vote": 1,
            "verified_purchase": True}]  # fmt: skip
PRODUCTS = [{"parent_asin": "x0", "main_category": "Lamps", "title": "Lamp", "average_rating": 4.0, "rating_number": 3,
             "features": [], "description": ["It glows."], "price": "9.50", "images": [], "videos": [],
             "store": "Shop", "categories": [], "details": {}, "bought_together": None}]  # fmt: skip
OLD = [{"reviewerID": "u1", "asin": "x1", "reviewerName": "A", "helpful": [1, 2], "reviewText": "A lamp.",
        "overall": 4.0, "summary": "Good", "unixReviewTime": 1_300_000_000, "reviewTime": "03 13, 2011"}]  # fmt: skip


def main(out: Path) -> None:
    import pyarrow as pa
    import pyarrow.ipc
    import pyarrow.parquet as pq
    import zstandard

    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    flat = [{name: value for name, value in row.items() if name != "messages"} for row in ROWS]
    texts = {
        "items.jsonl": lines,
        "packed.jsonl.gz": gzip.compress(lines, mtime=0),
        "packed.jsonl.bz2": bz2.compress(lines),
        "packed.jsonl.xz": lzma.compress(lines),
        "packed.jsonl.zst": zstandard.compress(lines),
        "plain.txt": "".join(f"{row['body']}\n" for row in ROWS).encode(),
        "array.json": json.dumps(ROWS).encode(),
        "rows.pkl": pickle.dumps(flat, protocol=4),
        "reviews-2023.jsonl": "".join(json.dumps(row) + "\n" for row in REVIEWS).encode(),
        "products-2023.jsonl": "".join(json.dumps(row) + "\n" for row in PRODUCTS).encode(),
        "reviews-2014.jsonl": "".join(json.dumps(row) + "\n" for row in OLD).encode(),
    }
    for name, mark in (("table.csv", ","), ("table.tsv", "\t")):
        cells = [list(flat[0]), *([str(value) for value in row.values()] for row in flat)]
        texts[name] = "".join(mark.join(f'"{cell}"' for cell in row) + "\n" for row in cells).encode()
    for name, raw in texts.items():
        (out / name).write_bytes(raw)
    table = pa.Table.from_pylist(flat)
    pq.write_table(table, out / "table.parquet", compression="none")
    for name, writer in (("table.arrow", pa.ipc.new_file), ("saved/data-00000-of-00001.arrow", pa.ipc.new_stream)):
        (out / name).parent.mkdir(exist_ok=True)
        with writer(str(out / name), table.schema) as file:
            file.write_table(table)
    (out / "saved/state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (out / "saved/dataset_info.json").write_text("{}")
    (out / "rows.sqlite").unlink(missing_ok=True)
    with sqlite3.connect(out / "rows.sqlite") as connection:
        connection.execute("PRAGMA page_size = 512")
        connection.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, title TEXT, body TEXT)")
        connection.executemany("INSERT INTO notes VALUES (?, ?, ?)", [(r["n"], r["title"], r["body"]) for r in ROWS])
    connection.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
