"""Pickles, parsed without executing code."""
