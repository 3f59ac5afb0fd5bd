"""gzip, zstd, bzip2 and xz: detects compression, finds seek points, and reads ranges of the content.

Discovery uses `detection` and `entries`; readers see only the content, through `sources.content`.
"""
