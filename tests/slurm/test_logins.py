"""Ways into the real cluster: a person who logs in, a second factor, a jump host, a host key that has changed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import shlex
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.slurm.cluster import Cluster
from tests.slurm.laptop import HOLD, Laptop, eventually
from tests.sshd import Bastion, open_bastion

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

KEYS = "/run/etc/ssh/authorized_keys"
SSHD = "/run/etc/ssh/sshd_config"
TWO_FACTORS = """
UsePAM yes
KbdInteractiveAuthentication yes
AuthenticationMethods publickey,keyboard-interactive
"""
PAM = """
auth required pam_exec.so expose_authtok quiet /run/etc/code
auth required pam_permit.so
account required pam_permit.so
session required pam_permit.so
"""
CODE = """#!/bin/sh
[ "$(cat)" = 271828 ]
"""


def state_of(laptop: Laptop) -> str:
    with laptop.client() as client:
        (pool,) = [pool for pool in client.pools() if pool["name"] == "lab"]
    return pool["state"]


def asked_at_terminal(laptop: Laptop, words: list[str], asks: str, *answers: str) -> str:
    """What a terminal shows in which a person runs a command of Gangline's and answers what it asks."""
    near, far = pty.openpty()
    command = [str(Path(sys.executable).with_name("gangline")), *words]
    env = {**os.environ, "GANGLINE_HOME": str(laptop.home)}
    shown, left = b"", list(answers)

    def begin() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # ssh asks at /dev/tty

    with subprocess.Popen(command, stdin=far, stdout=far, stderr=far, env=env, preexec_fn=begin) as child:  # noqa: PLW1509 - no thread but this one
        os.close(far)
        with contextlib.suppress(OSError):  # the other end is closed
            while piece := os.read(near, 4096):
                shown += piece
                if left and shown.count(asks.encode()) > len(answers) - len(left):
                    os.write(near, f"{left.pop(0)}\n".encode())
                if child.poll() is not None:
                    break
        os.close(near)
        assert child.wait(timeout=60) == 0, shown
    return shown.decode(errors="replace")


def masters_of(login: list[str]) -> list[int]:
    """Processes that hold the shared connection which a login has opened."""
    socket = next(word for word in login if word.startswith("ControlPath=")).removeprefix("ControlPath=")
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if socket in words and ("-fN" in words or "[mux]" in words):
            found.append(process.pid)
    return found


@contextmanager
def two_factors(cluster: Cluster) -> Iterator[None]:
    """The bastion also asks for a code, by PAM, whatever key is offered."""
    script = f"""set -e
cp {SSHD} {SSHD}.one
printf '%s' {shlex.quote(TWO_FACTORS)} >> {SSHD}
sed -i -e '/^UsePAM no/d' -e '/^KbdInteractiveAuthentication no/d' {SSHD}
printf '%s' {shlex.quote(PAM)} > /run/etc/pam
printf '%s' {shlex.quote(CODE)} > /run/etc/code
chmod 755 /run/etc/code
mount --bind /run/etc/pam /etc/pam.d/sshd
"""
    cluster.on("head", ["sh", "-c", script])
    try:
        cluster.restart_bastion()
        yield
    finally:
        cluster.on("head", ["sh", "-c", f"umount /etc/pam.d/sshd; mv {SSHD}.one {SSHD}"])


@contextmanager
def behind(cluster: Cluster, door: Bastion) -> Iterator[None]:
    """The way to the bastion leads through a jump host, which has a key and a host key of its own."""
    config = cluster.ssh_config.read_text()
    lines = (door.folder / "ssh_config").read_text().partition("Host bastion inner\n")[2]
    cluster.ssh_config.write_text(f"{config}ProxyJump door\n\nHost door\n{lines}")
    try:
        cluster.restart_bastion()
        yield
    finally:
        cluster.ssh_config.write_text(config)
        cluster.restart_bastion()


def test_a_person_logs_in_where_no_key_is_taken(laptop: Laptop) -> None:
    cluster = laptop.cluster
    laptop.gangline("pools", "doctor", "lab")
    command = shlex.split(laptop.gangline("pools", "login", "lab", "--print"))
    assert command[-2:] == ["-fN", "bastion"]
    cluster.on("head", ["mv", KEYS, f"{KEYS}.away"])
    try:
        cluster.restart_bastion()
        assert "login needed" in laptop.gangline("pools", "doctor", "lab", rc=1)
        assert state_of(laptop) == "login_needed"
        assert shlex.join(command) in laptop.gangline("pools"), "what to type is said"
        assert "ssh ended with 255" in laptop.refused("pools", "login", "lab")
    finally:
        cluster.on("head", ["mv", f"{KEYS}.away", KEYS])
    laptop.gangline("pools", "doctor", "lab")
    assert state_of(laptop) == "ready"


