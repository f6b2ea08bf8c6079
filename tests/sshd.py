"""A real sshd on loopback, for whoever runs the tests."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Bastion", "open_bastion", "wait_for"]

WITHIN_S = 60.0
SSHD = "/usr/sbin/sshd"


@dataclass
class Bastion:
    """One sshd, and how clients reach it."""

    folder: Path
    port: int
    server: subprocess.Popen[bytes] | None = None
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> Path:
        return self.folder / "key"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    def start(self) -> None:
        """As a group of its own, so that it ends with all of its connections."""
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        self._configure()
        with (self.folder / "sshd.log").open("ab") as log:
            command = [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")]
            self.server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        wait_for(self._answers, "sshd does not answer")

    def stop(self) -> None:
        """With all connections: its children are in sessions of their own only below a shell."""
        if self.server is not None:
            for pid in [*children_of(self.server.pid), self.server.pid]:
                with_no_error(pid, signal.SIGKILL)
            self.server.wait()
            self.server = None

    def pause(self) -> None:
        """As a network that swallows everything."""
        assert self.server is not None
        for pid in [*children_of(self.server.pid), self.server.pid]:
            with_no_error(pid, signal.SIGSTOP)

    def trust(self) -> None:
        """Its host key is known."""
        kind, key = (self.folder / "host_key.pub").read_text().split()[:2]
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {kind} {key}\n")

    def _configure(self) -> None:
        lines = {
            "Port": str(self.port),
            "ListenAddress": "127.0.0.1",
            "HostKey": str(self.folder / "host_key"),
            "AuthorizedKeysFile": str(self.folder / "key.pub"),
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "yes",
            **self.settings,
        }
        (self.folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
        client = {
            "HostName": "127.0.0.1",
            "Port": self.port,
            "User": getpass.getuser(),
            "IdentityFile": self.key,
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.known_hosts,
            "GlobalKnownHostsFile": "/dev/null",
        }
        both = "".join(f"  {key} {value}\n" for key, value in client.items())
        text = f"Host inner\n  ProxyJump bastion\nHost bastion inner\n{both}"
        (self.folder / "ssh_config").write_text(text)

    def _answers(self) -> bool:
        assert self.server is not None
        if self.server.poll() is not None:
            raise OSError((self.folder / "sshd.log").read_text())
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
                return probe.recv(4) == b"SSH-"
        except OSError:
            return False


@contextmanager
def open_bastion(folder: Path) -> Iterator[Bastion]:
    """One that listens, with keys of its own in a new folder; gone at the end."""
    folder.mkdir()
    for name in ("host_key", "key", "other_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    for _ in range(5):  # somebody else may take the port before sshd does
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            found = Bastion(folder, probe.getsockname()[1])
        try:
            found.start()
            break
        except OSError:
            found.stop()
    found.trust()
    try:
        yield found
    finally:
        found.stop()


def children_of(pid: int) -> list[int]:
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [*children_of(int(child)), int(child)]
    return found


def with_no_error(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
