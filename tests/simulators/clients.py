"""Minimal clients, written from the documentation of the venues."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import uuid
from typing import Any
from urllib.parse import urlencode

import aiohttp
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from qts.simulators import KisSimulator, UpbitSimulator

STOCK = "/uapi/domestic-stock/v1/"


class Reply:
    def __init__(self, status: int, headers: Any, body: Any) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def code(self) -> str:
        return str(self.body.get("msg_cd") or self.body.get("error_code"))


class Kis:
    """Client of one key of a simulated KIS."""

    def __init__(self, simulator: KisSimulator, http: aiohttp.ClientSession, key: int = 0) -> None:
        self.simulator, self.http = simulator, http
        self.key = simulator.config.keys[key]
        self.token = ""

    async def call(self, method: str, path: str, **options: Any) -> Reply:
        async with self.http.request(method, self.simulator.url + path, **options) as reply:
            return Reply(reply.status, reply.headers, await reply.json())

    async def issue(self) -> Reply:
        body = {
            "grant_type": "client_credentials",
            "appkey": self.key.app_key,
            "appsecret": self.key.app_secret,
        }
        reply = await self.call("POST", "/oauth2/tokenP", json=body)
        self.token = reply.body.get("access_token", self.token)
        return reply

    def headers(self, tr_id: str) -> dict[str, str]:
        return {
            "content-type": "application/json; charset=utf-8",
            "authorization": f"Bearer {self.token}",
            "appkey": self.key.app_key,
            "appsecret": self.key.app_secret,
            "tr_id": tr_id,
            "custtype": "P",
        }

    async def get(self, path: str, tr_id: str, tr_cont: str = "", **params: str) -> Reply:
        headers = self.headers(tr_id) | {"tr_cont": tr_cont}
        return await self.call("GET", STOCK + path, headers=headers, params=params)

    async def post(self, path: str, tr_id: str, **body: str) -> Reply:
        return await self.call("POST", STOCK + path, headers=self.headers(tr_id), json=body)

    @property
    def account(self) -> dict[str, str]:
        return {"CANO": self.key.account[:8], "ACNT_PRDT_CD": self.key.account[8:]}

    async def price(self, code: str = "005930") -> Reply:
        return await self.get(
            "quotations/inquire-price",
            "FHKST01010100",
            FID_COND_MRKT_DIV_CODE="J",
            FID_INPUT_ISCD=code,
        )

    async def many(self, codes: list[str]) -> Reply:
        params: dict[str, str] = {}
        for n, code in enumerate(codes, 1):
            params |= {f"FID_COND_MRKT_DIV_CODE_{n}": "J", f"FID_INPUT_ISCD_{n}": code}
        return await self.get("quotations/intstock-multprice", "FHKST11300006", **params)

    async def order(self, side: str, quantity: int, price: int = 0, **more: str) -> Reply:
        """Place an order, a market order without a price."""
        letter = "V" if self.simulator.config.paper else "T"
        tr_id = letter + {"buy": "TTC0012U", "sell": "TTC0011U"}[side]
        body = {
            "PDNO": "005930",
            "ORD_DVSN": "00" if price else "01",
            "ORD_QTY": str(quantity),
            "ORD_UNPR": str(price),
            "EXCG_ID_DVSN_CD": "KRX",
        }
        return await self.post("trading/order-cash", tr_id, **self.account, **{**body, **more})

    async def cancel(self, number: str, **more: str) -> Reply:
        letter = "V" if self.simulator.config.paper else "T"
        body = {
            "KRX_FWDG_ORD_ORGNO": "91252",
            "ORGN_ODNO": number,
            "ORD_DVSN": "00",
            "RVSE_CNCL_DVSN_CD": "02",
            "ORD_QTY": "0",
            "ORD_UNPR": "0",
            "QTY_ALL_ORD_YN": "Y",
        }
        return await self.post(
            "trading/order-rvsecncl", letter + "TTC0013U", **self.account, **{**body, **more}
        )

    async def executions(self, tr_cont: str = "", **more: str) -> Reply:
        letter = "V" if self.simulator.config.paper else "T"
        values = {"INQR_STRT_DT": "20260101", "INQR_END_DT": "20271231", "INQR_DVSN": "01"}
        return await self.get(
            "trading/inquire-daily-ccld",
            letter + "TTC0081R",
            tr_cont,
            **self.account,
            **{**values, **more},
        )

    async def balance(self) -> Reply:
        letter = "V" if self.simulator.config.paper else "T"
        return await self.get("trading/inquire-balance", letter + "TTC8434R", **self.account)

    async def approval(self) -> str:
        body = {
            "grant_type": "client_credentials",
            "appkey": self.key.app_key,
            "secretkey": self.key.app_secret,
        }
        return str((await self.call("POST", "/oauth2/Approval", json=body)).body["approval_key"])

    async def control(self, method: str, path: str, /, **body: Any) -> Any:
        return (await self.call(method, f"/_control/{path}", json=body or None)).body


async def until_closed(socket: aiohttp.ClientWebSocketResponse) -> aiohttp.WSMsgType:
    """Read until the connection closes and return how it closed."""
    while True:
        message = await socket.receive(timeout=60)
        if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            return message.type


class KisSocket:
    """One WebSocket connection."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, approval: str) -> None:
        self.socket, self.approval = socket, approval

    async def request(self, tr_id: str, tr_key: str, tr_type: str = "1") -> dict[str, Any]:
        header = {
            "approval_key": self.approval,
            "custtype": "P",
            "tr_type": tr_type,
            "content-type": "utf-8",
        }
        await self.socket.send_json(
            {"header": header, "body": {"input": {"tr_id": tr_id, "tr_key": tr_key}}}
        )
        while True:
            text = await self.socket.receive_str(timeout=60)
            if text.startswith("{") and '"body"' in text:
                reply: dict[str, Any] = json.loads(text)
                return reply

    async def frame(self, tr_id: str) -> tuple[str, list[list[str]]]:
        """Return the raw payload and the records of the next frame of a kind."""
        while True:
            text = await self.socket.receive_str(timeout=60)
            if text[:2] not in ("0|", "1|") or text.split("|")[1] != tr_id:
                continue
            _, _, count, payload = text.split("|", 3)
            fields = payload.split("^")
            width = len(fields) // int(count)
            rows = [fields[n * width : (n + 1) * width] for n in range(int(count))]
            return payload, rows


