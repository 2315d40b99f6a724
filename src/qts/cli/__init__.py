"""Thin verbs: parse, call a room, print. Errors are one line; exit code 2 means refused input."""

from qts.cli.main import main

__all__ = ["main"]
