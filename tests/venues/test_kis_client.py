"""The KIS client against the simulator, and against replies that the simulator never sends."""

from __future__ import annotations

import asyncio
import os
from datetime import date, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from qts.domain import (
    ManualClock,
    OperationError,
    OutcomeUnknownError,
    QtsError,
    RefusedError,
    Secret,
    UnreachableError,
)
from qts.simulators import KisSimulator, KisSimulatorConfig, MarketConfig
from qts.simulators.control import Fault
from qts.venues import (
    KisConfig,
    KisQuotes,
    NotSupportedError,
    RateLimitConfig,
    RateLimitedError,
    RequestPriority,
    VenueRejectedError,
)
from qts.venues.kis import KisEndpoint
from tests.venues.kis import KEY, ScriptedServer, client_of, config_for, json_response, open_client

SMALL = KisSimulatorConfig(market=MarketConfig(symbols=60))
ORDER = KisEndpoint("/uapi/order", "TTTC0012U", "VTTC0012U", method="POST")
READ = KisEndpoint("/uapi/read", "FHKST01010100")
EUC_KR = '{"rt_cd":"0","msg1":"시스템 점검","output":{"x":"점검"}}'.encode("cp949")


async def test_thirty_symbols_come_in_one_request(tmp_path: Path) -> None:
    async with KisSimulator(SMALL) as simulator, client_of(simulator, tmp_path) as client:
        symbols = simulator.market.universe.codes[:30]
        found = await KisQuotes(client).quotes(lambda: symbols, RequestPriority.NORMAL)
        assert [quote.symbol for quote in found] == list(symbols)
        assert all(quote.price > 0 and quote.raw for quote in found)
        assert simulator.stats()["keys"][KEY.app_key]["requests"] == 1


async def test_one_symbol_and_thirty_agree_on_its_price(tmp_path: Path) -> None:
    async with KisSimulator(SMALL) as simulator, client_of(simulator, tmp_path) as client:
        simulator.market_clock.set(paused=True)
        quotes = KisQuotes(client)
        one = await quotes.quote("005930", RequestPriority.BURST)
        many = await quotes.quotes(lambda: ["005930", "000660"], RequestPriority.NORMAL)
        assert (one.price, one.volume) == (many[0].price, many[0].volume)


async def test_the_book_is_sorted_and_uncrossed(tmp_path: Path) -> None:
    async with KisSimulator(SMALL) as simulator, client_of(simulator, tmp_path) as client:
        book = await KisQuotes(client).order_book("005930", RequestPriority.BURST)
        asks, bids = [x.price for x in book.asks], [x.price for x in book.bids]
        assert asks == sorted(asks)
        assert bids == sorted(bids, reverse=True)
        assert bids[0] < asks[0]


async def test_trading_days_are_read(tmp_path: Path) -> None:
    async with KisSimulator(SMALL) as simulator, client_of(simulator, tmp_path) as client:
        days = await KisQuotes(client).trading_days(date(2026, 11, 14))
        assert days[date(2026, 11, 14)] is False
        assert days[date(2026, 11, 16)] is True


async def test_a_paper_key_quotes_one_by_one_and_lacks_trading_days(tmp_path: Path) -> None:
    paper = KisSimulatorConfig(paper=True, market=MarketConfig(symbols=60))
    async with (
        KisSimulator(paper) as simulator,
        client_of(simulator, tmp_path, paper=True) as client,
    ):
        quotes = KisQuotes(client)
        assert quotes.per_call == 1
        assert (await quotes.quotes(lambda: ["005930"], RequestPriority.NORMAL))[0].price > 0
        with pytest.raises(NotSupportedError):
            await quotes.trading_days(date(2026, 11, 14))


async def test_a_real_key_on_the_paper_host_is_named_as_such(tmp_path: Path) -> None:
    paper = KisSimulatorConfig(paper=True, market=MarketConfig(symbols=60))
    async with KisSimulator(paper) as simulator, client_of(simulator, tmp_path) as client:
        with pytest.raises(NotSupportedError, match="EGW02006"):
            await KisQuotes(client).quotes(lambda: ["005930", "000660"], RequestPriority.NORMAL)


