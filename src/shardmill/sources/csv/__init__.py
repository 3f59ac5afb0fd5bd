"""CSV and TSV: records out of lines, and cuts that no quoted newline can fool.

`sources.formats` names `source` as the reader; only `sources.spans` imports it besides, for headers.
"""
