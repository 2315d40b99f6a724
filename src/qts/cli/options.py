"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings file (TOML).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
