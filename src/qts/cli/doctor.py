"""`qts doctor`: what this machine offers, and what it means for QTS."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from qts.cli import host
from qts.cli.console import ConfigOption, JsonOption, print_json
from qts.cli.host import Host
from qts.domain import QtsError
from qts.machine import CpuTopology, detect_topology

if TYPE_CHECKING:
    from qts.config import Config

Status = Literal["ok", "note", "problem"]

NOT_VISIBLE = "not visible here"
CORES_FOR_THREADS = 4  # with fewer, threads for each component mostly wait for a CPU
GIB = 1 << 30
NETWORK_FILE_SYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "ceph",
    "glusterfs",
    "lustre",
    "fuse.sshfs",
}


class DoctorRow(msgspec.Struct, frozen=True):
    """One finding; `follows` is what it means for QTS."""

    name: str
    status: Status
    found: str
    follows: str = ""


class DoctorReport(msgspec.Struct, frozen=True):
    verdict: Literal["OK", "PROBLEM"]
    rows: list[DoctorRow]


def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> int:
    """Check this machine.

    Shows what it offers and what that means for QTS; changes nothing. Exit code 1 when something
    that QTS needs is missing.

    Example: qts doctor --json
    """
    report = examine(config)
    if as_json:
        print_json(report)
    else:
        _print(report)
    return 0 if report.verdict == "OK" else 1


def examine(config_file: Path | None, root: Path = Path("/")) -> DoctorReport:
    host, cpus = Host(root), detect_topology(root)
    rows = [
        DoctorRow("python", "ok", f"{platform.python_version()} ({sys.executable})"),
        native_core(),
    ]
    settings, config = _settings(config_file)
    rows += [settings, *servers(config), *home(config, host)]
    rows += [cores(cpus), cpu(cpus, host), memory(host), compiler(), clock(host)]
    rows += [wall_clock(), realtime(), memory_lock(), open_files()]
    problem = any(row.status == "problem" for row in rows)
    return DoctorReport("PROBLEM" if problem else "OK", rows)


def native_core() -> DoctorRow:
    try:
        native = importlib.import_module("qts._native")
    except ImportError as error:
        return DoctorRow(
            "native core", "problem", str(error), "build it: pip install . needs a C++20 compiler"
        )
    source = getattr(native, "clock_source", None)
    clock = f", clock: {source() if callable(source) else source}" if source else ""
    return DoctorRow("native core", "ok", f"loaded{clock}")


def _settings(file: Path | None) -> tuple[DoctorRow, Config | None]:
    try:
        from qts.config import resolve

        effective = resolve(file, os.environ)
    except QtsError as error:
        lines = str(error).splitlines()
        return DoctorRow(
            "settings", "problem", lines[0], "qts config check lists all problems"
        ), None
    return DoctorRow("settings", "ok", str(effective.file or "defaults, no file")), effective.config


def servers(config: Config | None) -> Iterator[DoctorRow]:
    """Check that each server has a program to start or the URL of a running one."""
    from qts.embedded import find_binaries

    found = {binary.name: binary for binary in find_binaries()}
    for name, table in (("postgres", "database"), ("valkey", "cache")):
        binary = found.get(name)
        if config is not None and getattr(config, table).url:
            yield DoctorRow(
                name, "ok", f"{table}.url is set", "that server is used, none is started"
            )
        elif binary:
            yield DoctorRow(name, "ok", f"{binary.version} at {binary.path}", "QTS starts it")
        else:
            advice = f'pip install "qts[embedded]", or set {table}.url'
            yield DoctorRow(name, "problem", "no program and no URL", advice)


def home(config: Config | None, host: Host) -> Iterator[DoctorRow]:
    from qts.embedded import default_home

    path = (config and config.home) or default_home(os.environ)
    path = path.expanduser().absolute()
    there = next(place for place in (path, *path.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield DoctorRow(
            "home", "problem", f"{path}: {there} is not writable", "choose another with QTS_HOME"
        )
    else:
        yield DoctorRow(
            "home", "ok", str(path), "" if there == path else "created at the first start"
        )
    free = shutil.disk_usage(there).free
    shown = f"{free / GIB:.1f} GiB free"
    if free < GIB / 4:
        yield DoctorRow(
            "disk", "problem", shown, "PostgreSQL stops when the disk is full: free some space"
        )
    elif free < 2 * GIB:
        yield DoctorRow("disk", "note", shown, "enough for days of recorded ticks, not for months")
    else:
        yield DoctorRow("disk", "ok", shown)
    yield file_system(there.resolve(), host)


def file_system(path: Path, host: Host) -> DoctorRow:
    kind = host.file_system(path)
    if kind is None:
        return DoctorRow("file system", "note", NOT_VISIBLE)
    if kind in NETWORK_FILE_SYSTEMS:
        advice = "a network file system can break PostgreSQL's guarantees: choose a local QTS_HOME"
        return DoctorRow("file system", "note", kind, advice)
    return DoctorRow("file system", "ok", kind)


def cores(cpus: CpuTopology) -> DoctorRow:
    quota = f"a quota of {cpus.quota:g}" if cpus.quota else "no quota"
    found = f"{cpus.usable} usable of {os.cpu_count()} ({len(cpus.cpus)} by affinity, {quota})"
    if cpus.usable >= CORES_FOR_THREADS:
        layout = f"threads for up to {cpus.usable - 1} components, fused beyond"
        return DoctorRow("cores", "ok", found, f"router layout: {layout}")
    return DoctorRow("cores", "note", found, "router layout: fused, components share workers")


def cpu(cpus: CpuTopology, host: Host) -> DoctorRow:
    model = host.cpu_model() or platform.processor() or platform.machine()
    if not host.shows_topology():
        return DoctorRow("cpu", "note", f"{model}, cache groups {NOT_VISIBLE}")
    groups, nodes = len(cpus.groups), len(cpus.nodes)
    found = f"{model}, {groups} L3 group(s), {nodes} NUMA node(s)"
    if groups > 1 or nodes > 1:
        return DoctorRow("cpu", "note", found, "router threads are placed in one group if they fit")
    return DoctorRow("cpu", "ok", found)


def memory(host: Host) -> DoctorRow:
    total, limit = host.memory_bytes(), host.memory_limit()
    known = [size for size in (total, limit) if size]
    if not known:
        return DoctorRow("memory", "note", NOT_VISIBLE)
    found = f"{min(known) / GIB:.1f} GiB" + (
        " (cgroup limit)" if limit and limit == min(known) else ""
    )
    if min(known) < GIB:
        return DoctorRow("memory", "note", found, "tight: lower embedded.valkey_memory_mb")
    return DoctorRow("memory", "ok", found)


def compiler() -> DoctorRow:
    if found := host.compiler():
        return DoctorRow("compiler", "ok", f"{found[1]} ({found[0]})")
    return DoctorRow("compiler", "note", "no C++ compiler", "needed only to build QTS from source")


def clock(host: Host) -> DoctorRow:
    source, invariant = host.clocksource(), host.invariant_tsc()
    if source is None:
        return DoctorRow("clock", "note", NOT_VISIBLE, "time stamps use a system call")
    counter = {True: "invariant TSC", False: "TSC may drift or stop", None: "no TSC"}[invariant]
    found = f"kernel clock source {source}, {counter}"
    if invariant and source == "tsc":
        return DoctorRow("clock", "ok", found, "a time stamp costs nanoseconds")
    return DoctorRow("clock", "note", found, "time stamps are slower and latencies coarser")


def wall_clock() -> DoctorRow:
    synchronised = host.time_synchronised()
    if synchronised:
        return DoctorRow("wall clock", "ok", "synchronised")
    found = NOT_VISIBLE if synchronised is None else "not synchronised, according to the kernel"
    return DoctorRow(
        "wall clock",
        "note",
        found,
        "venues reject signed requests when it is seconds off: run NTP",
    )


def realtime() -> DoctorRow:
    allowed = host.realtime_allowed()
    if allowed:
        return DoctorRow("real-time priority", "ok", "allowed")
    found = NOT_VISIBLE if allowed is None else "not allowed"
    return DoctorRow(
        "real-time priority", "note", found, "other programs can delay P0; raise it with ulimit -r"
    )


def memory_lock() -> DoctorRow:
    limit = _limit("RLIMIT_MEMLOCK")
    if limit is None:
        return DoctorRow("memory lock", "note", NOT_VISIBLE)
    if limit >= GIB / 16:
        return DoctorRow("memory lock", "ok", _size(limit))
    return DoctorRow(
        "memory lock",
        "note",
        _size(limit),
        "rings may be paged out when memory is short; ulimit -l",
    )


def open_files() -> DoctorRow:
    limit = _limit("RLIMIT_NOFILE")
    if limit is None:
        return DoctorRow("open files", "note", NOT_VISIBLE)
    shown = "unlimited" if limit == float("inf") else f"{limit:.0f}"
    if limit < 1024:
        return DoctorRow(
            "open files", "note", shown, "few: streams and pools may run out; ulimit -n 4096"
        )
    return DoctorRow("open files", "ok", shown)


def _limit(name: str) -> float | None:
    try:
        import resource
    except ImportError:  # not a Unix
        return None
    soft, _ = resource.getrlimit(getattr(resource, name))
    return float("inf") if soft == resource.RLIM_INFINITY else float(soft)


def _size(limit: float) -> str:
    return "unlimited" if limit == float("inf") else f"{limit / (1 << 20):.0f} MiB"


def _print(report: DoctorReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "note": "yellow", "problem": "bold red"}
    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("", "status", "found", "what it means"):
        table.add_column(title, overflow="fold")
    for row in report.rows:  # Text: brackets are not markup
        status = Text(row.status, colours[row.status])
        table.add_row(row.name, status, Text(row.found), Text(row.follows))
    console.print(table)
    console.print(f"Verdict: {report.verdict}")
