"""Where the ranks of an attempt meet: an address that all nodes reach, and a port that nobody else takes.

Standard library only.
"""

from __future__ import annotations

from gangline.agent.members import Members
from gangline.agent.rendezvous import ReservedPort, reserve_port

__all__ = ["Meeting"]


class Meeting:
    """The meeting place of one launch; each attempt, and the checks before it, have a port of their own.

    Args:
        advertised: the address that somebody has set for the leader; None: one that members have reached already.
    """

    def __init__(self, members: Members, advertised: str | None) -> None:
        self._members = members
        self._advertised = advertised
        self._port: ReservedPort | None = None

    def reserve(self) -> tuple[str, int]:
        """Address and a fresh port, kept until `release`.

        Raises:
            Transient: no port is free.
        """
        self._port = reserve_port()
        return self._members.meeting_address(self._advertised), self._port.port

    def to_try(self) -> list[str | int] | None:
        """What each node is to connect to before ranks meet there; None where it is known to be reached."""
        return self._members.meeting_point(self._advertised)

    def release(self) -> None:
        """Let others have the port."""
        if self._port is not None:
            self._port.release()