# -- tokens


async def test_processes_share_one_token_on_disk(tmp_path: Path) -> None:
    async with KisSimulator(SMALL) as simulator:
        for _ in range(3):
            async with client_of(simulator, tmp_path) as client:
                await KisQuotes(client).quote("005930", RequestPriority.BURST)
        assert simulator.stats()["keys"][KEY.app_key]["token_issues"] == 1
    _check_token_file(tmp_path)


def _check_token_file(folder: Path, token: str = "") -> None:
    (file,) = folder.glob("*.token")
    assert token in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert KEY.app_key not in file.name
    assert KEY.app_secret not in file.read_text()


async def test_many_first_requests_issue_one_token(tmp_path: Path) -> None:
    async with KisSimulator(SMALL) as simulator, client_of(simulator, tmp_path) as client:
        quotes = KisQuotes(client)
        await asyncio.gather(*(quotes.quote("005930", RequestPriority.ORDER) for _ in range(10)))
        assert simulator.stats()["keys"][KEY.app_key]["token_issues"] == 1


class OneTokenServer(ScriptedServer):
    """Accepts one token and calls every other one expired."""

    def __init__(self) -> None:
        super().__init__(self._check)
        self.good = "token-1"

    def _check(self, request: web.Request) -> web.Response:
        if request.headers["authorization"] == f"Bearer {self.good}":
            return json_response({"rt_cd": "0"})
        return json_response({"rt_cd": "1", "msg_cd": "EGW00123", "msg1": "expired"}, 500)


async def test_a_token_that_kis_no_longer_accepts_is_replaced_once(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        OneTokenServer() as kis,
        open_client(config_for(kis.url), tmp_path, clock) as client,
    ):
        await client.call(READ, {}, RequestPriority.ORDER)
        kis.good = "token-2"
        clock.set_wall(clock.now() + timedelta(minutes=2))
        replies = await asyncio.gather(
            *(client.call(READ, {}, RequestPriority.ORDER) for _ in range(5))
        )
        assert [reply.rt_cd for reply in replies] == ["0"] * 5
        assert kis.tokens == 2


async def test_a_token_is_renewed_ahead_of_its_end(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        ScriptedServer(lambda _: json_response({"rt_cd": "0"})) as kis,
        open_client(config_for(kis.url), tmp_path, clock) as client,
    ):
        await client.call(READ, {}, RequestPriority.ORDER)
        clock.set_wall(clock.now() + timedelta(seconds=86_400 - 700))
        await client.call(READ, {}, RequestPriority.ORDER)
        assert kis.tokens == 1
        clock.set_wall(clock.now() + timedelta(seconds=200))
        await client.call(READ, {}, RequestPriority.ORDER)
        assert kis.tokens == 2


async def test_a_second_token_within_a_minute_is_not_requested(tmp_path: Path) -> None:
    ended = {"rt_cd": "1", "msg_cd": "EGW00123", "msg1": "expired"}
    async with ScriptedServer(lambda _: json_response(ended, 500)) as kis:
        async with open_client(config_for(kis.url), tmp_path) as client:
            with pytest.raises(OperationError, match="once a minute"):
                await client.call(READ, {}, RequestPriority.ORDER)
        assert kis.tokens == 1


async def test_a_token_whose_caller_was_cancelled_is_kept(tmp_path: Path) -> None:
    """The next request would have to wait a minute for another token."""
    async with ScriptedServer(lambda _: json_response({"rt_cd": "0"})) as kis:
        kis.may_issue.clear()
        async with open_client(config_for(kis.url), tmp_path) as client:
            asking = asyncio.create_task(client.call(READ, {}, RequestPriority.ORDER))
            await kis.issuing.wait()
            asking.cancel()
            await asyncio.wait({asking})
            kis.may_issue.set()
            assert (await client.call(READ, {}, RequestPriority.ORDER)).rt_cd == "0"
        assert kis.tokens == 1


