"""Avro files: their blocks, their schema as Arrow types, and the reader of the format."""

from __future__ import annotations
