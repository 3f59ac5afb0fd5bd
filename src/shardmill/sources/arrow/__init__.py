"""Arrow IPC files and streams, folders of `save_to_disk`, and rows that come as Arrow batches (Parquet too).

`sources.formats` names `source` as the reader; discovery asks `saved`, and `sources.parquet` shares `rows`.
"""
