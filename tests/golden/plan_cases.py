"""What is planned in test_plan_ids.py: every verb with each of its parameters, every format, every key of [work].

A case is the [work] of a spec. Places are relative, so that no path of a machine is part of an id.
"""

from __future__ import annotations

from typing import Any

ITEMS = {"source": "items.jsonl", "text": "body", "id": "id"}
FAKE = {**ITEMS, "task": "shardmill.testing:FakeTask"}
STREAM = {**ITEMS, "task": "shardmill.testing:FakeStream"}
EMBEDDER, WRITER, READER = "models/embedder", "models/writer", "models/reader"
CLASSIFIER, TAGGER, ENTAILER, RANKER = "models/classifier", "models/tagger", "models/entailer", "models/ranker"
SPARSE, COLBERT = "models/sparse", "models/colbert"
OVER = "runs/embed"
SERVER = {"endpoint": "http://models.example/v1", "key_variable": "OTHER_KEY"}
TO = {"url": "postgresql://someone@db.example/shop", "table": "notes"}
KEY = {"to": TO, "keep": "body"}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
CODE = "import math\n\n\ndef stepwise(parameters, context):\n    return math.sin(parameters['x'])\n"
SPACE = {"x": {"low": -5.0, "high": 5.0}, "n": {"low": 1, "high": 8, "log": True}, "way": ["a", "b"]}


def embed(**params: Any) -> dict[str, Any]:
    return {**ITEMS, "task": "embed", "params": {"model": EMBEDDER, **params}}


def of_model(task: str, model: str, **params: Any) -> dict[str, Any]:
    return {**ITEMS, "task": task, "params": {"model": model, **params}}


def generate(**params: Any) -> dict[str, Any]:
    text = "{messages:json}" if params.get("messages") else "Say: {body}"
    return {**ITEMS, "text": text, "task": "generate", "params": {"model": WRITER, **params}}


def summarize(**params: Any) -> dict[str, Any]:
    method = "generative" if params.get("model") == WRITER or "endpoint" in params else "extractive"
    return {**ITEMS, "task": "summarize", "params": {"model": EMBEDDER, "method": method, **params}}


def answer(**params: Any) -> dict[str, Any]:
    return {**ITEMS, "text": "title", "task": "answer", "params": {"over": OVER, **params}}


def apply(call: str, **params: Any) -> dict[str, Any]:
    return {"source": "items.jsonl", "task": "apply", "params": {"call": call, **params}}


def dedup(call: str, **params: Any) -> dict[str, Any]:
    """The runs of `dedup` are of `apply`, with functions of shardmill."""
    return {**apply(f"shardmill.texts.duplicates:{call}", **params), "id": "id"}


def train(**params: Any) -> dict[str, Any]:
    params = {"model": EMBEDDER, "columns": ["title", "body"], **params}
    return {"source": "items.jsonl", "text": "title", "task": "train", "params": params}


def tune(call: str = "kept.objectives:quadratic", **params: Any) -> dict[str, Any]:
    params = {"space": SPACE, "generation": 3, **({"call": call} if call else {}), **params}
    return {"items": 6, "task": "tune", "params": params, "wave": params["generation"]}


def augment(source: str, **params: Any) -> dict[str, Any]:
    return {"source": source, "text": "sample_id", "id": "sample_id", "task": "augment", "params": params}


def table(text: str = "body", **to: Any) -> dict[str, Any]:
    return {**FAKE, "text": text, "to": {**TO, **to}}


def preset(name: str, source: str, **to: Any) -> dict[str, Any]:
    return {"source": source, "task": FAKE["task"], "to": {"url": TO["url"], "preset": name, **to}}


SOURCES: dict[str, dict[str, Any]] = {
    "jsonl": FAKE,
    "gzip": {**FAKE, "source": "packed.jsonl.gz"},
    "bzip2": {**FAKE, "source": "packed.jsonl.bz2"},
    "xz": {**FAKE, "source": "packed.jsonl.xz"},
    "zstd": {**FAKE, "source": "packed.jsonl.zst"},
    "several files": {**FAKE, "source": ["items.jsonl", "packed.jsonl.gz"]},
    "glob": {**FAKE, "source": "it*.jsonl"},
    "text": {"source": "plain.txt", "text": "text", "task": FAKE["task"]},
    "csv": {**FAKE, "source": "table.csv", "keep": "n,price"},
    "tsv": {**FAKE, "source": "table.tsv"},
    "parquet": {**FAKE, "source": "table.parquet", "keep": "n,price"},
    "arrow": {**FAKE, "source": "table.arrow", "keep": "n,price"},
    "json": {**FAKE, "source": "array.json", "keep": "n,price"},
    "pickle": {**FAKE, "source": "rows.pkl", "keep": "n,price"},
    "datasets": {**FAKE, "source": "saved", "format": "datasets", "keep": "n,price"},
    "format by name": {**FAKE, "format": "jsonl"},
    "query": {**FAKE, "source": "rows.sqlite", "query": "SELECT id, title, body FROM notes WHERE id > 1"},
    "query by url": {**FAKE, "source": "sqlite:///rows.sqlite", "query": "SELECT id, title, body FROM notes"},
    "run": {**FAKE, "source": f"run:{OVER}", "text": "id", "keep": "year"},
    "range": augment("range:0:1000"),
}

