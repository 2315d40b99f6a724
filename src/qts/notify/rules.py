"""Alert rules of rules.toml, for the built-in watcher, Prometheus and the documentation.

A rule compares one metric with a threshold: its growth in a window, or its current value. `qts run`
exports every metric in the file; a test checks that.
"""

from __future__ import annotations

import importlib.resources
import tomllib
from typing import Literal

import msgspec

from qts.notify.message import Severity

SCRAPES = 'up{job="qts"}'  # only Prometheus has this metric


class AlertRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Threshold of a metric. With `window_s` 0 it applies to the value, else to its growth."""

    name: str
    metric: str
    labels: dict[str, str] = {}
    window_s: int = 0
    op: Literal[">=", ">", "<"] = ">="
    threshold: float
    for_s: int = 0
    severity: Severity
    text: str
    action: str
    reported_by_event: bool = False  # an event already sends a message with details

    @property
    def selector(self) -> str:
        inside = ",".join(f'{name}="{value}"' for name, value in sorted(self.labels.items()))
        return self.metric + (f"{{{inside}}}" if inside else "")

    @property
    def expression(self) -> str:
        """Return the rule as a PromQL expression."""
        if self.window_s:
            value = f"sum(increase({self.selector}[{_duration(self.window_s)}]))"
        else:
            value = f"{'min' if self.op == '<' else 'max'}({self.selector})"
        return f"{value} {self.op} {self.threshold:g}"

    def holds(self, value: float) -> bool:
        if self.op == "<":
            return value < self.threshold
        return value > self.threshold if self.op == ">" else value >= self.threshold


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    rule: tuple[AlertRule, ...]


def _load_rules() -> tuple[AlertRule, ...]:
    text = importlib.resources.files("qts.notify").joinpath("rules.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), _Table).rule


RULES = _load_rules()


def _duration(seconds: int) -> str:
    return f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"


def prometheus_rules() -> dict[str, object]:
    """Return the rules as a Prometheus rule file."""
    rules = [
        {
            "alert": f"Qts{rule.name}",
            "expr": rule.expression,
            "for": _duration(rule.for_s) if rule.for_s else "0s",
            "labels": {"severity": rule.severity},
            "annotations": {"summary": f"QTS: {rule.text}", "action": rule.action},
        }
        for rule in RULES
    ]
    down = {
        "alert": "QtsDown",
        "expr": f"{SCRAPES} == 0 or absent({SCRAPES})",
        "for": "2m",
        "labels": {"severity": "critical"},
        "annotations": {
            "summary": "QTS does not answer",
            "action": "systemctl status qts; positions at the venue stay as they are",
        },
    }
    return {"groups": [{"name": "qts", "interval": "15s", "rules": [down, *rules]}]}


def alert_table() -> str:
    """Return the rules as the table of docs/operations.md."""
    rows = [
        f"| {rule.name} | `{rule.expression}`{_lasting(rule)} | {rule.severity} | {rule.action} |"
        for rule in RULES
    ]
    return "\n".join(("| alert | when | severity | do |", "|---|---|---|---|", *rows))


def _lasting(rule: AlertRule) -> str:
    return f" for {_duration(rule.for_s)}" if rule.for_s else ""
