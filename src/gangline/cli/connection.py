"""How commands reach the server. The client is imported when a command first needs it.

Imports nothing heavy by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gangline.client.client import Client

__all__ = ["connect"]


def connect(*, start: bool = True) -> Client:
    """The client of this user's server.

    Args:
        start: start a server where none runs.
    Raises:
        ServerUnreachable: none runs and none was to be started, or it does not come up.
        VersionMismatch: the server that runs is of another version.
    """
    from gangline.client.connection import connect as connect_client  # noqa: PLC0415 - httpx takes 100 ms to import

    return connect_client(start=start)
