"""gzip, zstd, bzip2 and xz: how a file is compressed, where decompression may begin, and its content by range.

Discovery asks `detection` and `entries`; readers see only the content, by `sources.content`.
"""