async def test_a_client_that_closes_keeps_the_token_it_has_requested(tmp_path: Path) -> None:
    async with ScriptedServer(lambda _: json_response({"rt_cd": "0"})) as kis:
        kis.may_issue.clear()
        async with open_client(config_for(kis.url), tmp_path) as client:
            asking = asyncio.create_task(client.call(READ, {}, RequestPriority.ORDER))
            await kis.issuing.wait()
            asking.cancel()
            asyncio.get_running_loop().call_later(0.05, kis.may_issue.set)
        async with open_client(config_for(kis.url), tmp_path) as client:
            await client.call(READ, {}, RequestPriority.ORDER)
        assert kis.tokens == 1


async def test_a_token_that_cannot_be_renewed_is_used_until_it_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        ScriptedServer(lambda _: json_response({"rt_cd": "0"})) as kis,
        open_client(config_for(kis.url), tmp_path, clock) as client,
    ):
        await client.call(READ, {}, RequestPriority.ORDER)
        kis.token_status = 503
        clock.set_wall(clock.now() + timedelta(seconds=86_400 - 500))
        for _ in range(3):
            assert (await client.call(READ, {}, RequestPriority.ORDER)).rt_cd == "0"
        assert kis.tokens == 2  # tried once a minute
        await clock.advance(61)
        await client.call(READ, {}, RequestPriority.ORDER)
        assert kis.tokens == 3
        await clock.advance(500)
        with pytest.raises(UnreachableError):
            await client.call(READ, {}, RequestPriority.ORDER)
        kis.token_status = 200
        assert (await client.call(READ, {}, RequestPriority.ORDER)).rt_cd == "0"


async def test_a_rate_limited_token_request_slows_the_others_down(tmp_path: Path) -> None:
    async with (
        ScriptedServer(lambda _: json_response({"rt_cd": "0"})) as kis,
        open_client(config_for(kis.url), tmp_path) as client,
    ):
        kis.token_status = 429
        before = client.limiter.status().rate_per_s
        with pytest.raises(RateLimitedError):
            await client.call(READ, {}, RequestPriority.ORDER)
        assert client.limiter.status().rate_per_s == before // 2


async def test_a_token_that_cannot_be_saved_is_used_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    clock = ManualClock()
    async with (
        OneTokenServer() as kis,
        open_client(config_for(kis.url), tmp_path, clock) as client,
    ):
        await client.call(READ, {}, RequestPriority.ORDER)
        kis.good = "token-2"
        clock.set_wall(clock.now() + timedelta(minutes=2))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            for _ in range(2):
                assert (await client.call(READ, {}, RequestPriority.ORDER)).rt_cd == "0"
        assert kis.tokens == 2
        kis.good = "token-3"  # the one in memory is the last one, not the one on disk
        with pytest.raises(OperationError, match="once a minute"):
            await client.call(READ, {}, RequestPriority.ORDER)
        clock.set_wall(clock.now() + timedelta(minutes=2))
        assert (await client.call(READ, {}, RequestPriority.ORDER)).rt_cd == "0"
    assert "KIS token not saved; kept in memory" in capsys.readouterr().err
    _check_token_file(tmp_path, "token-3")


# -- errors


