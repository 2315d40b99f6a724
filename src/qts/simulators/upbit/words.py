"""The short names of the SIMPLE formats."""

from __future__ import annotations

from typing import Any

_COMMON = "type:ty code:cd timestamp:tms stream_type:st"
_PRICES = """
    trade_price:tp trade_volume:tv ask_bid:ab prev_closing_price:pcp change:c change_price:cp
    trade_timestamp:ttms trade_time:ttm
"""
_WORDS = {
    "ticker": f"""{_COMMON} {_PRICES}
        opening_price:op high_price:hp low_price:lp change_rate:cr signed_change_price:scp
        signed_change_rate:scr acc_trade_volume:atv acc_trade_volume_24h:atv24h
        acc_trade_price:atp acc_trade_price_24h:atp24h trade_date:tdt acc_ask_volume:aav
        acc_bid_volume:abv highest_52_week_price:h52wp highest_52_week_date:h52wdt
        lowest_52_week_price:l52wp lowest_52_week_date:l52wdt market_state:ms""",
    "trade": f"{_COMMON} {_PRICES} trade_date:td sequential_id:sid",
    "orderbook": f"""{_COMMON}
        total_ask_size:tas total_bid_size:tbs orderbook_units:obu ask_price:ap bid_price:bp
        ask_size:as bid_size:bs level:lv""",
    "myOrder": f"""{_COMMON}
        uuid:uid ask_bid:ab order_type:ot state:s trade_uuid:tuid price:p avg_price:ap volume:v
        remaining_volume:rv executed_volume:ev trades_count:tc reserved_fee:rsf remaining_fee:rmf
        paid_fee:pf locked:l executed_funds:ef time_in_force:tif trade_fee:tf is_maker:im
        identifier:id smp_type:smpt prevented_volume:pv prevented_locked:pl trade_timestamp:ttms
        order_timestamp:otms""",
    "myAsset": f"""{_COMMON}
        asset_uuid:astuid assets:ast currency:cu balance:b locked:l asset_timestamp:asttms""",
}
_SHORT = {kind: dict(pair.split(":") for pair in pairs.split()) for kind, pairs in _WORDS.items()}


def simplified(message: dict[str, Any]) -> dict[str, Any]:
    short = _SHORT.get(str(message.get("type")))
    return _renamed(message, short) if short else message


def _renamed(values: dict[str, Any], short: dict[str, str]) -> dict[str, Any]:
    return {
        short.get(name, name): (
            [_renamed(each, short) for each in value] if isinstance(value, list) else value
        )
        for name, value in values.items()
    }
