"""KIS gateway: keys, tokens, approval keys and request limits."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
from aiohttp import web

from qts.domain import Clock
from qts.simulators.config import PAPER_LIMITS, REAL_LIMITS, KisKey, KisSimulatorConfig
from qts.simulators.market.rules import KST, moment_of
from qts.simulators.matching import SimulatedAccount
from qts.simulators.server import MarketClock, Meter, reply

# code: (HTTP status, rt_cd, text). Codes marked U are not documented; their texts state the cause.
CODES: dict[str, tuple[int, str, str]] = {
    "EGW00102": (403, "1", "AppKey는 필수입니다."),
    "EGW00103": (403, "1", "유효하지 않은 AppKey입니다."),
    "EGW00104": (403, "1", "AppSecret은 필수입니다."),
    "EGW00105": (403, "1", "유효하지 않은 AppSecret입니다."),
    "EGW00115": (403, "1", "권한부여 타입(grant_type)은 필수입니다."),
    "EGW00116": (403, "1", "지원하지 않는 권한부여 타입(grant_type)입니다."),
    "EGW00121": (500, "1", "유효하지 않은 token 입니다."),
    "EGW00123": (500, "1", "기간이 만료된 token 입니다."),
    "EGW00133": (403, "1", "접근토큰 발급 잠시 후 다시 시도하세요(1분당 1회)"),
    "EGW00201": (500, "1", "초당 거래건수를 초과하였습니다."),
    "EGW00202": (404, "1", "GW라우팅 중 오류가 발생했습니다."),  # U for an unknown path
    "EGW00215": (500, "1", "원장 처리 한도를 초과하였습니다."),
    "EGW00301": (500, "1", "연결 시간이 초과되었습니다. 직전 거래를 반드시 확인하세요."),
    "EGW02006": (500, "1", "모의투자 TR 이 아닙니다."),
    "EGW02007": (500, "1", "실전투자 TR 이 아닙니다."),
    "IGW00002": (500, "1", "계좌번호가 AppKey와 일치하지 않습니다."),
    "OPSQ0002": (500, "1", "없는 서비스 코드 입니다."),
    "OPSQ2001": (200, "2", "ERROR"),
    "KIOK0560": (200, "7", "조회할 내용이 없습니다."),
    "APBK0344": (200, "7", "원주문번호가 존재하지 않습니다."),  # U
    "APBK0400": (200, "7", "주문 가능한 수량을 초과했습니다."),
    "APBK0506": (200, "7", "주문단가를 호가단위로 입력하십시오."),  # U
    "APBK0551": (200, "7", "상하한가를 벗어난 주문단가입니다."),  # U
    "APBK0656": (200, "7", "해당종목정보가 없습니다."),
    "APBK0918": (200, "7", "장운영시간이 아닙니다."),
    "APBK0927": (200, "7", "정정취소 가능수량이 없습니다."),  # U
    "APBK0952": (200, "7", "주문가능금액을 초과 했습니다"),
    "APBK1058": (200, "7", "해당 주문유형은 사용할 수 없습니다."),
    "40100000": (200, "7", "모의투자 영업일이 아닙니다."),
    "40570000": (200, "7", "모의투자 장시작전 입니다."),
}
_PADDED = 80  # msg1 comes padded with blanks


class KisError(Exception):
    """Error reply with one of the codes."""

    def __init__(self, code: str, detail: str = "") -> None:
        self.code = code
        self.detail = detail
        super().__init__(code)

    def reply(self) -> web.Response:
        status, rt_cd, text = CODES[self.code]
        message = f"{text} {self.detail}".strip().ljust(_PADDED)
        return reply({"rt_cd": rt_cd, "msg_cd": self.code, "msg1": message}, status=status)


class TokenError(KisError):
    """Error reply of the token endpoints, which have a different form."""

    def reply(self) -> web.Response:
        status, _, text = CODES[self.code]
        return reply({"error_code": self.code, "error_description": text}, status=status)


def invalid(field: str) -> KisError:
    """Return the error for a value that is not allowed."""
    return KisError("OPSQ2001", f"INVALID {field}")


def required(values: Mapping[str, str], field: str) -> str:
    """Return a field of a request; raise KisError if it is missing."""
    value = values.get(field)
    if value is None:
        raise KisError("OPSQ2001", f"INPUT FIELD NOT FOUND [{field}]")
    return value


def names(text: str) -> tuple[str, ...]:
    """Return the names of the fields of an answer, in its order."""
    return tuple(text.split())


def success(
    outputs: dict[str, Any], code: str = "MCA00000", text: str = "정상처리 되었습니다."
) -> dict[str, Any]:
    return {**outputs, "rt_cd": "0", "msg_cd": code, "msg1": text.ljust(_PADDED)}


_NS = 10**9
TOKEN_S = 86_400
SAME_TOKEN_S = 6 * 3600
BUY_PPM, SELL_PPM = 140, 1_640  # commission, and tax on sales


@dataclass
class KisToken:
    text: str
    issued_ns: int


@dataclass(eq=False)
class KisCustomer:
    """Key with its account, tokens and request counts."""

    key: KisKey
    meter: Meter
    account: SimulatedAccount
    tokens: dict[str, KisToken] = field(default_factory=dict)
    last_token: KisToken | None = None
    last_issue_ns: int | None = None
    issues: int = 0
    approvals: set[str] = field(default_factory=set)


class KisGateway:
    def __init__(self, config: KisSimulatorConfig, clock: Clock, market: MarketClock) -> None:
        self._config = config
        self._clock = clock
        self._market = market
        limits = config.limits or (PAPER_LIMITS if config.paper else REAL_LIMITS)
        self.customers = {
            key.app_key: KisCustomer(
                key, Meter(limits, config.window), SimulatedAccount(key.cash, 1, BUY_PPM, SELL_PPM)
            )
            for key in config.keys
        }

    def now_ns(self) -> int:
        """Return the time of limits and tokens."""
        by_market = self._config.limits_clock == "market"
        return self._market.now_ns() if by_market else self._clock.monotonic_ns()

    # Requests

    def admit(self, request: web.Request) -> KisCustomer:
        """Return the customer of a request; raise KisError for a limit, key or token error."""
        customer = self.customers.get(request.headers.get("appkey", ""))
        if customer is None:
            raise KisError("EGW00103")
        if not customer.meter.admit(self.now_ns()):
            raise KisError("EGW00201")
        if request.headers.get("appsecret") != customer.key.app_secret:
            raise KisError("EGW00105")
        text = request.headers.get("authorization", "").removeprefix("Bearer ")
        token = customer.tokens.get(text)
        if token is None:
            raise KisError("EGW00121")
        if self.now_ns() - token.issued_ns >= TOKEN_S * _NS:
            raise KisError("EGW00123")
        return customer

    # Tokens

    async def issue_token(self, request: web.Request) -> web.Response:
        values = await body_of(request)
        customer = self._granted(values, "appsecret")
        now, interval = self.now_ns(), round(self._config.token_interval_s * _NS)
        if customer.last_issue_ns is not None and now - customer.last_issue_ns < interval:
            raise TokenError("EGW00133")
        customer.last_issue_ns = now
        token = self._token(customer, now)
        left_s = TOKEN_S - (now - token.issued_ns) // _NS
        return reply(
            {
                "access_token": token.text,
                "token_type": "Bearer",
                "expires_in": left_s,
                "access_token_token_expired": self._wall_after(left_s),
            }
        )

    def _named(self, values: Mapping[str, str]) -> KisCustomer:
        key = values.get("appkey", "")
        customer = self.customers.get(key)
        if customer is None:
            raise TokenError("EGW00103" if key else "EGW00102")
        return customer

    def _granted(self, values: Mapping[str, str], secret: str) -> KisCustomer:
        """Return the customer of a grant; `secret` is the endpoint's field of the app secret."""
        grant = values.get("grant_type", "")
        if grant != "client_credentials":
            raise TokenError("EGW00116" if grant else "EGW00115")
        return self._authenticated(values, secret)

    def _authenticated(self, values: Mapping[str, str], secret: str) -> KisCustomer:
        customer = self._named(values)
        given = values.get(secret, "")
        if given != customer.key.app_secret:
            raise TokenError("EGW00105" if given else "EGW00104")
        return customer

    def _token(self, customer: KisCustomer, now: int) -> KisToken:
        last = customer.last_token
        if last and last.text in customer.tokens and now - last.issued_ns < SAME_TOKEN_S * _NS:
            return last
        customer.issues += 1
        secret = f"{customer.key.app_key}:{customer.issues}:{uuid.uuid4()}".encode()
        text = base64.urlsafe_b64encode(hashlib.sha512(secret).digest() * 3).decode()
        customer.last_token = KisToken("eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzUxMiJ9." + text, now)
        customer.tokens[customer.last_token.text] = customer.last_token
        return customer.last_token

    def _wall_after(self, seconds: int) -> str:
        by_market = self._config.limits_clock == "market"
        now = moment_of(self._market.now()) if by_market else self._clock.now().astimezone(KST)
        return (now + timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S")

    async def revoke_token(self, request: web.Request) -> web.Response:
        values = await body_of(request)
        self._named(values).tokens.pop(values.get("token", ""), None)
        return reply({"code": 200, "message": "접근토큰 폐기에 성공하였습니다"})

    async def approve(self, request: web.Request) -> web.Response:
        """Issue an approval key for the WebSocket; the secret's field is `secretkey` here."""
        values = await body_of(request)
        customer = self._granted(values, "secretkey")
        approval = str(uuid.uuid4())
        customer.approvals.add(approval)
        return reply({"approval_key": approval})

    def approved(self, approval: str) -> KisCustomer | None:
        for customer in self.customers.values():
            if approval in customer.approvals:
                return customer
        return None

    async def hash_body(self, request: web.Request) -> web.Response:
        """Return the hash of a body; it needs the key's headers, but no token."""
        self._authenticated(request.headers, "appsecret")
        values = await body_of(request)
        digest = hashlib.sha256(msgspec.json.encode(values)).hexdigest()
        return reply({"BODY": values, "HASH": digest})

    def age_tokens(self, seconds: float = TOKEN_S) -> None:
        """Make every issued token older; they expire after a day."""
        for customer in self.customers.values():
            for token in customer.tokens.values():
                token.issued_ns -= round(seconds * _NS)


async def body_of(request: web.Request) -> dict[str, str]:
    """Return the JSON object of strings in the body; raise KisError otherwise."""
    try:
        return msgspec.json.decode(await request.read(), type=dict[str, str])
    except msgspec.DecodeError as error:
        raise KisError("OPSQ2001", str(error)) from None
