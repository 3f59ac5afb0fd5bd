"""Reads Arrow IPC files and streams, folders of `save_to_disk`, and rows in Arrow batches (also from Parquet).

`sources.formats` names `source` as the reader; discovery uses `saved`, and `sources.parquet` uses `rows`.
"""
