"""What agents of one gang say to each other: JSON lines over TCP, and how a follower is let in. Standard library only.

A follower connects and sends `{"hello": node, "token": ..., ...}`; the leader answers `{"do": "welcome"}` or hangs up.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from gangline.agent.loop import Loop

__all__ = ["Connection", "Message", "connect", "parse_messages", "same_token"]

Message = Mapping[str, Any]

_CHUNK_BYTES = 1 << 16
_LONGEST_MESSAGE_BYTES = 16 << 20
_LONGEST_HELLO_BYTES = 1 << 16


def parse_messages(data: bytes) -> tuple[list[dict[str, Any]], bytes]:
    """Complete messages at the front of what was received, and the rest.

    Raises:
        ValueError: a line is not a JSON object.
    """
    *lines, rest = data.split(b"\n")
    messages = [json.loads(line) for line in lines if line]
    if not all(isinstance(message, dict) for message in messages):
        raise ValueError("a message is not a JSON object")
    return messages, rest


def _render(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def same_token(given: object, expected: str) -> bool:
    """Compare in a time that does not depend on where the two differ."""
    left, right = str(given).encode(), expected.encode()
    difference = len(left) ^ len(right)
    for a, b in zip(left.ljust(len(right), b"\0"), right, strict=False):
        difference |= a ^ b
    return difference == 0 and bool(expected)


class Connection:
    """One peer. Never blocks: what the peer does not take yet waits in memory."""

    def __init__(
        self,
        peer: socket.socket,
        loop: Loop,
        *,
        on_message: Callable[[dict[str, Any]], None],
        on_closed: Callable[[str], None],
        received: bytes = b"",
        longest_bytes: int = _LONGEST_MESSAGE_BYTES,
    ) -> None:
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.local_address: str = peer.getsockname()[0]
        self.longest_bytes = longest_bytes
        self.on_message = on_message
        self.on_closed = on_closed
        self._peer = peer
        self._loop = loop
        self._received = received
        self._unsent = b""
        self._sending = threading.Lock()
        self.closed = False
        loop.watch(peer, self._serve)
        if received:
            loop.after(0.0, lambda: self._take(b""))

    def send(self, message: Message) -> None:
        """Hand a message to the peer; a peer that is gone is told of through `on_closed`, never from here."""
        if self.closed:
            return
        with self._sending:
            self._unsent += _render(message)
        self._flush()

    def beat(self, message: Message) -> None:
        """Hand over a short message from another thread than the loop's; while others still wait, it is not needed."""
        with self._sending:
            if not self.closed and not self._unsent:
                data = _render(message)
                with suppress(OSError):  # seen by the loop's next read
                    self._unsent = data[self._peer.send(data) :]  # a rest goes with what is sent next

    def close(self) -> None:
        """Hang up; `on_closed` is not called."""
        if not self.closed:
            with self._sending:
                self.closed = True
                self._loop.unwatch(self._peer)
                self._peer.close()

    def drain(self, timeout_s: float) -> None:
        """Wait until the peer has taken everything, at most so long."""
        if self.closed or not self._unsent:
            return
        with suppress(OSError):
            self._peer.settimeout(timeout_s)
            self._peer.sendall(self._unsent)
            self._unsent = b""

    def _serve(self) -> None:
        if self._unsent:
            self._flush()
        try:
            data = self._peer.recv(_CHUNK_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(str(error))
            return
        if not data:
            self._lose("the connection was closed")
            return
        self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            messages, self._received = parse_messages(self._received + data)
        except ValueError as error:
            self._lose(f"not understood: {error}")
            return
        if len(self._received) > self.longest_bytes:
            self._lose("a message is too long")
            return
        for message in messages:
            if not self.closed:
                self.on_message(message)

    def _flush(self) -> None:
        with self._sending, suppress(OSError):  # a broken connection is seen by the next read
            sent = self._peer.send(self._unsent)
            self._unsent = self._unsent[sent:]
        self._loop.watch(self._peer, self._serve, writable=bool(self._unsent))

    def _lose(self, detail: str) -> None:
        self.close()
        self.on_closed(detail)


def connect(
    host: str, port: int, hello: Callable[[str], Message], *, connect_s: float, welcome_s: float
) -> tuple[socket.socket, bytes]:
    """Join at an address: connect, say hello, wait for the welcome.

    Args:
        hello: what to say, from the address that this side of the connection has.
    Returns:
        The connection, and what the leader sent after the welcome already.
    Raises:
        OSError: nobody is there, or it is not the leader of this gang.
    """
    peer = socket.create_connection((host, port), timeout=connect_s)
    try:
        peer.sendall(json.dumps(hello(peer.getsockname()[0])).encode() + b"\n")
        peer.settimeout(welcome_s)
        return peer, _welcome(peer)
    except BaseException:
        peer.close()
        raise


def _welcome(peer: socket.socket) -> bytes:
    received = b""
    while b"\n" not in received:
        data = peer.recv(_CHUNK_BYTES)
        if not data or len(received) > _LONGEST_HELLO_BYTES:
            raise ConnectionRefusedError("the leader hung up without a welcome")
        received += data
    line, _, rest = received.partition(b"\n")
    with suppress(ValueError):
        if json.loads(line) == {"do": "welcome"}:
            return rest
    raise ConnectionRefusedError("what answered is not the leader of this gang")
