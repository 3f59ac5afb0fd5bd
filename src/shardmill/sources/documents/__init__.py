"""Documents: one item per file, of folders and of archives.

`source` is the reader, `names` says by its name what a file is, `archives` lists and reads members. `parsing` gives the
text of one document; what is not plain text is parsed in processes with limits of time and memory.

Design: docs/design/documents-memory-and-parts.md
"""
