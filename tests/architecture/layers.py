"""Import layers: which package may import which, checked in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Top to bottom. A package imports only lower layers; packages of one layer never each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("cli", "testing"),
    ("verify",),
    ("app",),
    ("config", "client"),
    ("dashboard",),
    ("optimise", "explain"),
    ("backtest", "roles"),
    ("pipeline", "simulators"),
    ("orders",),
    ("risk", "notify", "strategies", "history"),
    ("router", "outbox", "brokers", "feed", "cache"),
    ("events", "venues", "database", "embedded"),
    ("domain",),
    ("telemetry", "machine"),
    ("_exports",),
)
LEVEL = {package: level for level, layer in enumerate(LAYERS) for package in layer}

# The composition root names adapters, which are inner modules of other packages; all other
# packages import public names only.
MAY_IMPORT_INNER_MODULES = {"app"}

# The files that may import the C++ core.
NATIVE_USERS = {
    "backtest/bar_tape_player.py",
    "backtest/compiled_orders.py",
    "backtest/order_log.py",
    "backtest/tick_players.py",
    "cli/doctor.py",
    "events/lanes.py",
    "events/lane_child.py",
    "pipeline/process_main.py",
    "risk/micro_risk_loop.py",
    "router/native_router.py",
    "router/handlers.py",
    "router/journal.py",
    "router/market.py",
    "router/market_feed.py",
    "router/router.py",
    "telemetry/metrics.py",
    "verify/isolation.py",
}


@dataclass(frozen=True)
class Import:
    file: str
    line: int
    module: str


def violations(source: Path) -> list[str]:
    """Return every forbidden import under `source`, as `file:line reason`."""
    return [
        f"{found.file}:{found.line} {reason}"
        for path in sorted(source.rglob("*.py"))
        for found in _imports(source, path)
        if (reason := _violation(found))
    ]


def _violation(found: Import) -> str | None:
    importer = _package(found.file)
    target, _, inside = found.module.removeprefix("qts").lstrip(".").partition(".")
    if not target or importer in ("", "__main__"):
        return None  # qts/__init__.py may export names of any package
    if target == "_native":
        allowed = found.file in NATIVE_USERS
        return (
            None if allowed else "imports _native; only " + ", ".join(sorted(NATIVE_USERS)) + " may"
        )
    if target == importer:
        return None
    if importer not in LEVEL or target not in LEVEL:
        return f"{importer if importer not in LEVEL else target} is not a package of LAYERS"
    if LEVEL[importer] >= LEVEL[target]:
        return f"{importer} imports {target}, which is not in a lower layer"
    if inside and importer not in MAY_IMPORT_INNER_MODULES:
        return f"imports an inner module of {target} ({found.module}); use qts.{target}"
    return None


def _package(file: str) -> str:
    first = file.split("/")[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def _imports(source: Path, path: Path) -> Iterator[Import]:
    file = path.relative_to(source).as_posix()
    dotted = ["qts", *path.relative_to(source).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "qts":
                    yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            origin = ".".join(dotted[: len(dotted) - node.level]) if node.level else ""
            module = ".".join(part for part in (origin, node.module) if part)
            if module == "qts":  # from qts import telemetry
                for alias in node.names:
                    yield Import(file, node.lineno, f"qts.{alias.name}")
            elif module.split(".")[0] == "qts":
                yield Import(file, node.lineno, module)
