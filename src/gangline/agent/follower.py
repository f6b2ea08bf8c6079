"""The agent of any node but the first: joins the gang, does what the leader says, and ends when the leader is gone.

Standard library only.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from gangline.agent.addresses import LOOPBACK, UNREACHED
from gangline.agent.gangwire import Connection, connect
from gangline.agent.loop import Loop
from gangline.agent.members import BEAT_S, silence_limit_s
from gangline.agent.node import Node
from gangline.agent.pulse import Pulse
from gangline.agent.site import NEAR_THE_END, Journal, Site, complain, machine_id
from gangline.rundir.files import Unreadable, read_json

__all__ = ["EXIT_LEADER_LOST", "EXIT_NOT_JOINED", "Follower", "decide_pause_s"]

EXIT_NOT_JOINED = 3
EXIT_LEADER_LOST = 4
_CONNECT_S = 3.0
_STALL_S = 5.0
_LONGEST_PAUSE_S = 2.0
_FIRST_PAUSE_S = 0.02
_TELL_AFTER_TRIES = 5


def decide_pause_s(tries: int, chance: float) -> float:
    """How long to wait before the next try: doubling, bounded, and different for everybody.

    Args:
        chance: a random number, 0 <= chance < 1.
    """
    return float(min(_FIRST_PAUSE_S * 2 ** min(tries, 16), _LONGEST_PAUSE_S)) * (0.5 + chance)


class Follower:
    """Joins, obeys, reports."""

    def __init__(self, site: Site, loop: Loop, *, advertised: str | None) -> None:
        self._site = site
        self._loop = loop
        self._pulse = Pulse(loop)
        self._advertised = advertised
        self._machine = machine_id()
        limit_s = site.launch.stop.start_timeout_s + silence_limit_s(site.launch.nodes)
        self._give_up = time.monotonic() + site.launch.delay_s + limit_s
        self._tries = 0
        self._fault = "the leader has not said where it listens"
        self._connection: Connection | None = None
        self._node: Node | None = None
        self._make_node: Callable[[str], Node] | None = None
        self._heard = time.monotonic()
        self._leader_lost = False

    def begin(self, make_node: Callable[[str], Node]) -> None:
        """Try to join until it works or the time to start is over.

        Args:
            make_node: from the address at which this node is reached.
        """
        self._make_node = make_node
        self._loop.after(0.0, self._try_to_join)

    def report(self, message: Mapping[str, Any]) -> None:
        """What the node has to say goes to the leader; without a leader, the end of its ranks ends this agent."""
        if self._leader_lost:
            if message["say"] == "cleared":
                self._loop.stop(EXIT_LEADER_LOST)
        elif self._connection is not None:
            self._connection.send(message)

    def on_signal(self, name: str) -> None:
        """Somebody told this agent to end, or that its end is near: the leader decides for the whole gang."""
        if self._connection is not None:
            self.report({"say": "signalled", "signal": name})
        elif name != NEAR_THE_END.name:
            self._loop.stop(EXIT_NOT_JOINED)

    def close(self) -> None:
        """Hang up."""
        self._pulse.close()
        if self._connection is not None:
            self._connection.close()

    def _try_to_join(self) -> None:
        try:
            where = read_json(self._site.run.launch(self._site.launch.launch).leader)
        except (OSError, Unreadable) as error:
            where, self._fault = None, str(error)
        if where is not None and self._join(where):
            return
        if time.monotonic() > self._give_up:
            complain(f"node {self._site.index} cannot join its gang: {self._fault}")
            self._loop.stop(EXIT_NOT_JOINED)
            return
        self._tries += 1
        if where is not None and self._tries == _TELL_AFTER_TRIES:
            self._tell_fault()
        chance = int.from_bytes(os.urandom(2), "little") / 65_536
        self._loop.after(decide_pause_s(self._tries, chance), self._try_to_join)

    def _tell_fault(self) -> None:
        """Say where the leader finds it why this node does not come; it may be the only word that gets there."""
        begun = [attempt.number for attempt in self._site.run.attempts()]
        journal = Journal(self._site.run, self._site.index)
        journal.open(self._site.run.attempt(max([self._site.launch.first_attempt, *begun])))
        journal.write("warning", text=f"Node {self._site.index} ({self._site.host}) cannot join: {self._fault}.")
        journal.close()

    def _join(self, where: Mapping[str, Any]) -> bool:
        hosts = list(where.get("hosts") or [where["host"]])
        if where.get("machine") == self._machine and LOOPBACK not in hosts:
            hosts.insert(0, LOOPBACK)
        welcome_s = silence_limit_s(self._site.launch.nodes)
        faults = []
        for host in hosts:
            try:
                peer, received = connect(host, where["port"], self._hello, connect_s=_CONNECT_S, welcome_s=welcome_s)
            except OSError as error:
                faults.append(f"{host}:{where['port']}: {error.strerror or error}")
                continue
            self._joined(peer, received)
            return True
        self._fault = f"{UNREACHED} at any of its addresses ({'; '.join(faults)})"
        return False

    def _hello(self, own_address: str) -> dict[str, Any]:
        site = self._site
        self._address = self._advertised or own_address
        return {
            "hello": site.index,
            "token": site.launch.token,
            "host": site.host,
            "address": self._address,
            "pid": os.getpid(),
            "machine": self._machine,
            "devices": site.launch.devices_of(site.index),
        }

    def _joined(self, peer: socket.socket, received: bytes) -> None:
        if self._make_node is not None:
            self._node = self._make_node(self._address)
        self._connection = Connection(
            peer, self._loop, on_message=self._hear, on_closed=self._on_leader_lost, received=received
        )
        self._heard = time.monotonic()
        self._loop.every(BEAT_S, self._look)
        self._pulse.every(BEAT_S, self._beat)

    def _hear(self, message: dict[str, Any]) -> None:
        self._heard = time.monotonic()
        if message["do"] == "exit":
            self._loop.stop(0)
        elif message["do"] == "clock":
            self.report({"say": "clock", "sent": message["sent"], "time": time.time()})
        elif message["do"] != "beat" and self._node is not None:
            self._node.handle(message)

    def _beat(self) -> None:
        if self._connection is not None:
            self._connection.beat({"say": "beat"})

    def _look(self) -> None:
        """A leader that has been silent for too long is lost."""
        now = time.monotonic()
        if self._connection is None or self._connection.closed:
            return
        if self._loop.stalled_s > _STALL_S:  # this machine slept: nobody could have been heard
            self._heard = now
        if now - self._heard > silence_limit_s(self._site.launch.nodes):
            self._connection.close()
            self._on_leader_lost(f"nothing was heard of it for {now - self._heard:.0f} s")

    def _on_leader_lost(self, detail: str) -> None:
        """Without a leader there is no gang: end the ranks, then this agent."""
        self._leader_lost = True
        complain(f"the leader was lost: {detail}")
        if self._node is None or self._node.is_clear:
            self._loop.stop(EXIT_LEADER_LOST)
            return
        self._node.warn(f"The leader was lost ({detail}); the ranks of this node are ended.")
        grace_s = self._site.launch.stop.failure_grace_s
        self._node.handle({"do": "stop", "cause": "failure", "grace_s": grace_s})
