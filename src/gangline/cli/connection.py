"""How commands reach the server. The client is imported when a command first needs it.

Imports nothing heavy by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.cli.terminal import say

if TYPE_CHECKING:
    from gangline.client.client import Client

__all__ = ["connect"]

_OTHER_CODE = (
    "Warning: the server that runs was started by other code of this version, and has runs to look after. "
    "`gangline server stop` ends it, the next command starts a new one, and runs go on meanwhile."
)


def connect(*, start: bool = True) -> Client:
    """The client of this user's server.

    Args:
        start: start a server where none runs.
    Raises:
        ServerUnreachable: none runs and none was to be started, or it does not come up.
        VersionMismatch: the server that runs is of another version.
    """
    from gangline.client.connection import connect as connect_client  # noqa: PLC0415 - httpx takes 100 ms to import

    client = connect_client(start=start)
    if client.is_of_other_code:
        say(_OTHER_CODE, err=True)
    return client
