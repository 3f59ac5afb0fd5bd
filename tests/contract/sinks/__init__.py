"""Stores that rows are delivered to."""