@pytest.mark.parametrize(
    ("code", "status", "for_reads", "for_orders"),
    [
        ("EGW00201", 500, RateLimitedError, RateLimitedError),
        ("EGW00201", 200, RateLimitedError, RateLimitedError),
        ("EGW00215", 500, RateLimitedError, RateLimitedError),
        ("EGW00301", 500, UnreachableError, OutcomeUnknownError),
        ("EGW00302", 504, UnreachableError, OutcomeUnknownError),
        ("EGW00103", 403, RefusedError, RefusedError),
        ("EGW00105", 500, RefusedError, RefusedError),
        ("EGW02004", 500, RefusedError, RefusedError),
        ("EGW02006", 500, NotSupportedError, NotSupportedError),
        ("APBK0952", 200, VenueRejectedError, VenueRejectedError),
        ("OPSQ2001", 500, VenueRejectedError, VenueRejectedError),
        ("", 502, UnreachableError, OutcomeUnknownError),
        ("", 429, RateLimitedError, RateLimitedError),
        ("APBK0952", 429, RateLimitedError, RateLimitedError),
        ("XXXX9999", 429, RateLimitedError, RateLimitedError),
        ("XXXX9999", 500, UnreachableError, OutcomeUnknownError),
        ("XXXX9999", 400, UnreachableError, OutcomeUnknownError),
        ("XXXX9999", 200, UnreachableError, OutcomeUnknownError),
        ("", 403, UnreachableError, OutcomeUnknownError),
        ("", 200, UnreachableError, OutcomeUnknownError),
        ("EGW00133", 403, OperationError, OperationError),
    ],
)
async def test_every_code_has_its_error(
    tmp_path: Path,
    code: str,
    status: int,
    for_reads: type[QtsError],
    for_orders: type[QtsError],
) -> None:
    body = {"rt_cd": "1", "msg_cd": code, "msg1": "why   "}
    async with (
        ScriptedServer(lambda _: json_response(body, status)) as kis,
        open_client(config_for(kis.url), tmp_path) as client,
    ):
        for endpoint, expected in ((READ, for_reads), (ORDER, for_orders)):
            with pytest.raises(expected) as caught:
                await client.call(endpoint, {}, RequestPriority.ORDER)
            assert type(caught.value) is expected
            assert KEY.app_secret not in str(caught.value)


async def test_a_rate_limit_reply_slows_the_limiter_down(tmp_path: Path) -> None:
    async with KisSimulator(SMALL) as simulator, client_of(simulator, tmp_path) as client:
        simulator.faults.add(Fault(kind="limit", path="/uapi", count=1))
        with pytest.raises(RateLimitedError, match="EGW00201"):
            await KisQuotes(client).quote("005930", RequestPriority.BURST)
        assert client.limiter.status().rate_per_s == 9
        assert (await KisQuotes(client).quote("005930", RequestPriority.BURST)).price > 0


@pytest.mark.parametrize("kind", ["drop_reply", "cut"])
async def test_a_lost_reply_is_one_request_and_an_unknown_outcome(
    tmp_path: Path, kind: str
) -> None:
    async with KisSimulator(SMALL) as simulator, client_of(simulator, tmp_path) as client:
        quotes = KisQuotes(client)
        await quotes.quote("005930", RequestPriority.BURST)  # the connection is now kept alive
        simulator.faults.add(Fault(kind=kind, path="/uapi", count=1))  # type: ignore[arg-type]
        with pytest.raises(UnreachableError):
            await quotes.quote("005930", RequestPriority.BURST)
        assert simulator.stats()["keys"][KEY.app_key]["requests"] == 2


async def test_a_429_is_a_rate_limit_whatever_its_body(tmp_path: Path) -> None:
    async with (
        ScriptedServer(lambda _: web.Response(text="<html>busy</html>", status=429)) as kis,
        open_client(config_for(kis.url), tmp_path) as client,
    ):
        for endpoint in (READ, ORDER):
            with pytest.raises(RateLimitedError):
                await client.call(endpoint, {}, RequestPriority.ORDER)


async def test_a_success_in_an_error_status_is_an_unknown_outcome(tmp_path: Path) -> None:
    body = {"rt_cd": "0", "msg_cd": "APBK0952"}
    async with (
        ScriptedServer(lambda _: json_response(body, 500)) as kis,
        open_client(config_for(kis.url), tmp_path) as client,
    ):
        with pytest.raises(OutcomeUnknownError):
            await client.call(ORDER, {}, RequestPriority.ORDER)


async def test_a_reply_that_is_not_json_leaves_an_order_unknown(tmp_path: Path) -> None:
    async with (
        ScriptedServer(lambda _: web.Response(text="<html>busy</html>")) as kis,
        open_client(config_for(kis.url), tmp_path) as client,
    ):
        with pytest.raises(OutcomeUnknownError):
            await client.call(ORDER, {}, RequestPriority.ORDER)
        with pytest.raises(UnreachableError):
            await client.call(READ, {}, RequestPriority.ORDER)


