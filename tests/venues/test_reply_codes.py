"""Only listed codes of a venue reject an order, whatever a reply contains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.brokers.error_boundary import translate_order_errors
from qts.domain import OperationError, OutcomeUnknownError, QtsError, RefusedError, UnreachableError
from qts.orders.context import PlaceOutcomeKind, classify_place_error
from qts.venues import RateLimitedError, VenueRejectedError
from qts.venues.errors import ReplyClass, VenueCode, class_table, code_table
from qts.venues.kis import client as kis
from qts.venues.kis.client import error_of, parse_reply
from qts.venues.upbit import client as upbit

DOCS = Path(__file__).parents[2] / "docs" / "venue-codes.md"
REJECTING = {ReplyClass.REJECTED, ReplyClass.NOT_SUPPORTED, ReplyClass.SETTINGS}
DEEP = b'{"error":' + b"[" * 20_000

statuses = st.one_of(
    st.sampled_from([200, 201, 301, 302, 307, 400, 401, 403, 404, 418, 429, 500, 502, 503]),
    st.integers(100, 999),
)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
any_json = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)
raw_bodies = st.one_of(st.binary(), st.just(DEEP), any_json.map(msgspec.json.encode))


def encoded(values: Any) -> bytes:
    return msgspec.json.encode(values)


def codes_of(table: Any) -> st.SearchStrategy[str]:
    return st.one_of(st.sampled_from(sorted(table)), st.text(max_size=12), st.just(""))


kis_bodies = st.one_of(
    raw_bodies,
    st.fixed_dictionaries(
        {},
        optional={
            "rt_cd": st.one_of(st.sampled_from(["0", "1", "7"]), scalars),
            "msg_cd": st.one_of(codes_of(kis.CODES), scalars),
            "msg1": scalars,
            "error_code": codes_of(kis.CODES),
            "output": any_json,
        },
    ).map(encoded),
)
upbit_bodies = st.one_of(
    raw_bodies,
    st.fixed_dictionaries(
        {"error": any_json},
    ).map(encoded),
    st.builds(
        lambda name, text: encoded({"error": {"name": name, "message": text}}),
        st.one_of(codes_of(upbit.CODES), st.integers(398, 406), scalars),
        st.one_of(st.text(), st.integers(0, 10**30).map(lambda n: f"blocked for {n} seconds")),
    ),
)


def outcome_of(error: QtsError) -> PlaceOutcomeKind:
    """Return what the executor makes of an error that the client raises while placing."""
    try:
        with translate_order_errors():
            raise error
    except QtsError as translated:
        return classify_place_error(translated).kind


def named_code(table: Any, error: QtsError) -> VenueCode | None:
    """Return the listed code that an error names."""
    code = getattr(error, "code", "")
    if code:
        return table.get(code)  # type: ignore[no-any-return]
    return next((each for each in table.values() if f"{each.meaning} (" in str(error)), None)


def check_order(table: Any, status: int, error: QtsError) -> None:
    kind = outcome_of(error)
    if status == 429:
        assert kind is PlaceOutcomeKind.NOT_PLACED
    if 300 <= status < 400:
        assert kind is PlaceOutcomeKind.UNKNOWN
        assert f"HTTP {status}: a redirect" in str(error)
    if kind is PlaceOutcomeKind.REJECTED:
        listed = named_code(table, error)
        assert listed is not None
        assert listed.kind in REJECTING
    elif kind is PlaceOutcomeKind.NOT_PLACED:
        assert isinstance(error, RateLimitedError) or type(error) is OperationError


@given(statuses, kis_bodies)
def test_no_reply_of_kis_is_a_rejection_without_a_listed_code(status: int, body: bytes) -> None:
    reply = parse_reply(body)
    error = error_of(reply, status, changes=True)
    if error is None:
        assert 200 <= status < 300
        assert reply.rt_cd == "0"
        return
    check_order(kis.CODES, status, error)
    if (reply.msg_cd or reply.error_code) not in kis.CODES and status != 429:
        assert isinstance(error, OutcomeUnknownError)


@given(statuses, upbit_bodies, st.one_of(st.none(), st.text(max_size=20)))
def test_no_reply_of_upbit_is_a_rejection_without_a_listed_code(
    status: int, body: bytes, retry_after: str | None
) -> None:
    result = upbit.decode_reply(status, body, retry_after, changes=True)
    if not isinstance(result, QtsError):
        assert 200 <= status < 300
        return
    check_order(upbit.CODES, status, result)
    if status >= 500:
        assert isinstance(result, OutcomeUnknownError)
    if isinstance(result, RateLimitedError):
        assert status in (418, 429)
        assert result.blocked == (status == 418)
        assert result.retry_after_s is None or 0 <= result.retry_after_s <= 86_400


@given(statuses, st.one_of(kis_bodies, upbit_bodies))
def test_an_unlisted_error_of_a_read_can_be_retried(status: int, body: bytes) -> None:
    reply = parse_reply(body)
    for error, table in (
        (error_of(reply, status, changes=False), kis.CODES),
        (upbit.decode_reply(status, body, None, changes=False), upbit.CODES),
    ):
        assert not isinstance(error, OutcomeUnknownError)
        if isinstance(error, VenueRejectedError | RefusedError):
            assert named_code(table, error) is not None
        elif isinstance(error, QtsError):
            assert isinstance(error, UnreachableError | RateLimitedError | OperationError)


@pytest.mark.parametrize("retry_after", ["²", "9" * 400, "-1", "soon", "1e400"])
def test_a_strange_pause_is_ignored(retry_after: str) -> None:
    error = upbit.decode_reply(418, b"", retry_after, changes=True)
    assert isinstance(error, RateLimitedError)
    assert error.retry_after_s == upbit.BLOCK_S


def test_the_page_of_codes_is_generated_from_the_tables() -> None:
    tables = [
        class_table(),
        code_table([*kis.STATUSES.values(), *kis.CODES.values()]),
        code_table([*upbit.STATUSES.values(), *upbit.CODES.values()]),
    ]
    lines = DOCS.read_text("utf-8").splitlines()
    assert [line for line in lines if line.startswith("|")] == "\n".join(tables).splitlines()
