"""The person's side of the debugger in a rank; `agent/debugger.py` is the other one, and describes what is said."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["DebugLine", "open_debug_line"]


class DebugLine:
    """An open line to the debugger of one rank."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream = connection.makefile("r", encoding="utf-8", newline="\n")

    def messages(self) -> Iterator[dict[str, Any]]:
        """What the rank says, until it has ended."""
        with suppress(OSError):
            for line in self._stream:
                yield json.loads(line)

    def command(self, line: str) -> bool:
        """Give the debugger a command; False: the rank has ended."""
        return self._send({"line": line})

    def end_of_input(self) -> bool:
        """As Ctrl-D at its prompt."""
        return self._send({"eof": True})

    def interrupt(self) -> bool:
        """Have the rank stop at its next line."""
        return self._send({"interrupt": True})

    def close(self) -> None:
        """Hang up; the rank waits for the next person."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _send(self, message: dict[str, Any]) -> bool:
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True


def open_debug_line(path: Path) -> DebugLine | None:
    """Call the debugger that listens at `path`; None: nobody does, or not yet."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError:
        connection.close()
        return None
    try:
        # The path may be longer than the 108 bytes that the system takes for a socket.
        connection.connect(f"/proc/self/fd/{folder}/{path.name}" if sys.platform == "linux" else str(path))
    except OSError:
        connection.close()
        return None
    finally:
        os.close(folder)
    return DebugLine(connection)
