"""The process that holds a test cluster: its machines are its children, and end with it.

    python -m tests.slurm.keeper FOLDER

It ends when nobody holds a lock on `FOLDER/users` any more, however the users ended. Its socket `FOLDER/control` takes
one line of JSON, `{"do": "boot" | "kill" | "listen" | "close", "machine": name}`, and answers with one.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.slurm.files import HEAD, address

NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid")
CLEAN_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
BOOT_WITHIN_S = 30.0
PORTS = range(20_000, 30_000)
"""Below those that the system hands out: one that is closed for a while is still free afterwards."""


def inside(pid: int, *argv: str) -> list[str]:
    """The arguments by which root runs a command in a machine."""
    return ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "--", *argv]


def open_port(ports: Sequence[int]) -> socket.socket:
    """The first that is free."""
    for port in ports:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            listener.close()
            continue
        listener.listen(64)
        return listener
    raise OSError(f"no port is free of {ports}")


class Keeper:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port: int | None = None
        self.machines: dict[str, subprocess.Popen[bytes]] = {}
        self.doors: list[subprocess.Popen[bytes]] = []
        self.bastion: socket.socket | None = None
        self.selector = selectors.DefaultSelector()

    def run(self) -> None:
        os.chdir(self.folder)  # the path of a socket must be short
        control = socket.socket(socket.AF_UNIX)
        control.bind("control.new")
        control.listen(16)
        Path("control.new").rename("control")  # whoever sees it is heard
        self.selector.register(control, selectors.EVENT_READ, self._answer)
        with Path("users").open("r+") as users:
            while not self._abandoned(users.fileno()):
                for key, _ in self.selector.select(timeout=0.3):
                    key.data(key.fileobj)
                self.doors = [door for door in self.doors if door.poll() is None]

    def end(self) -> None:
        for machine in list(self.machines):
            self.kill(machine)

    @staticmethod
    def _abandoned(users: int) -> bool:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True  # and nobody can come in any more

    # ---- what users ask for

    def _answer(self, control: socket.socket) -> None:
        conversation, _ = control.accept()
        with conversation, conversation.makefile("rw") as file:
            try:
                asked = json.loads(file.readline())
                actions: dict[str, Any] = {
                    "boot": self.boot,
                    "kill": self.kill,
                    "listen": self.listen,
                    "close": self.close,
                }
                actions[asked["do"]](*filter(None, [asked.get("machine")]))
                answer = {"ok": True}
            except (OSError, ValueError, KeyError, subprocess.SubprocessError, TimeoutError) as error:
                answer = {"ok": False, "why": f"{type(error).__name__}: {error}"}
            file.write(json.dumps(answer) + "\n")

    def boot(self, machine: str) -> None:
        """Power on."""
        pidfile = Path("run", f"{machine}.pid")
        with Path("log", machine, "init.log").open("ab") as log:
            words = ["setpriv", "--pdeathsig", "KILL", "unshare", *NAMESPACES, "--fork", "--kill-child=KILL"]
            words += [
                "--propagation",
                "private",
                "bash",
                str(self.folder / "init"),
                str(self.folder),
                machine,
                address(machine),
            ]
            self.machines[machine] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=CLEAN_ENV
            )
        deadline = time.monotonic() + BOOT_WITHIN_S
        while not pidfile.exists():
            if self.machines[machine].poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"{machine} does not start: {Path('log', machine, 'init.log').read_text()[-1000:]}")
            time.sleep(0.01)
        if machine != HEAD:
            self._plug_in(machine)

    def _plug_in(self, machine: str) -> None:
        """A cable whose both ends are born inside the machines: the host never sees it."""
        head, node = self._pid(HEAD), self._pid(machine)
        link = [
            "ip",
            "link",
            "add",
            f"to-{machine}",
            "netns",
            head,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            node,
        ]
        subprocess.run(link, check=True, capture_output=True)
        up = inside(int(head), "ip", "link", "set", f"to-{machine}", "master", "lab0", "up")
        subprocess.run(up, check=True, capture_output=True)

    def kill(self, machine: str) -> None:
        """Power off: the kernel ends all that runs in it."""
        process = self.machines.pop(machine, None)
        if process is not None:
            os.kill(int(self._pid(machine)), signal.SIGKILL)
            process.wait(timeout=BOOT_WITHIN_S)
            Path("run", f"{machine}.pid").unlink()

    def listen(self) -> None:
        """Open the port of the bastion, the only way in."""
        if self.bastion is None:
            ports = random.sample(PORTS, 50) if self.port is None else [self.port]
            self.bastion = open_port(ports)
            self.port = self.bastion.getsockname()[1]
            Path("port").write_text(str(self.port))
            self.selector.register(self.bastion, selectors.EVENT_READ, self._let_in)

    def close(self) -> None:
        """The bastion's sshd and all sessions are gone."""
        if self.bastion is not None:
            self.selector.unregister(self.bastion)
            self.bastion.close()
            self.bastion = None
        subprocess.run(inside(int(self._pid(HEAD)), "pkill", "-KILL", "-x", "sshd"), check=False)

    def _let_in(self, bastion: socket.socket) -> None:
        """An sshd for each connection; one that listens inside could not be reached from here."""
        connection, _ = bastion.accept()
        with connection:
            connection.setblocking(True)
            sshd = inside(
                int(self._pid(HEAD)),
                "/usr/sbin/sshd",
                "-i",
                "-f",
                "/run/etc/ssh/sshd_config",
                "-E",
                "/var/log/slurm/sshd.log",
            )
            door = subprocess.Popen(sshd, stdin=connection, stdout=connection, cwd="/", env=CLEAN_ENV)
        self.doors.append(door)

    @staticmethod
    def _pid(machine: str) -> str:
        return Path("run", f"{machine}.pid").read_text().strip()


def main() -> None:
    folder = Path(sys.argv[1])
    keeper = Keeper(folder)
    try:
        keeper.run()
    finally:
        keeper.end()


if __name__ == "__main__":
    main()
