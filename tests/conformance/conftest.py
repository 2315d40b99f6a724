"""Fixtures of the conformance suites."""

from tests.conformance.brokers import kafka, nats, nats_server

__all__ = ["kafka", "nats", "nats_server"]
