"""Reads files that are one JSON array. JSON Lines are in `sources.lines`.

`sources.formats` names `array` as the reader; nothing else imports this package.
"""
