"""What the owner is told: one message for each event or alert, the same on every channel."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

SCHEMA_VERSION = 1
LONGEST_LINK = 512
LONGEST_TEXT = 400  # of a title or a body; a venue's own words may be longer

Severity = Literal["info", "warning", "critical"]
MARKS = {"info": "", "warning": "[warning] ", "critical": "[CRITICAL] "}


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """As it is kept and sent; `deep_link` is a path on the dashboard, never an address."""

    schema_version: int = SCHEMA_VERSION
    event_id: UUID
    type: str
    occurred_at: datetime
    severity: Severity = "info"
    title: str
    body: str
    deep_link: str = "/"
    data: dict[str, Any] = {}

    def __post_init__(self) -> None:
        link = self.deep_link
        if not link.startswith("/") or "//" in link or "\\" in link or len(link) > LONGEST_LINK:
            raise ValueError(
                f"deep link {link[:60]!r} must be a path such as /orders/1, without // and of at "
                f"most {LONGEST_LINK} characters"
            )


def short(text: str, longest: int = LONGEST_TEXT) -> str:
    """In one line, cut where it is too long."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def as_text(messages: Sequence[Message], longest: int) -> str:
    """For channels that show plain text; several become a list, the worst first."""
    worst_first = sorted(messages, key=lambda each: -list(MARKS).index(each.severity))
    if len(messages) == 1:
        (one,) = messages
        return f"{MARKS[one.severity]}{one.title}\n{one.body}"[:longest]
    lines = [f"QTS: {len(messages)} messages"]
    room = longest - len(lines[0]) - len("\n… and 999,999 more")
    for shown, each in enumerate(worst_first):
        line = f"- {MARKS[each.severity]}{each.title}: {each.body}"
        room -= len(line) + 1
        if room < 0:
            lines.append(f"… and {len(messages) - shown:,} more")
            break
        lines.append(line)
    return "\n".join(lines)
