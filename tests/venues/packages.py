"""Packages that add a venue, installed into a folder without a network."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "venue"


def install(site: Path, package: str, version: str, entry_points: dict[str, str]) -> None:
    """Write what an installer writes of a package."""
    info = site / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = [f"{name} = {value}" for name, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[qts.venues]", *lines]) + "\n")


def install_example(site: Path) -> Path:
    """Install examples/venue as its pyproject.toml says; return the folder for PYTHONPATH."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(site, project["name"], project["version"], project["entry-points"]["qts.venues"])
    shutil.copytree(EXAMPLE / "memory_venue", site / "memory_venue")
    return site
