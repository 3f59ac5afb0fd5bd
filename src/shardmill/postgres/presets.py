"""Schemas of well-known data: which field becomes which column. `--schema amazon-reviews-2023` selects one.

A field is read from the source as a plain type; an SQL expression converts it to the column's type when it is inserted.
The expressions accept any value: what does not fit becomes NULL, so that no batch fails because of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardmill.errors import SpecError, nearest
from shardmill.postgres.target import TableColumn, Target


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the source, the column it fills, and the SQL between them; `kept` is the type that --keep reads."""

    source: str
    kept: Literal["string", "int64", "double", "bool"]
    column: TableColumn
    sql: str = "{}"

    def expression(self, value: str) -> str:
        """The SQL that converts `value`, itself an SQL expression, to the column's type.

        >>> Field("t", "int64", TableColumn("at", "date"), "to_timestamp({})").expression('s."t"')
        'to_timestamp(s."t")'
        """
        return self.sql.replace("{}", value)

    @property
    def keep(self) -> str:
        """The field in the syntax of --keep."""
        return f"{self.source}:{self.kept}"


@dataclass(frozen=True, slots=True)
class TablePreset:
    """A table: its fields and key, the fields that are embedded (`text`), the columns that are `searched`."""

    table: str
    fields: tuple[Field, ...]
    key: tuple[str, ...]
    text: str
    searched: tuple[str, ...]

    def target(
        self, dims: int, *, schema: str = "public", vector_type: Literal["vector", "halfvec"] = "vector"
    ) -> Target:
        columns = tuple(field.column for field in self.fields)
        return Target(schema, self.table, self.key, columns, self.searched, dims, vector_type=vector_type)

    @property
    def keep(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(field.keep for field in self.fields))


@dataclass(frozen=True, slots=True)
class Preset:
    """Reviews, their products, and the column of a review that refers to the key of its product."""

    reviews: TablePreset
    metadata: TablePreset
    product: str


# A list or an object of the source arrives as JSON, any other value unchanged; its first and last characters tell.
_IS_JSON = r"""{} ~ '^(\[\s*(["{\[0-9-]|true|false|null).*\]|\[\s*\]|\{\s*".*\}|\{\s*\})$'"""
_JSON = f"CASE WHEN {_IS_JSON} THEN replace({{}}, '\\u0000', '')::jsonb ELSE to_jsonb({{}}) END"
_PRICE = "CASE WHEN {} ~ '^\\s*\\$?\\s*[0-9]{1,9}(\\.[0-9]{1,9})?\\s*$' THEN translate({}, '$ ', '')::numeric END"
_SECONDS = "CASE WHEN {} BETWEEN -62135596800 AND 253402300799 THEN to_timestamp({}) END"
_MILLISECONDS = "CASE WHEN {} BETWEEN -62135596800000 AND 253402300799999 THEN to_timestamp({} / 1000.0) END"


def _text(source: str, name: str = "") -> Field:
    return Field(source, "string", TableColumn(name or source, "text"))


def _json(source: str, name: str = "") -> Field:
    return Field(source, "string", TableColumn(name or source, "jsonb"), _JSON)


def _real(source: str, name: str = "") -> Field:
    return Field(source, "double", TableColumn(name or source, "real"))


def _count(source: str, name: str = "") -> Field:
    return Field(source, "int64", TableColumn(name or source, "bigint"))


def _time(source: str, sql: str, name: str = "") -> Field:
    return Field(source, "int64", TableColumn(name or source, "timestamp with time zone"), sql)


def _price(source: str) -> Field:
    return Field(source, "string", TableColumn(source, "numeric(12,2)"), _PRICE)


# Reviews of 2023 have no id. Rows with the same user, product variant and time are the same review.
_REVIEWS_2023 = TablePreset(
    "user_reviews",
    (
        _text("user_id"),
        _text("asin"),
        _time("timestamp", _MILLISECONDS),
        _text("parent_asin"),
        _real("rating"),
        _text("title"),
        _text("text"),
        _json("images"),
        _count("helpful_vote"),
        Field("verified_purchase", "bool", TableColumn("verified_purchase", "boolean")),
    ),
    key=("user_id", "asin", "timestamp"),
    text="title,text",
    searched=("title", "text"),
)
_METADATA_2023 = TablePreset(
    "product_metadata",
    (
        _text("parent_asin"),
        _text("main_category"),
        _text("title"),
        _real("average_rating"),
        _count("rating_number"),
        _json("features"),
        _json("description"),
        _price("price"),
        _json("images"),
        _json("videos"),
        _text("store"),
        _json("categories"),
        _json("details"),
        _json("bought_together"),
    ),
    key=("parent_asin",),
    text="title,features,description",
    searched=("title", "features", "description"),
)
# Reviews of 2014 get the column names of 2023, so that the same SQL reads both. A person reviews a product once, so the
# product's id is part of the key. The reference to the product is a separate column, which may be null.
_REVIEWS_2014 = TablePreset(
    "user_reviews",
    (
        _text("reviewerID", "user_id"),
        _text("asin"),
        _time("unixReviewTime", _SECONDS, "timestamp"),
        _real("overall", "rating"),
        _text("summary", "title"),
        _text("reviewText", "text"),
        _json("helpful"),
        _text("asin", "parent_asin"),
    ),
    key=("user_id", "asin"),
    text="summary,reviewText",
    searched=("title", "text"),
)
_METADATA_2014 = TablePreset(
    "product_metadata",
    (
        _text("asin"),
        _text("title"),
        _text("description"),
        _price("price"),
        _text("brand"),
        _text("imUrl", "image_url"),
        _json("categories"),
        _json("salesRank", "sales_rank"),
        _json("related"),
    ),
    key=("asin",),
    text="title,description",
    searched=("title", "description"),
)
PRESETS = {
    "amazon-reviews-2023": Preset(_REVIEWS_2023, _METADATA_2023, "parent_asin"),
    "amazon-reviews-2014": Preset(_REVIEWS_2014, _METADATA_2014, "parent_asin"),
}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise SpecError(f"Unknown schema {name!r}.", hint=nearest(name, list(PRESETS)))
    return PRESETS[name]