def test_a_person_logs_in_with_a_key_that_wants_a_passphrase(laptop: Laptop) -> None:
    """`pools login` at a terminal: the connection stays, the server rides on it, and `ssh -O exit` ends it."""
    cluster = laptop.cluster
    key = cluster.folder / "user_key"
    laptop.gangline("pools", "doctor", "lab")
    login = shlex.split(laptop.gangline("pools", "login", "lab", "--print"))
    change = ["ssh-keygen", "-q", "-p", "-f", str(key)]
    subprocess.run([*change, "-P", "", "-N", "open sesame"], check=True, capture_output=True)
    config = cluster.ssh_config.read_text()
    cluster.ssh_config.write_text(config.replace("BatchMode yes", "BatchMode no"))
    try:
        cluster.restart_bastion()
        assert "login needed" in laptop.gangline("pools", "doctor", "lab", rc=1)
        shown = asked_at_terminal(laptop, ["pools", "login", "lab"], "passphrase", "open sesame")
        assert "alice on head" in shown, shown
        assert state_of(laptop) == "ready"
        run = laptop.submit("print('hello')")
        laptop.until(run, "succeeded")
        # with ControlMaster=yes, as the login itself has it, ssh would open one more connection in place of asking
        master = [word.replace("ControlMaster=yes", "ControlMaster=no") for word in login[: login.index("-fN")]]
        subprocess.run([*master, "-O", "check", "bastion"], capture_output=True, check=True)
        subprocess.run([*master, "-O", "exit", "bastion"], capture_output=True, check=True)
        eventually("the login to be gone", lambda: not masters_of(login))
    finally:
        subprocess.run([*change, "-P", "open sesame", "-N", ""], check=False, capture_output=True)
        cluster.ssh_config.write_text(config)
    laptop.gangline("pools", "doctor", "lab")


def test_a_person_logs_in_with_a_second_factor(laptop: Laptop) -> None:
    """A key, and a code that PAM asks for: at the terminal alone, again where it was wrong, and once for all."""
    laptop.gangline("pools", "doctor", "lab")
    login = shlex.split(laptop.gangline("pools", "login", "lab", "--print"))
    config = laptop.cluster.ssh_config.read_text()
    run = laptop.submit(HOLD)
    laptop.until(run, "running")
    laptop.logged(run, "up")
    try:
        with two_factors(laptop.cluster):
            eventually("the code to be missed", lambda: state_of(laptop) == "login_needed")
            assert laptop.show(run)["phase"] == "running"
            laptop.cluster.ssh_config.write_text(config.replace("BatchMode yes", "BatchMode no"))
            shown = asked_at_terminal(laptop, ["pools", "login", "lab"], "Password:", "314159", "271828")
            assert "alice on head" in shown, shown
            assert state_of(laptop) == "ready"
            laptop.grows(run)
            another = laptop.submit("print('hello')")
            laptop.until(another, "succeeded")
            laptop.go(run)
            laptop.until(run, "succeeded")
            master = [word.replace("ControlMaster=yes", "ControlMaster=no") for word in login[: login.index("-fN")]]
            subprocess.run([*master, "-O", "exit", "bastion"], capture_output=True, check=True)
            eventually("the login to be gone", lambda: not masters_of(login))
    finally:
        laptop.cluster.ssh_config.write_text(config)
    laptop.gangline("pools", "doctor", "lab")


def test_a_login_node_behind_a_jump_host(laptop: Laptop, tmp_path: Path) -> None:
    """`ProxyJump` of the person's own configuration; the jump host goes and comes back under a run."""
    with open_bastion(tmp_path / "door") as door, behind(laptop.cluster, door):
        assert "alice on head" in laptop.gangline("pools", "doctor", "lab")
        run = laptop.submit(HOLD, "--nodes", "2")
        laptop.until(run, "running")
        laptop.logged(run, "up", 1)
        door.stop()
        eventually("the way to be missed", lambda: state_of(laptop) != "ready")
        assert laptop.show(run)["phase"] == "running"
        door.start()
        laptop.grows(run, 1)
        laptop.gangline("stop", run)
        laptop.until(run, "stopped")
        eventually("the job to end", lambda: "RUNNING" not in laptop.jobs(run).values())
        assert "Accepted publickey" in (door.folder / "sshd.log").read_text()


def test_a_changed_host_key_is_no_login_and_is_never_taken(laptop: Laptop) -> None:
    cluster = laptop.cluster
    file = cluster.folder / "known_hosts"
    known = file.read_text()
    run = laptop.submit(HOLD)
    laptop.logged(run, "up")
    other = (cluster.folder / "user_key.pub").read_text().split()[1]
    file.write_text(f"{' '.join(known.split()[:2])} {other}\n")
    try:
        cluster.restart_bastion()
        eventually("the key to be missed", lambda: state_of(laptop) == "host_key_changed")
        with laptop.client() as client:
            (pool,) = [pool for pool in client.pools() if pool["name"] == "lab"]
        assert pool["command"] == "", "nobody is told to log in there"
        assert f"The ED25519 key at {file}:1 is known here, the host now shows SHA256:" in pool["state_text"]
        asks = "Ask the site's admin whether `SHA256:"
        typed = f"Only when they confirm it: `ssh-keygen -f {file} -R '[127.0.0.1]:"
        assert asks in pool["state_text"]
        assert typed in pool["state_text"]
        assert "host key changed" in laptop.gangline("pools")
        assert "ssh ended with 255" in laptop.refused("pools", "login", "lab")
        assert file.read_text().split()[2] == other, "what is known is left alone"
        assert laptop.show(run)["phase"] == "running"
        assert "SHA256" not in laptop.gangline("ps", "--json")
    finally:
        file.write_text(known)
    laptop.gangline("pools", "doctor", "lab")
    laptop.grows(run)
    laptop.go(run)
    laptop.until(run, "succeeded")
