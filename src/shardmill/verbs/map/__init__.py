"""Maps: every item of a result as a point, near the points of items like it.

Design: docs/design/maps.md
"""

from __future__ import annotations

from shardmill.plugins.base import USES, Verb

VERB = Verb(
    name="map",
    summary="Map the vectors of a result, and write a page that shows them.",
    about="The vectors are those of an embed run, of Parquet files or of a query.",
    family=USES,
    resumes=True,
    examples=(
        "shardmill map runs/reviews --out maps/reviews",
        "shardmill map runs/reviews --out maps/reviews --mark questions.txt",
        "shardmill map runs/reviews --out maps/reviews --points more.jsonl",
        "shardmill map vectors.parquet --vector embedding --text body --keep price,sold --out maps/shop",
    ),
    call='shardmill.map("runs/reviews", out="maps/reviews", marks=["battery dies after an hour"])',
    options="shardmill.verbs.map.options:MapOptions",
    start="shardmill.verbs.map.start:start",
    show="shardmill.verbs.map.show:show_map",
    task="shardmill.verbs.map.task:MapTask",
    steps={"map": "shardmill.verbs.map.drawing:draw_map"},
    report="shardmill.verbs.map.report:read_map",
    shows_vectors_of=True,
    beyond_item="the place of an item depends on all others",
    folders=("points", "vectors"),
)
