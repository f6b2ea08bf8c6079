"""Errors as answers: those raised on purpose say what they are, the others get a number that the log explains."""

from __future__ import annotations

import logging
import secrets
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gangline.domain.errors import Conflict, GanglineError, InvalidRequest, NotFound, StorageFull
from gangline.server.answers import json_answer
from gangline.store.damage import says_damaged
from gangline.store.full import says_full
from gangline.store.migrate import DatabaseDamaged

__all__ = ["answer_for", "answer_unexpected", "install"]

_log = logging.getLogger(__name__)


def install(app: FastAPI) -> None:
    """Answer every error of the routes in one shape: `{"error": {code, what, why, fix}}`."""

    async def on_purpose(_request: Request, error: Exception) -> Response:
        return answer_for(error) if isinstance(error, GanglineError) else answer_unexpected(error)

    async def not_valid(_request: Request, error: Exception) -> Response:
        return answer_for(_explain(error) if isinstance(error, RequestValidationError) else error)

    async def of_http(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
        return _for_status(request, status)

    app.add_middleware(_Catch)
    app.add_exception_handler(GanglineError, on_purpose)
    app.add_exception_handler(RequestValidationError, not_valid)
    app.add_exception_handler(HTTPException, of_http)


class _Catch:
    """ASGI middleware: answers what no handler knows. An answer that has begun breaks off, so that a client notices."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception as error:
            if begun:
                raise
            await answer_unexpected(error)(scope, receive, send)


def answer_for(error: Exception) -> Response:
    """The answer to an error."""
    if not isinstance(error, GanglineError):
        return answer_unexpected(error)
    return json_answer({"error": error.to_dict()}, status=error.http_status)


def answer_unexpected(error: BaseException) -> Response:
    """The answer to what nobody foresaw; its trace goes to the log under the same number."""
    if says_full(error):
        return answer_for(_full(error))
    if says_damaged(getattr(error, "orig", None)):
        return answer_for(
            DatabaseDamaged(
                "The server's database is damaged",
                why=str(getattr(error, "orig", "")),
                fix="Try again: the next server puts it aside and adopts the runs from their folders.",
            )
        )
    number = secrets.token_hex(4)
    _log.error("error %s", number, exc_info=error)
    return answer_for(
        GanglineError(
            "The server made a mistake",
            why=f"{type(error).__name__}: {error}",
            fix=f"`gangline server logs` has the whole of it under {number}; please report it.",
        )
    )


def _full(error: BaseException) -> StorageFull:
    _log.error("the disk of the state folder takes no more: %s", error)
    cause = getattr(error, "orig", None) or error
    return StorageFull(
        "The disk of the server's state folder takes no more",
        why=f"{type(cause).__name__}: {cause}",
        fix="Make room there (`gangline server status` names the folder), or raise its quota, and try again.",
    )


def _explain(error: RequestValidationError) -> InvalidRequest:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:]) or "body"
    return InvalidRequest(f"`{where}` of the request is not valid", why=str(first["msg"]))


def _for_status(request: Request, status: int) -> Response:
    what = f"{request.method} {request.url.path}"
    if status == HTTPStatus.NOT_FOUND:
        return answer_for(NotFound(f"There is no {what}", fix="The calls are listed in /api/v1/openapi.json."))
    cls = Conflict if status == HTTPStatus.CONFLICT else InvalidRequest
    error = cls(f"{what} cannot be answered", why=HTTPStatus(status).phrase)
    return json_answer({"error": error.to_dict()}, status=status)
