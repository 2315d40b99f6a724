"""Commands: parse, call a package, print. Errors are one line; exit code 2 means refused input."""

from qts.cli.main import main

__all__ = ["main"]
