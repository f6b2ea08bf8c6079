"""Addresses at which others may reach this machine, found without asking any name server. Standard library only."""

from __future__ import annotations

import re
import socket
from contextlib import closing, suppress
from pathlib import Path

__all__ = ["LOOPBACK", "UNREACHED", "is_loopback", "own_addresses", "parse_local_addresses", "probe_address"]

LOOPBACK = "127.0.0.1"
UNREACHED = "the leader is not reached"
"""Words by which the leader knows why a node does not join."""
_PROBE_S = 3.0
_FIB = Path("/proc/net/fib_trie")
_LOCAL = re.compile(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL")
_SOMEWHERE = ("192.0.2.1", 9)
"""An address for documentation; connecting a datagram socket to it sends nothing, and shows the route's own address."""


def own_addresses() -> list[str]:
    """IPv4 addresses of this machine but for loopback, the one of the default route first."""
    found: list[str] = []
    with suppress(OSError), closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect(_SOMEWHERE)
        found.append(probe.getsockname()[0])
    with suppress(OSError):
        found.extend(parse_local_addresses(_FIB.read_text(encoding="ascii")))
    return [address for address in dict.fromkeys(found) if not is_loopback(address)]


def parse_local_addresses(fib_trie: str) -> list[str]:
    """Local addresses in the kernel's routing table, in its order."""
    return list(dict.fromkeys(_LOCAL.findall(fib_trie)))


def is_loopback(address: str) -> bool:
    """Whether only this machine itself can be meant."""
    return address.startswith("127.") or address == "::1"


def probe_address(address: str, port: int) -> str:
    """Connect and hang up; "" where that works, else why it does not."""
    try:
        socket.create_connection((address, port), timeout=_PROBE_S).close()
    except OSError as error:
        return error.strerror or str(error)
    except UnicodeError:
        return "it is no host name"
    return ""
