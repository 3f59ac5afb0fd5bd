"""Fixtures of the engines' tests."""

from tests.engines.sshd import hosts

__all__ = ["hosts"]