KEYS: dict[str, dict[str, Any]] = {
    "fields joined": {**FAKE, "text": "title,body"},
    "template": {**FAKE, "text": "{title}: {body} ({n})"},
    "template of json": {**FAKE, "text": "{messages:json}"},
    "no id": {**FAKE, "id": ""},
    "two ids": {**FAKE, "id": "id,n"},
    "keep": {**FAKE, "keep": "price,n"},
    "keep in another order": {**FAKE, "keep": "n,price"},
    "keep with a type": {**FAKE, "keep": "n:double,price:string"},
    "group_by": {**FAKE, "id": "topic", "group_by": "topic"},
    "fields": {**FAKE, "fields": ["n"]},
    "max_item_bytes": {**FAKE, "max_item_bytes": 4096},
    **{
        f"fake {name}": {**FAKE, "params": {name: value}}
        for name, value in {"dims": 4, "fits": 9, "version": "2", "delay_s": 0.1, "broken": "raise"}.items()
    },
    "fake windows": {**FAKE, "params": {"window": 8}},
    "fake mean": {**FAKE, "params": {"window": 8, "mean": True}},
    "fake stream": {**STREAM, "params": {"seats": 2, "fits": 9, "delay_s": 0.1}},
    "fake stream with a field": {**STREAM, "params": {"field": "topic"}},
    "own task": {**ITEMS, "task": "kept.tasks:Lengths", "params": {"scale": 2}},
}

TASKS: dict[str, dict[str, Any]] = {
    "embed": embed(),
    "embed dims": embed(dims=8),
    "embed dtype": embed(dtype="float16"),
    "embed prompt": embed(prompt="query: "),
    "embed max_tokens": embed(max_tokens=16),
    "embed windows": embed(window_tokens=8, overlap=2, windows="each"),
    "embed windows mean": embed(window_tokens=8, windows="mean"),
    "classify": of_model("classify", CLASSIFIER),
    "classify several": of_model("classify", CLASSIFIER, top_k=2, max_tokens=16),
    "classify spans": of_model("classify", TAGGER),
    "classify labels": of_model("classify", ENTAILER, labels=["a bill", "a praise"], multi_label=True),
    "score": of_model("score", RANKER, query_text="{title}"),
    "embed-sparse": of_model("embed-sparse", SPARSE),
    "embed-sparse few": of_model("embed-sparse", SPARSE, max_active_dims=5),
    "embed-tokens": of_model("embed-tokens", COLBERT),
    "embed-tokens float32": of_model("embed-tokens", COLBERT, dtype="float32", max_tokens=16),
    "generate": generate(),
    "generate system": generate(system="Be brief."),
    "generate messages": generate(messages=True),
    "generate max_tokens": generate(max_tokens=9, stop=["end", "."]),
    "generate draws": generate(temperature=0.7, top_k=20, top_p=0.9, seed=3),
    "generate beams": generate(beams=2),
    "generate schema": generate(response_schema=SCHEMA),
    "generate endpoint": generate(model="served", **SERVER),
    "summarize": summarize(),
    "summarize sentences": summarize(sentences=2, lead=False),
    "summarize reference": summarize(reference="gold"),
    "summarize groups": {**summarize(lead=False), "id": "topic", "group_by": "topic"},
    "summarize written": summarize(model=WRITER, max_tokens=9, window_tokens=32, prompt="In short:"),
    "summarize drawn": summarize(model=WRITER, temperature=0.7, seed=3),
    "summarize beams": summarize(model=WRITER, beams=2),
    "summarize endpoint": summarize(model="served", **SERVER),
    "answer": answer(),
    "answer by words": answer(by="words", k=3),
    "answer by meaning": answer(by="meaning", model=EMBEDDER),
    "answer reader": answer(reader=READER, null_threshold=0.5, answer_tokens=9),
    "answer generator": answer(generator=WRITER),
    "answer endpoint": answer(generator="served", **SERVER),
    "apply module": apply("kept.functions:count_words", fields=["title", "body"], columns={"words": "int64"}),
    "apply columns by itself": {**apply("kept.functions:Pieces", text=True), "text": "{title}: {body}"},
    "apply arguments": apply("kept.functions:Pieces", arguments={"shortest": 4}, fields=["body"]),
    "apply file": {**apply("functions.py:Pieces", text=True, fields=["topic"]), "text": "body"},
    "apply file settled": {**apply("functions.py:count_words", text=True), "text": "body", "keep": "n"},
    "dedup signatures": dedup("Signatures", template="body", fields=["body"], number=True),
    "dedup exact": dedup("exact_signatures", template="body", fields=["body"], number=True),
    "dedup bands": dedup("Bands", fields=["n", "body"], arguments={"threshold": 0.8}),
    "dedup pairs": {**dedup("pair_up", fields=[], text=True), "text": "{n}", "id": "topic", "group_by": "topic"},
    "dedup result": dedup("WithoutDuplicates", fields=["n", "gold"], arguments={"dropped": {"0": "eJwrAAAAIQAh"}}),
    "map": {"source": f"run:{OVER}", "text": "{:none}", "id": "id", "keep": "year", "task": "map",
            "params": {"fit": "FIT", "vector": "embedding", "text": "id"}},
    "augment preset": augment("range:0:1000", preset="mild"),
    "augment seed": augment("range:40:140", preset="aggressive", seed=5, epoch=2),
}  # fmt: skip

