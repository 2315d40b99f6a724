"""Simulated markets without I/O: a function of the seed, the time and injected events."""
