"""Ports on which ranks meet, chosen so that nobody else takes them first. Standard library only.

A rank binds the port some time after it was chosen, so the choice has to last. Ports below the range from which the
kernel hands out ports by itself are only ever taken by somebody who asks for them by number. Among gangs of Gangline a
port is reserved by an abstract socket of its name, which lives as long as its agent and exactly where the port does (in
one network namespace). What is left, a stranger who asks for that number in that moment, is answered by another choice.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from gangline.domain.errors import Transient

__all__ = ["ReservedPort", "decide_port_range", "reserve_port"]

_LOWEST = 20_000
_HIGHEST = 32_767
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MOST_TRIES = 2_000
_LEAST_CHOICE = 512


class ReservedPort:
    """A free port that no other gang of this machine is given until `release`."""

    def __init__(self, port: int, claim: socket.socket | None) -> None:
        self.port = port
        self._claim = claim

    def release(self) -> None:
        """Let others have it; safe to repeat."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None


def reserve_port() -> ReservedPort:
    """Choose a port that is free now and stays reserved.

    Raises:
        Transient: this machine has no free port in the range.
    """
    low, high = decide_port_range(_read_ephemeral())
    for port in _candidates(low, high):
        claim = _claim(port)
        if claim is None and sys.platform == "linux":
            continue
        if _is_free(port):
            return ReservedPort(port, claim)
        if claim is not None:
            claim.close()
    raise Transient(f"No free port between {low} and {high}", fix="End what holds them, or widen the range")


def decide_port_range(ephemeral: tuple[int, int]) -> tuple[int, int]:
    """Where to look, both ends included: outside of what the kernel hands out, as far as there is room. Pure."""
    low, high = ephemeral
    if low - 1 - _LOWEST >= _LEAST_CHOICE:
        return _LOWEST, min(_HIGHEST, low - 1)
    if 65_535 - (high + 1) >= _LEAST_CHOICE:
        return high + 1, 65_535
    if low - 1 - 1_024 >= _LEAST_CHOICE:
        return 1_024, low - 1
    return _LOWEST, _HIGHEST


def _candidates(low: int, high: int) -> Iterator[int]:
    for _ in range(_MOST_TRIES):
        yield low + int.from_bytes(os.urandom(4), "little") % (high - low + 1)


def _read_ephemeral() -> tuple[int, int]:
    try:
        low, high = map(int, _EPHEMERAL.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return 49_152, 65_535
    return low, high


def _claim(port: int) -> socket.socket | None:
    if sys.platform != "linux":
        return None
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0gangline-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim


def _is_free(port: int) -> bool:
    return all(_can_bind(family, address, port) for family, address in ((socket.AF_INET, ""), (socket.AF_INET6, "::")))


def _can_bind(family: socket.AddressFamily, address: str, port: int) -> bool:
    try:
        probe = socket.socket(family, socket.SOCK_STREAM)
    except OSError:  # no IPv6 here, so nobody can hold the port there
        return True
    with closing(probe):
        try:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((address, port))
        except OSError as error:
            return error.errno not in {errno.EADDRINUSE, errno.EACCES}
    return True
