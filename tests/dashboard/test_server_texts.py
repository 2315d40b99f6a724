"""Sentences of the server on a Korean page: each that a page can show has a Korean text."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from qts.config import settings_of
from qts.dashboard import actions
from qts.dashboard.session import Role
from qts.notify import RULES
from qts.risk import FailSafe, KillSwitch
from tests.accounts import PAPER
from tests.dashboard import statuses
from tests.dashboard.conftest import Site
from tests.dashboard.server_texts import SOURCE, WRITERS, sentences
from tests.dashboard.test_pages import shoot, visit

HANGUL = re.compile("[가-힣]")
_ENTRY = re.compile(r'("(?:[^"\\]|\\.)*"): ("(?:[^"\\]|\\.)*")')
PAGE = SOURCE / "dashboard" / "page"


def entries(text: str) -> dict[str, str]:
    return {json.loads(english): json.loads(korean) for english, korean in _ENTRY.findall(text)}


TABLE = (PAGE / "labels_server.js").read_text("utf-8")
KOREAN = entries(TABLE.partition("const WORDS")[0])
DESCRIPTIONS = entries((PAGE / "labels_settings.js").read_text("utf-8"))
# Parts of sentences that are read word by word, reasons of HTTP, and what libraries write.
SPECIAL = {
    "BUY {} {}", "SELL {} {}", "BUY {} {} {}, {} filled{}", "SELL {} {} {}, {} filled{}",
    "account {} is unknown; {}", "position {} is unknown; {}", "strategy {} is unknown; {}",
    "{} is {}; expected above {}", "{} is {}; expected at least {}", "{} and {} more",
    "{} is {}; expected at most {}", "{} is {}; expected below {}", "{} streamed, {}",
    "{} stream disconnected; prices are polled meanwhile",  # of an event: venue and reason
    "Method Not Allowed", "Not Found", "Request Entity Too Large", "Unauthorized",
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_every_sentence_has_a_korean_text(name: str) -> None:
    """One that fails here needs a line in page/labels_server.js."""
    assert [text for text in sentences(name) if text not in KOREAN] == []


def test_every_rule_says_in_korean_what_to_do() -> None:
    assert [rule.action for rule in RULES if rule.action not in KOREAN] == []


def test_no_korean_text_is_left_over() -> None:
    written = {text for name in WRITERS for text in sentences(name)}
    written |= {rule.action for rule in RULES}
    assert KOREAN.keys() - written == SPECIAL


def test_korean_texts_are_korean_and_place_every_value_once() -> None:
    may_drop = {"{} alert{} acknowledged", "{} open order{} cancelled"}  # the s of a plural
    for english, korean in KOREAN.items():
        assert HANGUL.search(korean), english
        numbers = sorted(map(int, re.findall(r"\{(\d)\}", korean)))
        count = 1 if english in may_drop else english.count("{}")
        assert numbers == list(range(1, count + 1)), english


def test_every_setting_has_a_korean_description() -> None:
    """One that fails here needs a line in page/labels_settings.js."""
    written = {each.description for each in settings_of()}
    assert written - DESCRIPTIONS.keys() == set()
    assert DESCRIPTIONS.keys() - written == set()
    assert [text for text in DESCRIPTIONS.values() if not HANGUL.search(text)] == []


def test_every_name_of_an_action_is_a_word() -> None:
    words = TABLE.partition("const WORDS")[2].partition("};")[0]
    tags = {str(each.__struct_config__.tag) for each in actions.Action.__subclasses__()}
    assert {*tags, "login"} <= set(re.findall(r"(\w+): \"", words))


SAMPLES = [
    ("kis: 005930: the price is 6.1 s old", "kis: 005930: 시세가 6.1초 전 것"),
    ("P1 is 81 % full: WARNING", "P1 사용률 81 %: 경고"),
    ("only P0 is handled (3 more suppressed)", "P0만 처리함 (외 3건 생략)"),
    (
        "StrategyErrors: a strategy raises errors: value 7; read the log; the strategy is suspended"
        " if errors continue",
        "전략에서 오류가 발생합니다 (7); 로그를 확인하세요. 오류가 계속되면 전략이 중지됩니다",
    ),
    ("account is stopped", "계좌: 거래 중지됨"),
    ("event 7 is PENDING", "이벤트 7: 대기"),
    ("kill needs the role trade, not read", "비상 정지: 거래 권한이 필요합니다 (현재 조회)"),
    ("length is 1; expected at least 2", "length 값 1: 2 이상이어야 합니다"),
    ("length is 'x'; expected integer", "length 값 'x': 정수여야 합니다"),
    (
        "SELL 2 005930 filled; SELL 1 000660 filled; 2 open orders cancelled",
        "005930 2 매도 체결; 000660 1 매도 체결; 미체결 주문 2건 취소됨",
    ),
    (
        "paper:9f86d081: SELL 2 005930 filled; kis:0a1b2c3d: nothing is held and no order is open",
        "paper:9f86d081: 005930 2 매도 체결; kis:0a1b2c3d: 보유 종목도 미체결 주문도 없습니다",
    ),
    (
        "SELL 2 005930 REJECTED, 0 filled: 40310000 closed",
        "005930 2 매도: 거래소 거절, 0 체결됨: 40310000 closed",
    ),
    (
        "refused, nothing was sent: G_KILL_SWITCH the kill switch of the account is on; while it is"
        " on, no order leaves, a close included: qts kill off first",
        "거부되어 아무것도 전송하지 않았습니다: G_KILL_SWITCH 계좌의 비상 정지가 켜져 있음"
        " (the kill switch of the account is on); 켜져 있는 동안에는 청산을 포함한 어떤 주문도"
        " 나가지 않습니다. 먼저 거래를 허용하세요",
    ),
    (
        "strategy 'rsi' is unknown; expected one of a, rsi_scalper; did you mean rsi_scalper?",
        "알 수 없는 전략 'rsi': 다음 중 하나여야 합니다: a, rsi_scalper. 혹시 rsi_scalper?",
    ),
    (
        "PostgreSQL at 127.0.0.1:5432 is unreachable: connection refused",
        "PostgreSQL(127.0.0.1:5432)에 연결할 수 없음: 연결 거부됨",
    ),
    ("2 streamed, 3 polled every 2.0 s = 1.5/s", "2개 스트림, 3개를 2.0초마다 조회 = 초당 1.5회"),
    ("what no one has written", "what no one has written"),
    ("", ""),
]


async def test_sentences_are_translated_with_their_values(site: Site, browser: Any) -> None:
    texts = [english for english, _ in SAMPLES]
    filled = [re.sub(r"\{\}", "X1", english) for english in KOREAN]
    async with visit(browser, site.tokens.link(site.address), locale="ko-KR") as tab:
        script = (
            "(texts) => import('/page/labels_server.js').then((all) => texts.map(all.translate))"
        )
        assert await tab.page.evaluate(script, texts) == [korean for _, korean in SAMPLES]
        for english, korean in zip(filled, await tab.page.evaluate(script, filled), strict=True):
            assert HANGUL.search(korean), english
            assert "{" not in korean, english


async def test_a_korean_page_says_in_korean_what_was_done_and_refused(
    site: Site, browser: Any
) -> None:
    await KillSwitch(site.database, PAPER).enable_unset((), "test")
    await FailSafe(site.database, PAPER).trip("FS070", "paper holds 3, the ledger 2")
    site.run()
    link = site.tokens.link(site.address, Role.TRADE)
    async with visit(browser, link, locale="ko-KR") as tab:
        await tab.wait_text("#top .message", "보유 수량과 체결이 일치하지 않습니다")
        await tab.wait_text("#verdict", "안전 상태 FAIL FS070")
        await tab.page.keyboard.press("k")
        await tab.page.keyboard.type("점심")
        await tab.page.keyboard.press("Enter")
        await tab.wait_text("#toast", "비상 정지 변경됨: 계좌: 거래 중지됨")
        refused = await tab.page.evaluate(
            """async () => {
              const { csrf } = await (await fetch("/api/me")).json();
              const headers = { "Content-Type": "application/json", "X-QTS-CSRF": csrf };
              const body = JSON.stringify({ action: "release", reason: "again" });
              return (await fetch("/api/action", { method: "POST", headers, body })).status;
            }"""
        )
        assert refused == 403
        await tab.open("settings")
        await tab.wait_text("main", "안전 상태 해제: 관리 권한이 필요합니다 (현재 거래)")
        rows = await tab.page.locator("main section:last-child tbody tr").all_inner_texts()
        assert len(rows) == 3  # login, kill, release
        for row in rows:
            rest = re.sub(r"dashboard trade [\w-]+|again", "", row)  # the actor and the reason
            assert not re.search("[A-Za-z]{2}", rest), row
        await shoot(tab.page, "korean-audit.png", full_page=True)
        tab.problems.clear()  # the refusal is a 403, which the console logs


async def test_figures_of_the_run_are_in_korean(site: Site, browser: Any) -> None:
    stopped = statuses.strategy(stopped="5 errors in a row: ValueError: x")
    site.run(strategies=[stopped, statuses.strategy(key="slow", warm_up="3 of 9 series")])
    await site.database.execute(
        "INSERT INTO market_state"
        " (broker, account, symbol, trade_status, reason_code, detail, suspended_at)"
        " VALUES ($1, $2, '005930', 'SUSPENDED', 'BLOCKED', 'HTTP 418', now())",
        *PAPER,
    )
    async with visit(browser, site.tokens.link(site.address), locale="ko-KR") as tab:
        await tab.wait_text("main", "거래소 차단 HTTP 418")
        await tab.open("strategies")
        await tab.wait_text("main", "중단됨 오류 연속 5회: ValueError: x")
        await tab.wait_text("main", "준비 중: 시계열 9개 중 3개")


async def test_settings_are_described_in_korean(site: Site, browser: Any) -> None:
    setting = {"name": "dashboard.session_hours", "value": 12, "is_default": True}
    described = [setting | {"description": "how long a login lasts"}]

    async def answer(route: Any) -> None:
        await route.fulfill(json={"settings": described})

    async with visit(browser, site.tokens.link(site.address), locale="ko-KR") as tab:
        await tab.page.route("**/api/settings", answer)
        await tab.open("settings")
        await tab.wait_text("main", "로그인 유지 시간")
        await tab.page.fill("[data-filter=find]", "유지 시간")  # it is found in both languages
        await tab.page.keyboard.press("Enter")
        await tab.wait_text("main", "dashboard.session_hours")
        await tab.page.keyboard.press("Escape")


async def test_a_request_without_a_reply_is_not_shown_in_the_words_of_the_browser(
    site: Site, browser: Any
) -> None:
    site.run()
    async with visit(browser, site.tokens.link(site.address), locale="ko-KR") as tab:
        await tab.page.route("**/api/orders?*", lambda route: route.abort())
        await tab.page.goto(f"{site.address}/#/orders")
        await tab.wait_text("#toast", "대시보드가 응답하지 않습니다")
        tab.problems.clear()
