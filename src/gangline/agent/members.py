"""The members of a gang as its leader knows them: who has joined, who still lives, how to reach them.

Standard library only.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gangline.agent.addresses import LOOPBACK, is_loopback, own_addresses
from gangline.agent.gangwire import Connection, Message, same_token
from gangline.agent.launchspec import LaunchSpec
from gangline.agent.loop import Loop
from gangline.agent.pulse import Pulse
from gangline.agent.site import complain
from gangline.rundir.files import write_json
from gangline.rundir.layout import LaunchDir

__all__ = ["BEAT_S", "Member", "Members", "silence_limit_s"]

BEAT_S = 1.0
"""How often each side says that it lives."""
_STALL_S = 5.0
_BACKLOG = 1024
_LONGEST_HELLO_BYTES = 1 << 16
_CLOCK_PINGS = 4
_MOST_STRANGERS = 256


def silence_limit_s(nodes: int) -> float:
    """How long a peer may be silent before it counts as lost; large gangs get more time."""
    return 10.0 + 0.05 * nodes


@dataclass(slots=True, kw_only=True)
class Member:
    """One agent of the gang."""

    node: int
    host: str
    address: str
    pid: int
    machine: str
    devices: Sequence[str] = ()
    """Those that its scheduler has given it."""
    send: Callable[[Message], None]
    connection: Connection | None = None
    clock: tuple[float, float] | None = None
    """How many seconds its clock is ahead of the leader's, and how long the round trip took that measured it."""
    pings: int = 0
    """None for the leader's own node."""
    heard: float = field(default_factory=time.monotonic)

    @property
    def ahead_s(self) -> float:
        """How far its clock is ahead of the leader's, as far as that was measured."""
        return 0.0 if self.clock is None else self.clock[0]


