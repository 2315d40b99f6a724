"""Tests of the terminal view."""