def decrypted(payload: str, key: str, iv: str) -> list[str]:
    cipher = Cipher(algorithms.AES256(key.encode()), modes.CBC(iv.encode())).decryptor()
    padded = cipher.update(base64.b64decode(payload)) + cipher.finalize()
    unpadder = PKCS7(128).unpadder()
    return (unpadder.update(padded) + unpadder.finalize()).decode().split("^")


class Upbit:
    """Client of one key of a simulated Upbit."""

    def __init__(self, simulator: UpbitSimulator, http: aiohttp.ClientSession) -> None:
        self.simulator, self.http = simulator, http
        self.key = simulator.config.keys[0]

    def bearer(self, query: str = "", algorithm: str = "HS512", **claims: str) -> str:
        payload = {"access_key": self.key.access_key, "nonce": str(uuid.uuid4())}
        if query:
            payload["query_hash"] = hashlib.sha512(query.encode()).hexdigest()
            payload["query_hash_alg"] = "SHA512"
        head = _part({"alg": algorithm, "typ": "JWT"}) + "." + _part(payload | claims)
        digest = {"HS256": "sha256", "HS512": "sha512"}[algorithm]
        signature = hmac.digest(self.key.secret_key.encode(), head.encode(), digest)
        return f"Bearer {head}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"

    async def call(self, method: str, path: str, header: str = "", **options: Any) -> Reply:
        headers = {"Authorization": header} if header else {}
        url = self.simulator.url + path
        async with self.http.request(method, url, headers=headers, **options) as reply:
            return Reply(reply.status, reply.headers, await reply.json())

    async def public(self, path: str, **params: str) -> Reply:
        return await self.call("GET", f"/v1/{path}", params=params)

    async def private(self, method: str, path: str, **values: str) -> Reply:
        query = "&".join(f"{name}={value}" for name, value in values.items())
        if method == "POST":
            return await self.call(method, f"/v1/{path}", self.bearer(query), json=values)
        url = f"/v1/{path}" + (f"?{urlencode(values)}" if values else "")
        return await self.call(method, url, self.bearer(query))

    async def control(self, method: str, path: str, /, **body: Any) -> Any:
        return (await self.call(method, f"/_control/{path}", json=body or None)).body

    async def order(self, **values: str) -> Reply:
        return await self.private("POST", "orders", **values)


def _part(values: dict[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")
