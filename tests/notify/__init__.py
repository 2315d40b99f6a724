"""Tests of qts.notify."""
