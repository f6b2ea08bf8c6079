"""The gate before every route: who may call, and from which page. Every answer carries the version.

The server listens on loopback, where any user of the machine and any web page in a browser can reach it. The token
keeps out the users; the check of the Host header keeps out pages whose name was pointed at 127.0.0.1 after loading.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gangline.domain.errors import GanglineError, InvalidRequest, Unauthorized
from gangline.domain.version import VERSION
from gangline.server.errors import answer_for

__all__ = ["Gate"]

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_VERSION_HEADER = (b"x-gangline-version", VERSION.encode())


class Gate:
    """ASGI middleware: refuses strangers, and adds the version to what it lets through.

    Args:
        token: what `Authorization: Bearer …` has to carry.
    """

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_version(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), _VERSION_HEADER]
            await send(message)

        refusal = self._refuse({name.lower(): value for name, value in scope["headers"]})
        await (refusal or self._app)(scope, receive, send_with_version)

    def _refuse(self, headers: Mapping[bytes, bytes]) -> Response | None:
        try:
            _check_host(headers.get(b"host", b"").decode("latin-1"))
            self._check_token(headers.get(b"authorization", b""))
        except GanglineError as error:
            return answer_for(error)
        return None

    def _check_token(self, header: bytes) -> None:
        scheme, _, token = header.partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthorized(
                "The call carries no token",
                fix="Send `Authorization: Bearer TOKEN`; the file `token` of the state folder holds it.",
            )
        if not hmac.compare_digest(token.strip(), self._token):
            raise Unauthorized(
                "The call carries a wrong token",
                fix="The file `token` of the server's state folder holds the right one.",
            )


def _check_host(host: str) -> None:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        name = None
    if name not in _LOOPBACK:
        raise InvalidRequest(f"The server is not called `{host[:100]}`", fix="Call it by 127.0.0.1 or localhost.")
