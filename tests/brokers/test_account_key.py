"""The key of an account: stable, different per account and environment, free of the number."""

from __future__ import annotations

import pytest

from qts.brokers import BrokersConfig, PaperConfig, account_key
from qts.domain import AccountKey, RefusedError, Secret
from qts.venues import KisConfig, UpbitConfig, VenuesConfig

NUMBER = "1234567801"


def kis(**changed: object) -> AccountKey:
    config = KisConfig(**{"account": Secret(NUMBER), **changed})  # type: ignore[arg-type]
    return account_key(BrokersConfig(broker="kis"), VenuesConfig(kis=config))


def test_the_same_settings_give_the_same_key_without_the_number() -> None:
    assert kis() == kis()
    assert NUMBER not in str(kis())
    assert NUMBER[:8] not in str(kis())


def test_accounts_and_environments_have_keys_of_their_own() -> None:
    keys = {
        kis(),
        kis(account=Secret("1234567802")),
        kis(paper=True),
        kis(url="http://127.0.0.1:9000"),
        account_key(BrokersConfig(), VenuesConfig()),
        account_key(BrokersConfig(paper=PaperConfig(account="second")), VenuesConfig()),
        account_key(BrokersConfig(broker="upbit"), VenuesConfig()),
        account_key(
            BrokersConfig(broker="upbit"), VenuesConfig(upbit=UpbitConfig(account="second"))
        ),
    }
    assert len(keys) == 8


def test_an_upbit_account_keeps_its_key_when_its_access_key_is_replaced() -> None:
    def of(access: str) -> AccountKey:
        upbit = UpbitConfig(access_key=Secret(access), secret_key=Secret("s" * 40))
        return account_key(BrokersConfig(broker="upbit"), VenuesConfig(upbit=upbit))

    assert of("old") == of("new")


def test_kis_without_an_account_number_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"venues\.kis\.account is not set"):
        account_key(BrokersConfig(broker="kis"), VenuesConfig())
