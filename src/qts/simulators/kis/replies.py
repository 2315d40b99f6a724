"""KIS reply envelopes and message codes, with the texts of the venue."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from qts.simulators.server import reply

# code: (HTTP status, rt_cd, text). Codes marked U are not documented; their texts state the cause.
CODES: dict[str, tuple[int, str, str]] = {
    "EGW00103": (403, "1", "유효하지 않은 AppKey입니다."),
    "EGW00105": (403, "1", "유효하지 않은 AppSecret입니다."),
    "EGW00121": (500, "1", "유효하지 않은 token 입니다."),
    "EGW00123": (500, "1", "기간이 만료된 token 입니다."),
    "EGW00133": (403, "1", "접근토큰 발급 잠시 후 다시 시도하세요(1분당 1회)"),
    "EGW00201": (500, "1", "초당 거래건수를 초과하였습니다."),
    "EGW00215": (500, "1", "원장 처리 한도를 초과하였습니다."),
    "EGW00301": (500, "1", "연결 시간이 초과되었습니다. 직전 거래를 반드시 확인하세요."),
    "EGW02006": (500, "1", "모의투자 TR 이 아닙니다."),
    "EGW02007": (500, "1", "실전투자 TR 이 아닙니다."),
    "IGW00002": (500, "1", "계좌번호가 AppKey와 일치하지 않습니다."),
    "OPSQ0002": (500, "1", "없는 서비스 코드 입니다."),
    "OPSQ2001": (200, "1", "ERROR INPUT FIELD"),
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


def success(
    outputs: dict[str, Any], code: str = "MCA00000", text: str = "정상처리 되었습니다."
) -> dict[str, Any]:
    return {**outputs, "rt_cd": "0", "msg_cd": code, "msg1": text.ljust(_PADDED)}
