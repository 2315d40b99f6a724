"""The best bid and ask of a snapshot, in whichever words its venue tells them."""

from __future__ import annotations

from collections.abc import Mapping

_BID = ("inter2_bidp", "bidp1", "BIDP1", "bid_price")
_ASK = ("inter2_askp", "askp1", "ASKP1", "ask_price")


def best_quotes(raw: Mapping[str, object]) -> tuple[float, float]:
    """Bid and ask; 0 where it tells none."""
    return _first(raw, _BID), _first(raw, _ASK)


def _first(raw: Mapping[str, object], names: tuple[str, ...]) -> float:
    for name in names:
        if name in raw:
            try:
                return max(0.0, float(str(raw[name])))
            except ValueError:
                return 0.0
    return 0.0
