"""What the peers of `benchmarks.refresh_peers` run: each as its documentation shows, written into a folder as files.

Words in capitals are replaced. `helper.py` counts what is computed: texts that the model gets, or calls of a function.
"""

from __future__ import annotations

HELPER = """
computed = []


def imported(text):
    computed.append(text)
    return IMPORTED * text.count("a")


def count_encoded():
    from sentence_transformers import SentenceTransformer

    encode = SentenceTransformer.encode

    def counting(self, texts, **how):
        computed.extend(texts)
        return encode(self, texts, **how)

    SentenceTransformer.encode = counting
"""

OWN = """
from helper import imported


def vectors(rows):
    return [{"embedding": [float(OWN * len(row["text"])), float(imported(row["text"])), 1.0]} for row in rows]
"""

# A component per row, which is computed again if its row, the code of its functions or the embedder changes.
COCOINDEX = """
import json
import pathlib
from dataclasses import dataclass

import cocoindex as coco
import numpy as np
from cocoindex.connectors import sqlite
from cocoindex.ops.sentence_transformers import SentenceTransformerEmbedder

import helper
from helper import imported

helper.count_encoded()
DATABASE = coco.ContextKey[sqlite.ManagedConnection]("database")
EMBEDDER = coco.ContextKey[SentenceTransformerEmbedder]("embedder", detect_change=True)


@dataclass
class Review:
    id: str
    stars: float
    text: str


@dataclass
class Embedded:
    id: str
    stars: float
    embedding: bytes


@coco.lifespan
def resources(builder):
    builder.settings.db_path = pathlib.Path("state")
    with sqlite.managed_connection("result.sqlite", load_vec=False) as connection:
        builder.provide(DATABASE, connection)
        builder.provide(EMBEDDER, SentenceTransformerEmbedder(MODEL, device="cpu"))
        yield


@coco.fn
def own(text: str) -> list[float]:
    return [float(OWN * len(text)), float(imported(text)), 1.0]


@coco.fn(memo=True)
async def embed(review: Review, table: sqlite.TableTarget[Embedded]) -> None:
    vector = VECTOR
    table.declare_row(row=Embedded(review.id, review.stars, np.asarray(vector, np.float32).tobytes()))


@coco.fn
async def main() -> None:
    schema = await sqlite.TableSchema.from_class(Embedded, primary_key=["id"])
    table = await sqlite.mount_table_target(DATABASE, "result", schema)
    with open("rows.jsonl") as lines:
        reviews = [Review(**json.loads(line)) for line in lines]
    await coco.mount_each(embed, [(review.id, review) for review in reviews], table)


coco.App("reviews", main).update_blocking()
print(len(helper.computed))
"""

DATASETS = """
import functools

from datasets import load_dataset
from sentence_transformers import SentenceTransformer

import helper
from helper import imported

helper.count_encoded()


@functools.cache
def load():
    return SentenceTransformer(MODEL, device="cpu")


def own(text):
    return [float(OWN * len(text)), float(imported(text)), 1.0]


def embed(batch):
    texts = batch["text"]
    return {"embedding": VECTOR}


rows = load_dataset("json", data_files="rows.jsonl", split="train")
rows = rows.map(embed, batched=True, load_from_cache_file=True, remove_columns=["text"])
rows.to_parquet("result.parquet")
print(len(helper.computed))
"""

REFERENCE = """
import json, sys
import numpy as np
from sentence_transformers import SentenceTransformer
texts = json.load(open(sys.argv[2]))
np.save(sys.argv[3], SentenceTransformer(sys.argv[1], device="cpu").encode(texts, show_progress_bar=False))
"""
