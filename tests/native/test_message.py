"""The message's fields describe a numpy record of the same 96 bytes."""

from __future__ import annotations

import numpy as np

from qts import _native


def message_dtype() -> np.dtype[np.void]:
    names, formats, offsets = zip(*_native.message_fields(), strict=True)
    return np.dtype(
        {
            "names": list(names),
            "formats": list(formats),
            "offsets": list(offsets),
            "itemsize": _native.MESSAGE_SIZE,
        }
    )


def test_fields_fill_the_message_without_gap_or_overlap() -> None:
    dtype = message_dtype()
    end = 0
    for name, _, offset in _native.message_fields():
        assert offset == end
        end = offset + dtype[name].itemsize
    assert end == _native.MESSAGE_SIZE == dtype.itemsize == 96


def test_offsets_are_the_published_ones() -> None:
    offsets = {name: offset for name, _, offset in _native.message_fields()}
    assert offsets == {
        "msg_type": 0,
        "producer_id": 1,
        "stream_number": 2,
        "symbol_id": 4,
        "sequence_number": 8,
        "timestamp_ns": 16,
        "processor_id": 24,
        "quantity_exponent": 25,
        "quantity_high": 26,
        "quantity_low": 28,
        "processing_ts_ns": 32,
        "stage1_entry_ns": 40,
        "stage1_exit_ns": 48,
        "processing_entry_ns": 56,
        "processing_exit_ns": 64,
        "stage2_entry_ns": 72,
        "stage2_exit_ns": 80,
        "price": 88,
    }


def test_prices_of_won_and_of_coins_are_exact() -> None:
    records = np.zeros(2, dtype=message_dtype())
    records["price"] = [153_250_000 * _native.PRICE_SCALE, 1]
    assert records["price"].tolist() == [15_325_000_000_000_000, 1]
