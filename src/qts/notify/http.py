"""One POST and what its answer means, for every channel that is a web address."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from qts.notify.notifier import Declined, Gone, Later

LONGEST_PAUSE_S = 3600.0
_GONE = (404, 410)
_LATER = (408, 425, 429)


async def post(
    session: aiohttp.ClientSession, url: str, body: bytes, headers: Mapping[str, str], who: str
) -> None:
    """Errors name `who`, never the address: it may hold a token."""
    try:
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
            status, wish = answer.status, answer.headers.get("Retry-After", "")
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        # Not chained: the error's own text may name the address.
        raise Later(f"{who} cannot be reached ({type(error).__name__})") from None
    if 200 <= status < 300:
        return
    if status in _GONE:
        raise Gone(f"{who} answered {status}: the address is no more")
    if status in _LATER or status >= 500:
        raise Later(f"{who} answered {status}", _seconds(wish))
    raise Declined(f"{who} answered {status}")


def _seconds(wish: str) -> float:
    return min(float(wish), LONGEST_PAUSE_S) if wish.isdigit() and wish.isascii() else 0.0
