"""The import ladder, read from the source: who may import whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Top to bottom. A room imports only what stands below it; rooms on one line never each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("cli",),
    ("verify",),
    ("app",),
    ("config",),
    ("dashboard",),
    ("backtest",),
    ("pipeline", "simulators"),
    ("orders",),
    ("risk", "notify", "strategies"),
    ("router", "outbox", "brokers", "feed", "cache"),
    ("events", "venues", "database", "embedded"),
    ("domain",),
    ("telemetry", "machine"),
    ("_exports",),
)
LEVEL = {room: level for level, line in enumerate(LAYERS) for room in line}

# The composition root names adapters, which are inner files of other rooms; everybody else
# comes in through the front door.
MAY_REACH_INSIDE = {"app"}

# The files that may touch the C++ core.
NATIVE_USERS = {
    "cli/doctor.py",
    "events/lanes.py",
    "events/process/protocol.py",
    "pipeline/process_main.py",
    "risk/micro_risk_loop.py",
    "router/results.py",
    "router/assemble.py",
    "router/handlers.py",
    "router/journal.py",
    "router/router.py",
    "telemetry/latency.py",
    "verify/isolation.py",
}


@dataclass(frozen=True)
class Import:
    file: str
    line: int
    module: str


def violations(package: Path) -> list[str]:
    """Every import in the package that the ladder forbids, as `file:line what is wrong`."""
    return [
        f"{found.file}:{found.line} {wrong}"
        for path in sorted(package.rglob("*.py"))
        for found in _imports(package, path)
        if (wrong := _wrong(found))
    ]


def _wrong(found: Import) -> str | None:
    importer = _room(found.file)
    target, _, inside = found.module.removeprefix("qts").lstrip(".").partition(".")
    if not target or importer in ("", "__main__"):
        return None  # the package itself: its face may show any room
    if target == "_native":
        allowed = found.file in NATIVE_USERS
        return (
            None if allowed else "touches _native; only " + ", ".join(sorted(NATIVE_USERS)) + " may"
        )
    if target == importer:
        return None
    if importer not in LEVEL or target not in LEVEL:
        return f"{importer if importer not in LEVEL else target} is not a room of the ladder"
    if LEVEL[importer] >= LEVEL[target]:
        return f"{importer} imports {target}, which does not stand below it"
    if inside and importer not in MAY_REACH_INSIDE:
        return f"reaches inside {target} ({found.module}); import it from qts.{target}"
    return None


def _room(file: str) -> str:
    first = file.split("/")[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def _imports(package: Path, path: Path) -> Iterator[Import]:
    file = path.relative_to(package).as_posix()
    dotted = ["qts", *path.relative_to(package).with_suffix("").parts]
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
