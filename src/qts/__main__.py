"""`python -m qts` is the `qts` command."""

from qts.cli import main

main()