@pytest.mark.parametrize("status", [200, 500])
async def test_a_reply_that_is_not_utf_8_is_unreadable(tmp_path: Path, status: int) -> None:
    async with (
        ScriptedServer(lambda _: web.Response(body=EUC_KR, status=status)) as kis,
        open_client(config_for(kis.url), tmp_path) as client,
    ):
        with pytest.raises(OutcomeUnknownError):
            await client.call(ORDER, {}, RequestPriority.ORDER)
        with pytest.raises(UnreachableError):
            await client.call(READ, {}, RequestPriority.ORDER)
        with pytest.raises(UnreachableError):
            await client.approval_key()


async def test_rows_that_are_not_utf_8_are_unreadable(tmp_path: Path) -> None:
    body = '{"rt_cd":"0","output":{"hts_kor_isnm":"삼성전자"}}'.encode("cp949")
    async with (
        ScriptedServer(lambda _: web.Response(body=body)) as kis,
        open_client(config_for(kis.url), tmp_path) as client,
    ):
        with pytest.raises(UnreachableError):
            await KisQuotes(client).quote("005930", RequestPriority.BURST)


async def test_fields_kis_adds_later_are_ignored(tmp_path: Path) -> None:
    body = {"rt_cd": "0", "output": {"stck_prpr": "71900", "acml_vol": "5", "new": ["x"]}, "n": 1}
    async with (
        ScriptedServer(lambda _: json_response(body)) as kis,
        open_client(config_for(kis.url), tmp_path) as client,
    ):
        quote = await KisQuotes(client).quote("005930", RequestPriority.BURST)
        assert (quote.price, quote.volume) == (71900.0, 5.0)


async def test_a_host_that_is_not_there_is_named(tmp_path: Path) -> None:
    async with open_client(config_for("http://127.0.0.1:1"), tmp_path) as client:
        with pytest.raises(UnreachableError, match=r"KIS at http://127\.0\.0\.1:1 does not answer"):
            await KisQuotes(client).quote("005930", RequestPriority.BURST)


async def test_no_window_is_exceeded_as_the_simulator_counts(tmp_path: Path) -> None:
    """A client that requests twice the limit on a slow network waits, and none is rejected."""
    config = KisSimulatorConfig(market=MarketConfig(symbols=60), window="fixed")
    async with KisSimulator(config) as simulator, client_of(simulator, tmp_path) as client:
        simulator.faults.add(Fault(kind="slow", path="/uapi", chance=0.3, seconds=0.2))
        quotes = KisQuotes(client)
        await asyncio.gather(*(quotes.quote("005930", RequestPriority.ORDER) for _ in range(40)))
        stats = simulator.stats()["keys"][KEY.app_key]
        assert stats["requests"] == 40
        assert stats["refused"] == 0
        assert stats["worst"]["second"] <= 18


def test_keys_that_are_not_set_are_refused_by_name() -> None:
    with pytest.raises(RefusedError, match=r"venues\.kis\.app_key"):
        KisConfig().credentials()


def test_a_paper_key_never_has_more_than_one_a_second() -> None:
    config = KisConfig(paper=True, limits=RateLimitConfig(per_second=18))
    assert config.key_limits.per_second == 1
    assert KisConfig(app_key=Secret("x")).rest.endswith(":9443")
    assert config.rest.endswith(":29443")


def test_ticks_come_from_where_quotes_come_from() -> None:
    assert KisConfig().stream == "ws://ops.koreainvestment.com:21000"
    assert KisConfig(paper=True).stream == "ws://ops.koreainvestment.com:31000"
    assert KisConfig(url="http://127.0.0.1:9443/").stream == "ws://127.0.0.1:9443"
    assert KisConfig(url="http://a", stream_url="ws://b").stream == "ws://b"
