"""Peers that fall silent, seen from both sides."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from gangline.agent import follower, members
from gangline.agent.addresses import LOOPBACK
from gangline.agent.follower import EXIT_LEADER_LOST, Follower
from gangline.agent.gangwire import Connection, parse_messages
from gangline.agent.launchspec import LaunchSpec
from gangline.agent.loop import Loop
from gangline.agent.members import Member, Members
from gangline.agent.pulse import Pulse
from gangline.agent.site import Site
from gangline.domain.spec import EntryKind
from gangline.rundir.layout import RunDir

pytestmark = pytest.mark.integration

LAUNCH = LaunchSpec(
    run_id="r",
    run_name="r",
    launch=0,
    first_attempt=0,
    nodes=2,
    procs_per_node=1,
    token="secret",
    entry_kind=EntryKind.SCRIPT,
    entry="x.py",
    python="python",
)


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (members, follower):
        monkeypatch.setattr(module, "silence_limit_s", lambda _nodes: 0.2)
        monkeypatch.setattr(module, "BEAT_S", 0.05)


def test_a_member_that_falls_silent_is_lost(tmp_path: Path) -> None:
    loop, lost = Loop(), []

    def on_lost(member: Member, detail: str) -> None:
        lost.append((member.node, detail))
        loop.stop(0)

    def seal() -> None:
        gang.sealed = True

    gang = Members(LAUNCH, loop, Pulse(loop), on_joined=seal, on_message=lambda *_: None, on_lost=on_lost)
    run = RunDir(tmp_path)
    gang.listen(run.launch(0), machine="m", advertised=LOOPBACK)
    where = json.loads(run.launch(0).leader.read_text())
    hello = {"hello": 1, "token": "secret", "host": "h", "address": LOOPBACK, "pid": 1, "machine": "m"}
    with socket.create_connection((where["host"], where["port"])) as silent:
        silent.sendall(json.dumps(hello).encode() + b"\n")
        loop.after(30.0, lambda: loop.stop(1))
        assert loop.run() == 0
    gang.close()
    assert lost == [(1, "nothing was heard of it for 0 s")]


def test_a_leader_that_falls_silent_is_lost(tmp_path: Path) -> None:
    run, loop = RunDir(tmp_path), Loop()
    site = Site(launch=LAUNCH, run=run, index=1, host="h", address="")
    with socket.create_server((LOOPBACK, 0)) as leader:
        path = run.launch(0).leader
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"host": LOOPBACK, "port": leader.getsockname()[1]}))
        silent = threading.Thread(target=_welcome_and_be_silent, args=(leader,))
        silent.start()
        joining = Follower(site, loop, advertised=None)
        joining.begin(lambda _address: None)
        loop.after(30.0, lambda: loop.stop(1))
        assert loop.run() == EXIT_LEADER_LOST
        joining.close()
        silent.join()


def test_a_beat_never_lands_inside_of_a_message() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    connection = Connection(here, Loop(), on_message=lambda _: None, on_closed=lambda _: None)
    connection.beat({"say": "beat"})
    large = {"say": "much", "text": "x" * (8 << 20)}
    connection.send(large)
    connection.beat({"say": "beat"})  # most of it is on its way: there is proof enough
    received = b""
    with there:
        taker = threading.Thread(target=connection.drain, args=(30.0,))
        taker.start()
        while not received.endswith(b'"}\n') or len(received) < 8 << 20:
            received += there.recv(1 << 20)
        taker.join()
        connection.close()
        connection.beat({"say": "beat"})
        assert there.recv(1) == b""
    assert parse_messages(received) == ([{"say": "beat"}, large], b"")


def _welcome_and_be_silent(leader: socket.socket) -> None:
    peer, _ = leader.accept()
    with peer:
        said = peer.recv(1 << 16)
        assert json.loads(said)["token"] == "secret"
        peer.sendall(b'{"do": "welcome"}\n')
        while peer.recv(1 << 16):
            pass
