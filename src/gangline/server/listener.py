"""uvicorn, told to end quickly and to leave signals and logging to us."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from gangline.domain.errors import InvalidRequest
from gangline.server.parts import Stopping

__all__ = ["LOOPBACK", "Listener", "bind"]

LOOPBACK = "127.0.0.1"
_BACKLOG = 512
_GRACE_S = 2
_DATE_S = 1.0


class Listener(uvicorn.Server):
    """Serves until it is told to end; open streams notice at once, other calls get two seconds.

    Args:
        on_listening: called once connections are answered.
    """

    def __init__(self, app: ASGIApp, *, stopping: Stopping, on_listening: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=60,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )
        self._stopping = stopping
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Overrides uvicorn's to say when it is done."""
        await super().startup(sockets)
        self._on_listening()

    async def main_loop(self) -> None:
        """Overrides uvicorn's, which wakes ten times a second: the date in answers is as fine as a second."""
        while not await self.on_tick(0) and await self._stopping.pause(_DATE_S):
            pass

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Overrides uvicorn's, which would raise the signal again and end the process before it has cleaned up."""
        del sig, frame
        self._stopping.begin()


def bind(port: int, *, before: int | None) -> socket.socket:
    """A socket on loopback.

    Args:
        port: the port that was asked for; 0 for none in particular.
        before: the port of the server before, preferred so that open followers find this one again.
    Raises:
        InvalidRequest: the port that was asked for is taken.
    """
    if port:
        try:
            return _listen(port)
        except OSError as error:
            raise InvalidRequest(
                f"Port {port} cannot be listened on",
                why=error.strerror or str(error),
                fix="Unset GANGLINE_SERVER_PORT.",
            ) from error
    try:
        return _listen(before or 0)
    except OSError:
        return _listen(0)


def _listen(port: int) -> socket.socket:
    # With its protocol named, asyncio turns Nagle's algorithm off for it; without, every answer takes 40 ms longer.
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((LOOPBACK, port))
        found.listen(_BACKLOG)
    except OSError:
        found.close()
        raise
    return found
