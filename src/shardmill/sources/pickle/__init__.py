"""Pickles, parsed without executing code.

`sources.formats` names `source` as the reader; nothing else imports this package.
"""