# Trainings are planned by the command, which settles what they read.
TRAININGS: dict[str, dict[str, Any]] = {
    "train": train(),
    "train label": train(label="price"),
    "train cosine": train(label="price", loss="cosine"),
    "train triplets": train(columns=["title", "body", "gold"], loss="triplet"),
    "train prompts": train(prompts={"title": "Q: "}),
    "train loss": train(loss="in-batch", temperature=0.1, dims=[16, 8]),
    "train steps": train(batch=4, epochs=2, evaluate_every=2, checkpoint_every=3),
    "train rate": train(learning_rate=1e-4, weight_decay=0.1, warmup=0.2, schedule="cosine", clip=2.0),
    "train seed": train(seed=3, max_tokens=16),
    "train held out": train(held_out=0.2, split_by="topic"),
    "train max_errors": train(max_errors="10%"),
}

# Loads are planned by the command, which completes them; no database is asked.
LOADS: dict[str, dict[str, Any]] = {
    "load": table(),
    "load a template": table("{title}: {body}"),
    "load mode": table(mode="skip"),
    "load halfvec": table(vector="halfvec"),
    "load language": table(language="german"),
    "load changed_only": table(changed_only=True),
    "load a schema": table(table="shop.notes"),
    "load embed": {**embed(), "to": TO},
    "load apply": {**apply("kept.functions:count_words", text=True, fields=["title"]), "text": "body", "id": "id",
                   "to": TO},
    "load reviews of 2023": preset("amazon-reviews-2023", "reviews-2023.jsonl"),
    "load reviews of 2014": preset("amazon-reviews-2014", "reviews-2014.jsonl"),
    "load products of 2023": preset("amazon-reviews-2023:metadata", "products-2023.jsonl"),
    "load reviews with products": preset(
        "amazon-reviews-2023", "reviews-2023.jsonl", products="product_metadata", metadata="reviews-2023.jsonl"
    ),
    "load reviews of unknown products": preset(
        "amazon-reviews-2023", "reviews-2023.jsonl", products="product_metadata", metadata="reviews-2023.jsonl",
        unknown_products="null", table="user_reviews",
    ),
}  # fmt: skip

# The plan of a study has the version of Optuna.
STUDIES: dict[str, dict[str, Any]] = {
    "tune": tune(),
    "tune file": tune("objectives.py:stepwise", code=CODE),
    "tune metrics": tune(metrics={"loss": "minimize", "speed": "maximize"}),
    "tune seed": tune(seed=5, generation=2),
    "tune sampler": tune(sampler={"name": "random"}),
    "tune sampler with options": tune(sampler={"name": "tpe", "multivariate": True}),
    "tune pruner": tune(pruner={"name": "median", "n_startup_trials": 2}),
    "tune start": tune(start=[{"x": 1.0, "n": 2, "way": "a"}]),
    "tune limits": tune(time_limit="2h", trial_time_limit="10min"),
    "tune fake task": tune("", task="shardmill.testing:FakeLong", space={"steps": {"low": 2, "high": 5}},
                           params={"keep_every": 1}, metrics={"sum": "maximize"}),
}  # fmt: skip
