"""Where the rows of a run go: the table of a plan, and how fields become columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from shardmill.core.errors import SpecError
from shardmill.plan import START, STOP, WINDOW, Plan
from shardmill.plan.salt import salt_of
from shardmill.plan.spec import Work
from shardmill.postgres.definition import DIGEST
from shardmill.postgres.links import Reference
from shardmill.postgres.presets import Field, TablePreset, find_preset
from shardmill.postgres.target import Conflict, TableColumn, Target, quoted
from shardmill.postgres.types import sql_type
from shardmill.sinks.parquet import is_vector


def target_of(plan: Plan, schema: pa.Schema, text: Sequence[str] = ()) -> Target:
    """The table for rows of this schema; `text` are the columns for full-text search."""
    work = plan.work
    assert work.to is not None
    schema_name, _, table = work.to.table.rpartition(".")
    made = [f for f in schema if f.name not in plan.kept and f.name not in (DIGEST, WINDOW, START, STOP)]
    vector = next((f for f in made if is_vector(f.type)), None)
    if (preset := preset_of(work)) is not None:
        if vector is None:
            raise SpecError(
                f"The schema {work.to.preset} has a column for vectors, and the task {work.task} makes none.",
                hint="Name a table instead: --table NAME",
            )
        known = preset.target(vector.type.list_size, schema=schema_name or "public", vector_type=work.to.vector)
        return replace(known, table=table, vector=vector.name, language=work.to.language)
    own = (DIGEST, vector.name) if vector is not None else (DIGEST,)
    return Target(
        schema=schema_name or "public",
        table=table,
        key=(*work.id, WINDOW) if WINDOW in schema.names else work.id,
        columns=tuple(TableColumn(f.name, sql_type(f.type)) for f in schema if f.name not in own),
        text=tuple(text),
        dims=vector.type.list_size if vector is not None else 0,
        vector=vector.name if vector is not None else "",
        vector_type=work.to.vector,
        language=work.to.language,
        made=() if vector is not None else tuple(f.name for f in made),
    )


def preset_of(work: Work) -> TablePreset | None:
    """The preset of the table, such as `amazon-reviews-2023:metadata`; None if none was named."""
    if work.to is None or not work.to.preset:
        return None
    name, _, part = work.to.preset.partition(":")
    preset = find_preset(name)
    return preset.metadata if part == "metadata" else preset.reviews


def reference_of(work: Work) -> Reference | None:
    """The reference of reviews to their products; None if no products were loaded."""
    if work.to is None or not work.to.products:
        return None
    preset = find_preset(work.to.preset)
    source = next(field.source for field in preset.reviews.fields if field.column.name == preset.product)
    schema, _, table = work.to.products.rpartition(".")
    name = f"{quoted(schema or 'public')}.{quoted(table)}"
    return Reference(source, preset.product, name, preset.metadata.key[0], work.to.unknown_products == "null")


@dataclass(frozen=True, slots=True)
class Destination:
    """Where and how rows are written."""

    url: str
    target: Target
    schema: pa.Schema
    fields: tuple[Field, ...] = ()
    reference: Reference | None = None
    mode: Conflict = "update"
    batch_rows: int = 512
    changed_only: bool = False
    # Part of each row's digest. Empty for vectors: a table never holds those of two models or of other parameters.
    salt: bytes = b""
    # False if rows of the source may change: it is then unknown which rows an earlier attempt did.
    resumes: bool = True

    @classmethod
    def of(cls, plan: Plan, schema: pa.Schema, batch_rows: int) -> Destination:
        to = plan.work.to
        assert to is not None
        target = target_of(plan, schema)
        return cls(
            url=to.url,
            target=target,
            schema=schema,
            fields=preset.fields if (preset := preset_of(plan.work)) is not None else (),
            reference=reference_of(plan.work),
            mode=to.mode,
            batch_rows=batch_rows,
            changed_only=to.changed_only,
            salt=b"" if target.vector else salt_of(plan),
            resumes=not plan.work.query,
        )
