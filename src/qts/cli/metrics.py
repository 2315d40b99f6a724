"""`qts ops metrics`: files for Prometheus and Grafana."""

from __future__ import annotations

import json
from typing import Any

import typer

from qts.cli.console import JsonOption, print_json
from qts.cli.groups import command_group

app = command_group("Files for Prometheus and Grafana.", "qts ops metrics rules > alerts.yaml")


@app.command()
def rules(as_json: JsonOption = False) -> None:
    """Print the alert rules as a rule file of Prometheus.

    Example: qts ops metrics rules > /etc/prometheus/qts.yaml
    """
    from qts.notify import prometheus_rules

    found = prometheus_rules()
    if as_json:
        print_json(found)
    else:
        typer.echo("# Made by: qts ops metrics rules")
        typer.echo(to_yaml(found))


@app.command()
def grafana() -> None:
    """Print the dashboard as a file that Grafana imports.

    Example: qts ops metrics grafana > qts.json
    """
    from qts.notify import grafana_dashboard

    print_json(grafana_dashboard())


def to_yaml(value: Any, depth: int = 0) -> str:
    """Render maps, lists and texts; texts are quoted as in JSON, which YAML includes."""
    pad = "  " * depth
    if isinstance(value, dict):
        lines = []
        for key, inside in value.items():
            nested = isinstance(inside, dict | list) and inside
            gap = "\n" if nested else " "
            lines.append(f"{pad}{key}:{gap}{to_yaml(inside, depth + 1)}")
        return "\n".join(lines)
    if isinstance(value, list):
        items = [to_yaml(item, depth + 1) for item in value]
        return "\n".join(f"{pad}- {item.lstrip()}" for item in items)
    return json.dumps(value, ensure_ascii=False)
