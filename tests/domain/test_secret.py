"""No way of printing shows a secret; only reveal() returns it."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import traceback
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qts.domain import Secret

CANARY = "c4n4ry-Zx9Q8w7E"


class Holder(msgspec.Struct, frozen=True):
    url: Secret


def test_reveal_returns_the_text() -> None:
    assert Secret(CANARY).reveal() == CANARY


@pytest.mark.parametrize(
    "show",
    [
        str,
        repr,
        "{}".format,
        "{!r:>20}".format,
        "{:>10}".format,
        lambda secret: f"{secret}",
        lambda secret: "%s %r" % (secret, secret),  # noqa: UP031 - one of the ways
        lambda secret: repr([secret, {"a": secret}]),
        lambda secret: repr(Holder(secret)),
        lambda secret: logging.LogRecord("a", 1, "b", 1, "%s", (secret,), None).getMessage(),
        lambda secret: "".join(traceback.format_exception(ValueError(secret))),
        ascii,
    ],
)
def test_no_way_of_printing_shows_it(show: Callable[[Secret], str]) -> None:
    shown = show(Secret(CANARY))
    assert CANARY not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "store", [pickle.dumps, copy.copy, copy.deepcopy, json.dumps, msgspec.json.encode]
)
def test_it_cannot_be_stored_by_accident(store: Callable[[Secret], object]) -> None:
    with pytest.raises(TypeError) as refusal:
        store(Secret(CANARY))
    assert CANARY not in str(refusal.value)


def test_an_empty_secret_is_false() -> None:
    assert not Secret("")
    assert Secret(CANARY)


# Environment variables that are not UTF-8 contain surrogates.
texts = st.text(st.characters(exclude_categories=())) | st.just("key-\udc80")


@given(texts, texts)
def test_secrets_are_equal_when_their_texts_are(one: str, other: str) -> None:
    assert (Secret(one) == Secret(other)) is (one == other)
    assert Secret(one) == Secret(one)
    assert hash(Secret(one)) == hash(Secret(one))
    assert Secret(one) != one
