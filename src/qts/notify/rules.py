"""The alerts of rules.toml: from it come the built-in watch, the Prometheus rules and their page.

A rule asks for the figure of one metric: how much it grew in a window, or what it is now. Every
metric named there is exported by `qts run`; a test holds that.
"""

from __future__ import annotations

import importlib.resources
import tomllib
from typing import Literal

import msgspec

from qts.notify.message import Severity

SCRAPES = 'up{job="qts"}'  # the one figure that only Prometheus can have


class AlertRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`window_s` 0: the figure itself, its greatest where there are several."""

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
    told_by_event: bool = False  # the owner hears of it from the event itself, with its details

    @property
    def selector(self) -> str:
        inside = ",".join(f'{name}="{value}"' for name, value in sorted(self.labels.items()))
        return self.metric + (f"{{{inside}}}" if inside else "")

    @property
    def expression(self) -> str:
        """In the language of Prometheus."""
        if self.window_s:
            figure = f"sum(increase({self.selector}[{_span(self.window_s)}]))"
        else:
            figure = f"{'min' if self.op == '<' else 'max'}({self.selector})"
        return f"{figure} {self.op} {self.threshold:g}"

    def holds(self, figure: float) -> bool:
        if self.op == "<":
            return figure < self.threshold
        return figure > self.threshold if self.op == ">" else figure >= self.threshold


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    rule: tuple[AlertRule, ...]


def _table() -> tuple[AlertRule, ...]:
    text = importlib.resources.files("qts.notify").joinpath("rules.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), _Table).rule


RULES = _table()


def _span(seconds: int) -> str:
    return f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"


def prometheus_rules() -> dict[str, object]:
    """As a rule file of Prometheus has it."""
    rules = [
        {
            "alert": f"Qts{rule.name}",
            "expr": rule.expression,
            "for": _span(rule.for_s) if rule.for_s else "0s",
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
            "summary": "QTS: it does not answer",
            "action": "systemctl status qts; positions at the venue stay as they are",
        },
    }
    return {"groups": [{"name": "qts", "interval": "15s", "rules": [down, *rules]}]}


def alert_table() -> str:
    """The rules as the table of docs/operations.md."""
    rows = [
        f"| {rule.name} | `{rule.expression}`{_lasting(rule)} | {rule.severity} | {rule.action} |"
        for rule in RULES
    ]
    return "\n".join(("| alert | when | severity | do |", "|---|---|---|---|", *rows))


def _lasting(rule: AlertRule) -> str:
    return f" for {_span(rule.for_s)}" if rule.for_s else ""
