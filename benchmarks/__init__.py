"""Benchmarks, one module for each package: every figure beside that of a peer."""

PACKAGES = ("router", "cache", "feed", "outbox", "events", "backtest", "market", "optimise")

__all__ = ["PACKAGES"]
