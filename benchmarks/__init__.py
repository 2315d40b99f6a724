"""Benchmarks, one module for each room: every figure beside the peer it is compared with."""

ROOMS = ("router", "cache", "feed", "outbox", "events", "backtest")

__all__ = ["ROOMS"]
