"""A canary secret must not appear in any log line or span."""

from __future__ import annotations

import dataclasses
import logging
import string
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts import telemetry
from qts.domain import Secret
from qts.telemetry.context import redact_pair, redact_text, redact_value
from tests.telemetry.log_lines import Lines

CANARY = "c4n4ry-Zx9Q8w7E"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJhY2Nlc3Nfa2V5IjoiYSJ9.c2lnbmF0dXJlLWJ5dGVz"


@dataclasses.dataclass
class Credentials:
    appkey: str
    note: str = "kept"


TEXTS = [
    f"postgresql://qts:{CANARY}@localhost:5432/qts",
    f"redis://:{CANARY}@localhost/0",
    f"redis://:{CANARY}@localhost:6379/0 and postgresql://u:{CANARY}@db",
    f"postgresql://qts:p@ss/{CANARY}@localhost/qts",
    f"postgresql://qts:{CANARY}#?@localhost/qts",
    f"https://api.example.com/v1/orders?symbol=A&signature={CANARY}",
    f"https://api.example.com/v1/orders?signature={CANARY}&symbol=A",
    f"GET /x?appkey={CANARY}&appsecret={CANARY}",
    f"callback%3Faccess_token%3D{CANARY}",
    f"https://api.telegram.org/bot123456:{CANARY}/sendMessage",
    f"https://hooks.slack.com/services/T000/B000/{CANARY}",
    f"Authorization: Bearer {CANARY}",
    f"authorization: {CANARY}",
    f"sent Bearer {CANARY} to the venue",
    f"{{'appkey': '{CANARY}', 'appsecret': '{CANARY}'}}",
    f'{{"grant_type":"x","appkey":"{CANARY}"}}',
    f'"{{\\"secretkey\\": \\"{CANARY}\\"}}"',
    f'{{"password": "quote \\" then {CANARY}"}}',
    f'{{"approval_key": "{CANARY}',
    f"Settings(password='{CANARY}', port=5)",
    f"Settings(api_key=Token('{CANARY}'))",
    f"[('X-API-KEY', '{CANARY}'), ('Accept', '*/*')]",
    f"[(b'authorization', b'{CANARY}')]",
    f"KIS_APP_SECRET={CANARY}",
    f"export QTS_DATABASE__PASSWORD={CANARY},and;more)",
    f"Cookie: {CANARY}",
    f"password = {CANARY}",
    f"secretKey={CANARY}",
]


@pytest.mark.parametrize("text", TEXTS)
def test_secret_in_a_text_is_masked(text: str) -> None:
    shown = redact_text(text)
    assert CANARY not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "text",
    [
        "plain words",
        "postgresql://qts@localhost:5432/qts",
        "http://localhost:8080/path?mail=someone@example.com",
        "12 tokens left in the bucket, tokens=12",
        "password authentication failed for user qts",
        "key=KRX:005930 price=71000",
        "ratio 3:1 @ 5",
        "eyJ is how such a token begins",
    ],
)
def test_harmless_text_is_left_alone(text: str) -> None:
    assert redact_text(text) == text


def test_json_web_token_is_masked_wherever_it_stands() -> None:
    assert redact_text(f"sent {JWT} to upbit") == "sent *** to upbit"


def test_url_keeps_what_is_not_secret() -> None:
    assert redact_text(f"postgresql://qts:{CANARY}@db:5432/x") == "postgresql://qts:***@db:5432/x"


@pytest.mark.parametrize(
    "piece",
    [
        "://a:",
        "secret",
        "eyJ",
        "eyJa.",
        "password ",
        "/bot1",
        "bearer ",
        "://",
        "token=",
        "a:@",
        "'secret",
    ],
)
def test_a_hostile_text_is_masked_in_little_time(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    start = time.process_time()
    redact_text(text)
    assert time.process_time() - start < 3


def test_masking_twice_changes_nothing_more() -> None:
    for text in TEXTS:
        once = redact_text(text)
        assert redact_text(once) == once


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "appkey",
        "app_secret",
        "appSecret",
        "X-API-KEY",
        "apiKey",
        "accessToken",
        "authorization",
        "Signature",
        "approval_key",
        "secret",
        "db_pwd",
        "cookie",
        "sessionId",
    ],
)
def test_value_of_a_secret_looking_key_is_masked(key: str) -> None:
    assert redact_pair(key, CANARY) == "***"
    assert redact_pair(key, [CANARY]) == "***"
    assert redact_pair(key, 12345) == "***"