class Members:
    """Lets followers in, passes on what they say, and notices when one is gone."""

    def __init__(
        self,
        launch: LaunchSpec,
        loop: Loop,
        pulse: Pulse,
        *,
        on_joined: Callable[[], None],
        on_message: Callable[[int, dict[str, Any]], None],
        on_lost: Callable[[Member, str], None],
    ) -> None:
        self.by_node: dict[int, Member] = {}
        self.lost: set[int] = set()
        self.sealed = False
        """Once the gang is complete nobody else is let in."""
        self._launch = launch
        self._loop = loop
        self._pulse = pulse
        self._on_joined = on_joined
        self._on_message = on_message
        self._on_lost = on_lost
        self._strangers: set[Connection] = set()
        self._listener: socket.socket | None = None

    def add_self(self, member: Member) -> None:
        """The leader's own node is a member like others."""
        self.by_node[member.node] = member

    def listen(self, folder: LaunchDir, *, machine: str, advertised: str | None) -> None:
        """Accept followers, and say where in `leader.json`.

        Args:
            advertised: the address that followers are to use; None: every address of this machine is offered.
        """
        local = advertised is not None and is_loopback(advertised)
        self._listener = socket.create_server((LOOPBACK if local else "", 0), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._loop.watch(self._listener, self._accept)
        offered = [advertised] if advertised else [*own_addresses(), socket.gethostname()]
        port = self._listener.getsockname()[1]
        where = {"host": offered[0], "port": port, "hosts": offered, "machine": machine}
        write_json(folder.leader, where)
        self._loop.every(BEAT_S, self._look)
        self._pulse.every(BEAT_S, self._beat)

    def dismiss(self) -> None:
        """Tell every follower that the launch is over."""
        for member in self.by_node.values():
            if member.connection is not None:
                member.send({"do": "exit"})

    @property
    def missing(self) -> list[int]:
        """Nodes that have not joined, ascending; those that were lost are not waited for."""
        return [node for node in range(self._launch.nodes) if node not in self.by_node and node not in self.lost]

    def give_up_missing(self) -> list[int]:
        """Count those that have not joined as lost, and let nobody in any more; returns them."""
        missing = self.missing
        self.lost.update(missing)
        self.sealed = True
        return missing

    def send(self, message: Message) -> None:
        """Tell every member that lives; the leader's own node last, so that others do not wait for it."""
        for node in sorted(self.by_node, reverse=True):
            if node not in self.lost:
                self.by_node[node].send(message)

    def meeting_address(self, advertised: str | None) -> str:
        """The leader's address that every member reaches: one that a member from elsewhere has reached already."""
        local = [one.connection.local_address for one in self.by_node.values() if one.connection is not None]
        return advertised or next((address for address in local if not is_loopback(address)), LOOPBACK)

    def meeting_point(self, advertised: str | None) -> list[str | int] | None:
        """An address that somebody has set, and a port of this agent: what each node is to try before ranks meet there.

        None where the address is known to be reached.
        """
        if advertised is None or is_loopback(advertised) or self._listener is None:
            return None
        return [advertised, self._listener.getsockname()[1]]

    def close(self) -> None:
        """Hang up on everybody, once they have heard the last word."""
        for member in self.by_node.values():
            if member.connection is not None:
                member.connection.drain(BEAT_S)
                member.connection.close()
        if self._listener is not None:
            self._loop.unwatch(self._listener)
            self._listener.close()

    def _accept(self) -> None:
        assert self._listener is not None  # noqa: S101 - it is what woke us
        while True:
            try:
                peer, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the peer is gone again, or descriptors ran out: the follower tries again
                complain(f"a connection could not be accepted: {error}")
                return
            self._greet(peer)

    def _greet(self, peer: socket.socket) -> None:
        if len(self._strangers) >= _MOST_STRANGERS + self._launch.nodes:
            peer.close()
            return
        stranger = Connection(
            peer, self._loop, on_message=lambda _: None, on_closed=lambda _: None, longest_bytes=_LONGEST_HELLO_BYTES
        )
        stranger.on_message = lambda message: self._hello(stranger, message)
        stranger.on_closed = lambda _: self._strangers.discard(stranger)
        self._strangers.add(stranger)
        self._loop.after(silence_limit_s(self._launch.nodes), lambda: self._forget(stranger))

    def _forget(self, stranger: Connection) -> None:
        if stranger in self._strangers:
            self._strangers.discard(stranger)
            stranger.close()

    def _hello(self, stranger: Connection, message: dict[str, Any]) -> None:
        self._strangers.discard(stranger)
        node = message.get("hello")
        if not isinstance(node, int) or not self._may_join(node, message):
            stranger.close()
            return
        earlier = self.by_node.pop(node, None)
        if earlier is not None and earlier.connection is not None:
            earlier.connection.close()  # its agent did not hear the welcome and has come again
        keys = ("host", "address", "pid", "machine")
        told = {key: message[key] for key in keys}
        devices = tuple(str(device) for device in message.get("devices", ()))
        member = Member(node=node, send=stranger.send, connection=stranger, devices=devices, **told)
        self.by_node[node] = member
        stranger.longest_bytes = 16 << 20
        stranger.on_message = lambda said: self._hear(member, said)
        stranger.on_closed = lambda detail: self._lose(member, detail)
        stranger.send({"do": "welcome"})
        _ping(member)
        self._on_joined()

    def _may_join(self, node: int, message: Message) -> bool:
        known = 0 < node < self._launch.nodes and {"host", "address", "pid", "machine"} <= message.keys()
        return known and not self.sealed and same_token(message.get("token"), self._launch.token)

    def _hear(self, member: Member, message: dict[str, Any]) -> None:
        member.heard = time.monotonic()
        if message.get("say") == "clock":
            _take_clock(member, message)
        elif message.get("say") != "beat":
            self._on_message(member.node, message)

    def _beat(self) -> None:
        for member in list(self.by_node.values()):
            if member.connection is not None:
                member.connection.beat({"do": "beat"})

    def _look(self) -> None:
        """Who has been silent for too long is lost."""
        now = time.monotonic()
        for member in list(self.by_node.values()):
            if member.connection is None or member.connection.closed:
                continue
            if self._loop.stalled_s > _STALL_S:  # this machine slept: nobody could have been heard
                member.heard = now
            if now - member.heard > silence_limit_s(self._launch.nodes):
                member.connection.close()
                self._lose(member, f"nothing was heard of it for {now - member.heard:.0f} s")

    def _lose(self, member: Member, detail: str) -> None:
        if self.by_node.get(member.node) is not member:
            return
        if not self.sealed:  # it may come again while the gang assembles
            del self.by_node[member.node]
            return
        self.lost.add(member.node)
        self._on_lost(member, detail)


def _ping(member: Member) -> None:
    """Ask for the time: a few times, as the quickest answer says most."""
    if member.pings < _CLOCK_PINGS:
        member.pings += 1
        member.send({"do": "clock", "sent": time.time()})


def _take_clock(member: Member, message: Message) -> None:
    sent, told, now = message["sent"], message["time"], time.time()
    trip_s = max(0.0, now - sent)
    if member.clock is None or trip_s < member.clock[1]:
        member.clock = (told - (sent + now) / 2, trip_s)
    _ping(member)
