"""Reads CSV and TSV: parses records from lines, and finds cuts that quoted newlines cannot fool.

`sources.formats` names `source` as the reader; only `sources.spans` imports it as well, for headers.
"""