@pytest.mark.parametrize("key", ["key", "tokens", "event", "symbol", "eventId", "stream"])
def test_value_of_an_ordinary_key_is_kept(key: str) -> None:
    assert redact_pair(key, "value") == "value"


def test_whether_a_secret_is_set_may_be_seen() -> None:
    assert redact_pair("password", None) is None
    assert redact_pair("password", True) is True


@pytest.mark.parametrize(
    "value",
    [
        Secret(CANARY),
        [Secret(CANARY)],
        {"deep": {"deeper": [{"password": CANARY}]}},
        {"headers": [("appkey", CANARY), (b"authorization", CANARY.encode())]},
        {f"redis://:{CANARY}@host": 1},
        Credentials(CANARY),
        [Credentials(CANARY)],
        ValueError(f"no login with password={CANARY}"),
        f"redis://:{CANARY}@host".encode(),
        {f"redis://:{CANARY}@host"},
    ],
    ids=lambda value: type(value).__name__,
)
def test_secret_inside_a_value_is_masked(value: object) -> None:
    assert CANARY not in str(redact_value(value))


def test_a_value_that_holds_itself_is_printed() -> None:
    loop: dict[str, Any] = {"password": CANARY}
    loop["self"] = loop
    assert CANARY not in str(redact_value(loop))


def test_unprintable_value_does_not_break_the_line(lines: Lines) -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    telemetry.logger("test").info("line", thing=Broken())
    assert lines.only()["thing"] == "<Broken, unprintable: RuntimeError>"


names = st.sampled_from(["password", "appkey", "appsecret", "token", "signature", "api_key"])
secrets = st.text(string.ascii_letters + string.digits + "-_.!$%*+/@:#?=~", min_size=4).map(
    lambda tail: CANARY + tail
)
around = st.text(string.ascii_letters + string.digits + " .,;-_/", max_size=30)


@given(before=around, after=around, name=names, secret=secrets)
def test_any_named_secret_is_masked_in_any_surroundings(
    before: str, after: str, name: str, secret: str
) -> None:
    for form in (
        f"{before} {name}={secret} {after}",
        f"{before} {name}: {secret} {after}",
        f"{before} {{'{name}': '{secret}'}} {after}",
        f'{before} {{"{name}":"{secret}"}} {after}',
        f"{before} postgresql://user:{secret}@host/{after}",
    ):
        assert CANARY not in redact_text(form)


def _log_everything_with(canary: str) -> None:
    log = telemetry.logger("test")
    url = f"postgresql://qts:{canary}@localhost/qts"
    log.info("connecting to " + url, url=url, password=canary, secret=Secret(canary))
    log.warning("asked %s", f"x?signature={canary}")
    logging.getLogger("third.party").error("appkey=%s failed", canary)
    try:
        try:
            raise ConnectionError(f"cannot reach {url}")
        except ConnectionError as error:
            raise RuntimeError(f"Authorization: Bearer {canary}") from error
    except RuntimeError as error:
        log.exception("lost")
        log.error("lost again", error=error)
        logging.getLogger("third.party").exception("lost there")
    with telemetry.context(stream=url):
        log.info("within", stack_info=True)


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_canary_is_nowhere_in_the_log(log_format: Any) -> None:
    stream = Lines()
    telemetry.configure(telemetry.TelemetryConfig(log_format=log_format), stream)
    _log_everything_with(CANARY)
    written = stream.getvalue()
    assert CANARY not in written
    assert written.count("lost") >= 3
    assert "ConnectionError" in written, "the cause is in the traceback"
