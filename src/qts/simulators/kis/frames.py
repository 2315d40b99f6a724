"""KIS WebSocket records: trades, order books and fill notices, field by field."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import date

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from qts.simulators.kis.orders import ORGNO, KisOrderNotice
from qts.simulators.kis.quotes import KisQuoteApi
from qts.simulators.market.markets import StockMarket
from qts.simulators.market.rules import AFTER_MARKET_SINCE, DAY_S, hhmmss, noise, yyyymmdd

TRADE, BOOK, NOTICE, PAPER_NOTICE = "H0STCNT0", "H0STASP0", "H0STCNI0", "H0STCNI9"
OVERSEAS_NOTICE, OVERSEAS_PAPER_NOTICE = "H0GSCNI0", "H0GSCNI9"
_MARKET_CLASS = {"opening": "1", "after": "3", "closing": "5", "close": "5"}


def frame(tr_id: str, records: Sequence[Sequence[str]], encrypt: str | None = None) -> str:
    """Return `flag|TR_ID|NNN|fields`; there is no separator between records."""
    text = "^".join(field for record in records for field in record)
    if encrypt is None:
        return f"0|{tr_id}|{len(records):03}|{text}"
    return f"1|{tr_id}|{len(records):03}|{encrypt}"


def widened(record: list[str], extra: int) -> list[str]:
    """Add or remove fields, as a change at the venue does."""
    return record + ["0"] * extra if extra >= 0 else record[:extra]


class Records:
    def __init__(self, market: StockMarket, quotes: KisQuoteApi) -> None:
        self._market = market
        self._quotes = quotes

    def trades(self, i: int) -> list[list[str]]:
        """Return the trade of this second, split into one to four records."""
        m = self._market
        size, volume, value = int(m.size[i]), int(m.volume[i]), int(m.value[i])
        count = min(size, 1 + int(noise(m.time * 4099 + i) * 4))
        parts = [size // count + (n < size % count) for n in range(count)]
        records = []
        for n, part in enumerate(parts):
            later = sum(parts[n + 1 :])
            records.append(self._trade(i, part, volume - later, value - later * int(m.price[i])))
        return records

    def _trade(self, i: int, size: int, volume: int, value: int) -> list[str]:
        m, price = self._market, int(self._market.price[i])
        base, book = int(m.base[i]), m.book(i)
        buys, trades = int(m.buys[i]), int(m.trades[i])
        bought, sold = int(m.buy_volume[i]), volume - int(m.buy_volume[i])
        change = 100 * (price - base) / base
        fields = [
            m.universe.codes[i], hhmmss(m.time), str(price), self._quotes.sign(i, price),
            str(price - base), f"{change:.2f}", f"{value / volume:.2f}",
            str(m.open[i]), str(m.high[i]), str(m.low[i]),
            str(book.asks[0].price if book.asks else 0),
            str(book.bids[0].price if book.bids else 0),
            str(size), str(volume), str(value),
            str(trades - buys), str(buys), str(2 * buys - trades),
            f"{100 * bought / max(1, sold):.2f}", str(max(0, sold)), str(bought),
            "1" if m.at_ask[i] else "5", f"{bought / volume:.2f}",
            f"{100 * volume / max(1, int(m.prev_volume[i])):.2f}",
            self._opened_at(), *self._against(int(m.open[i]), price),
            hhmmss(int(m.high_at[i])), *self._against(int(m.high[i]), price),
            hhmmss(int(m.low_at[i])), *self._against(int(m.low[i]), price),
            yyyymmdd(m.time), "20", "N",
            str(book.asks[0].quantity if book.asks else 0),
            str(book.bids[0].quantity if book.bids else 0),
            str(sum(level.quantity for level in book.asks)),
            str(sum(level.quantity for level in book.bids)),
            f"{100 * volume / self._quotes.listed(i):.2f}", "0", "0.00",
            self._quotes.hour_code(i), "", str(m.vi_reference[i]),
        ]  # fmt: skip
        return fields + self._appended()

    def book(self, i: int) -> list[str]:
        m, book = self._market, self._market.book(i)
        auction = m.state(i) == "auction"
        expected = int(m.expected[i]) if auction else 0
        total_asks = sum(level.quantity for level in book.asks)
        total_bids = sum(level.quantity for level in book.bids)
        asks = [*book.asks, *[None] * (10 - len(book.asks))]
        bids = [*book.bids, *[None] * (10 - len(book.bids))]
        change = expected - int(m.base[i]) if expected else 0
        fields = [m.universe.codes[i], hhmmss(m.time), self._quotes.hour_code(i)]
        for side in (asks, bids):
            fields += [str(level.price if level else 0) for level in side]
        for side in (asks, bids):
            fields += [str(level.quantity if level else 0) for level in side]
        fields += [str(total_asks), str(total_bids), "0", "0"]
        fields += [str(expected), str(total_asks if auction else 0), "0", str(change)]
        fields += [self._quotes.sign(i, expected) if expected else "3"]
        fields += [f"{100 * change / int(m.base[i]):.2f}", str(m.volume[i])]
        fields += ["0"] * 5
        appended = self._appended()
        if appended and book.asks and book.bids:  # mid price, quantity and side at it
            mid = (book.asks[0].price + book.bids[0].price) / 2
            return [*fields, f"{mid:g}", "0", "0", *appended]
        return [*fields, *(["0", "0", "0", *appended] if appended else [])]

    def _opened_at(self) -> str:
        return hhmmss(self._market.opened_at)

    @staticmethod
    def _against(mark: int, price: int) -> tuple[str, str]:
        return ("2" if price > mark else "5" if price < mark else "3"), str(price - mark)

    def _appended(self) -> list[str]:
        """Return MARKET_CLS_CODE, which KIS added on one day without a new version."""
        if date.fromordinal(self._market.time // DAY_S) < AFTER_MARKET_SINCE:
            return []
        return [_MARKET_CLASS.get(self._market.phase.kind, "2")]

    def notice(self, notice: KisOrderNotice, paper: bool) -> list[str]:
        entry, fill = notice.entry, notice.fill
        order = entry.order
        accepted = "3" if notice.cancelled_rest else "2" if fill or entry.kind != "new" else "1"
        return [
            entry.customer.key.hts_id, entry.customer.key.account, f"{entry.number:010}",
            f"{entry.parent.number:010}" if entry.parent else "",
            "02" if order.side == "buy" else "01",
            {"new": "0", "revise": "1", "cancel": "2"}[entry.kind],
            entry.division, "0", self._market.universe.codes[order.index],
            str(fill.quantity if fill else entry.quantity),
            str(fill.price if fill else entry.price),
            hhmmss(fill.at if fill else entry.at), "0", "2" if fill else "1", accepted,
            ORGNO[paper], str(entry.quantity), "QTS", "0", "1", "N", "", "10", "",
            self._market.universe.names[order.index], str(entry.price),
        ]  # fmt: skip


def encrypted(text: str, key: str, iv: str) -> str:
    """Encrypt with AES-256-CBC and PKCS#7, in base64, with the key and iv of the subscription."""
    padder = PKCS7(128).padder()
    padded = padder.update(text.encode()) + padder.finalize()
    cipher = Cipher(algorithms.AES256(key.encode()), modes.CBC(iv.encode())).encryptor()
    return base64.b64encode(cipher.update(padded) + cipher.finalize()).decode()
