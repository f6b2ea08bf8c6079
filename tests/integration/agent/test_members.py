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
from gangline.agent.launchspec import LaunchSpec
from gangline.agent.loop import Loop
from gangline.agent.members import Member, Members
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

    gang = Members(LAUNCH, loop, on_joined=seal, on_message=lambda *_: None, on_lost=on_lost)
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


def _welcome_and_be_silent(leader: socket.socket) -> None:
    peer, _ = leader.accept()
    with peer:
        said = peer.recv(1 << 16)
        assert json.loads(said)["token"] == "secret"
        peer.sendall(b'{"do": "welcome"}\n')
        while peer.recv(1 << 16):
            pass
