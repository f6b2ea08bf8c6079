"""A real Slurm of several machines on this one, behind a bastion; needs root.

Each machine (`head`, `node01` …) is a set of namespaces with its own processes, network, host name, `/run`, `/tmp` and
munged: killing its first process is a power failure. From outside there is one way in, the bastion's port on the
loopback interface. Nothing of the host is edited, nothing is left when the tests end, however they end (`keeper.py`).
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

from tests.slurm.files import (
    HEAD,
    SLURMCTLD,
    USER,
    USER_ID,
    WORK,
    Shape,
    render_hosts,
    render_init,
    render_slurm,
    render_sshd,
)
from tests.slurm.keeper import CLEAN_ENV, NAMESPACES, inside

__all__ = ["ACCOUNTING_PROGRAMS", "Cluster", "can_start", "wait_for"]

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = (
    "slurmctld",
    "slurmd",
    "sbatch",
    "munged",
    "sshd",
    "ssh",
    "ssh-keygen",
    "ip",
    "nsenter",
    "unshare",
    "setpriv",
    "pkill",
)
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb")
READY_WITHIN_S = 60.0
HEALTHY = {"idle", "allocated", "mixed", "completing"}


@functools.cache
def can_start(programs: Sequence[str] = PROGRAMS) -> bool:
    """Whether this machine has what a cluster needs: root, namespaces, Slurm and its companions."""
    path = CLEAN_ENV["PATH"]
    if os.geteuid() != 0 or not all(shutil.which(name, path=path) for name in programs):
        return False
    return subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], capture_output=True, check=False).returncode == 0


class Cluster:
    """A running cluster, as one of its users holds it: it lives as long as anybody does."""

    def __init__(self, folder: Path, users: IO[str]) -> None:
        self.folder = folder
        self._users = users
        self.shape = Shape(**json.loads((folder / "shape.json").read_text()))
        self.nodes = self.shape.node_names
        self.ssh_config = folder / "ssh_config"
        """`ssh -F` this, host `bastion`."""
        self.work = WORK
        """The pool's work folder, as the machines see it; `work_here` is the same folder for the tests."""
        self.work_here = folder / "work"
        self.user = USER
        self.ranks_python = Path(sys.executable)
        """This checkout's environment, under its own path on all machines: it has torch, on the head `gangline`."""

    # ---- life

    @classmethod
    def start(cls, folder: Path, shape: Shape | None = None) -> Cluster:
        """Start one in a new folder.

        Raises:
            RuntimeError: it did not come up; the ends of its logs are in the message.
        """
        shape = shape or Shape()
        _write_folder(folder, shape)
        users = (folder / "users").open("w")
        fcntl.flock(users, fcntl.LOCK_SH)
        with (folder / "keeper.log").open("ab") as log:
            words = ["setsid", "--fork", sys.executable, "-m", "tests.slurm.keeper", str(folder)]
            subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)
        cluster = cls(folder, users)
        try:
            cluster._power_on()
        except (RuntimeError, OSError, AssertionError) as error:
            cluster.leave()
            raise RuntimeError(f"the cluster did not start: {error}\n{cluster.log_ends()}") from error
        (folder / "ready").touch()
        return cluster

    @classmethod
    def join(cls, folder: Path) -> Cluster | None:
        """Use one that another process has started; None if it is gone or about to go."""
        if not (folder / "ready").exists():
            return None
        users = (folder / "users").open("r")
        try:
            fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
            cluster = cls(folder, users)
            cluster._ask("listen")
        except OSError:
            users.close()
            return None
        return cluster

    def leave(self) -> None:
        """The last one to leave waits until all is gone."""
        self._users.close()
        with (self.folder / "users").open("r+") as users:
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._has_users():
                    return
        wait_for("the keeper to end", lambda: not self._is_kept(), self.log_ends)

    def _has_users(self) -> bool:
        with (self.folder / "users").open("r+") as users:
            try:
                fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False  # the keeper has it for itself
            return True

    # ---- what tests do to it

    def on(
        self, machine: str, argv: Sequence[str], *, check: bool = True, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a machine, as root."""
        pid = int((self.folder / "run" / f"{machine}.pid").read_text())
        done = subprocess.run(
            inside(pid, *argv),
            input=stdin,
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
            cwd="/",
            env=CLEAN_ENV,
        )
        assert not check or done.returncode == 0, f"{machine}: {argv} -> {done.returncode}: {done.stdout}{done.stderr}"
        return done

    def as_user(self, argv: Sequence[str], *, check: bool = True, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command on the head, as the user whose jobs run, without going through the bastion."""
        user = [
            "setpriv",
            "--reuid",
            USER,
            "--regid",
            USER,
            "--init-groups",
            "--reset-env",
            "env",
            "-C",
            f"/home/{USER}",
        ]
        return self.on(HEAD, [*user, *argv], check=check, stdin=stdin)

    def ssh(self, command: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command line over the bastion."""
        words = ["ssh", "-F", str(self.ssh_config), "bastion", command]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=60, check=False)
        assert not check or done.returncode == 0, f"ssh: {command} -> {done.returncode}: {done.stdout}{done.stderr}"
        return done

    def kill_node(self, node: str) -> None:
        """A power failure."""
        self._ask("kill", node)

    def start_node(self, node: str) -> None:
        self._ask("boot", node)

    def stop_ctld(self) -> None:
        """The controller is killed; commands that ask it fail.

        It has saved what it knows of running jobs first, as it does every 5 s: a job whose start it forgets is killed
        and queued again.
        """
        wait_for("the controller to save its state", self._has_saved)
        self.on(HEAD, ["pkill", "-KILL", "-x", "slurmctld"])

    def forget_all(self) -> None:
        """The controller loses its state: it starts without a job, and gives numbers that it has given before."""
        self.on(HEAD, ["pkill", "-KILL", "-x", "slurmctld"])
        self.on(HEAD, ["sh", "-c", "rm -rf /run/slurm/state/*"])
        self.start_ctld()

    def start_ctld(self) -> None:
        self.on(HEAD, ["sh", "-c", SLURMCTLD])

    def kill_slurmd(self, node: str) -> None:
        """The daemon of a node is killed; what it had started goes on."""
        self.on(node, ["sh", "-c", "kill -9 $(cat /run/slurm/slurmd.pid)"])

    def start_slurmd(self, node: str) -> None:
        self.on(node, ["slurmd"])

    def stop_bastion(self) -> None:
        """Nobody listens on its port, and all sessions are cut."""
        self._ask("close")

    def start_bastion(self) -> None:
        self._ask("listen")

    def restart_bastion(self) -> None:
        self.stop_bastion()
        self.start_bastion()

    def drain(self, node: str, reason: str = "test") -> None:
        self.on(HEAD, ["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"])

    def resume(self, node: str) -> None:
        self.on(HEAD, ["scontrol", "update", f"NodeName={node}", "State=RESUME"])

    def job_state(self, job: str) -> str:
        """The state that the controller gives, or `` where it knows the job no longer."""
        return self.on(HEAD, ["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"], check=False).stdout.strip()

    def heal(self) -> None:
        """Undo what a test did: no jobs, every daemon alive, every node idle and able to work."""
        self.start_bastion()
        broken = self._revive()
        wait_for("the controller to answer", lambda: self.on(HEAD, ["scontrol", "ping"], check=False).returncode == 0)
        self.on(HEAD, ["scancel", "--quiet", "--user", USER], check=False)
        wait_for("every node to be idle", self._all_idle, lambda: f"{self._node_states()}\n{self.log_ends()}")
        if broken:  # what a controller remembers of its nodes may be old
            wait_for("every node to work", self._all_work, lambda: f"{self._node_states()}\n{self.log_ends()}")

    def _revive(self) -> bool:
        """Start whatever does not run; whether anything did not."""
        dead = [node for node in self.nodes if not (self.folder / "run" / f"{node}.pid").exists()]
        for node in dead:
            self.start_node(node)
        ctld = self._lives(HEAD, "slurmctld")
        if not ctld:
            self.start_ctld()
        stopped = [node for node in self.nodes if node not in dead and not self._lives(node, "slurmd")]
        for node in stopped:
            self.start_slurmd(node)
        return bool(dead or stopped or not ctld)

    def log_ends(self) -> str:
        text = ""
        for log in [self.folder / "keeper.log", *sorted(self.folder.glob("log/*/*.log"))]:
            lines = log.read_text(errors="replace").splitlines()[-5:]
            text += f"--- {log.relative_to(self.folder)}\n" + "".join(f"{line}\n" for line in lines) if lines else ""
        return text

    # ---- below

    def _power_on(self) -> None:
        wait_for("the keeper", (self.folder / "control").exists)
        for machine in [HEAD, *self.nodes]:
            self._ask("boot", machine)
        self._ask("listen")
        self._write_client_files()
        wait_for("every node to be idle", lambda: self._node_states() and set(self._node_states().values()) == {"idle"})
        self.ssh(f"test -w {WORK} && {self.ranks_python} -c 'import sys'")

    def _write_client_files(self) -> None:
        port = (self.folder / "port").read_text()
        kind, key = (self.folder / "etc/ssh/host_key.pub").read_text().split()[:2]
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
        lines = [
            "Host bastion",
            "HostName 127.0.0.1",
            f"Port {port}",
            f"User {USER}",
            f'IdentityFile "{self.folder}/user_key"',
        ]
        lines += ["IdentitiesOnly yes", "BatchMode yes", "StrictHostKeyChecking yes", "GlobalKnownHostsFile /dev/null"]
        lines += [f'UserKnownHostsFile "{self.folder}/known_hosts"', "ConnectTimeout 10", ""]
        self.ssh_config.write_text("\n".join(lines))

    def _ask(self, verb: str, machine: str | None = None) -> None:
        """Raises: OSError, if nobody keeps the cluster any more; RuntimeError, if it was refused."""
        with self._connect() as control, control.makefile("rw") as file:
            file.write(json.dumps({"do": verb, "machine": machine}) + "\n")
            file.flush()
            answer = json.loads(file.readline() or '{"ok": false, "why": "the keeper has ended"}')
        if not answer["ok"]:
            raise RuntimeError(answer["why"])

    def _is_kept(self) -> bool:
        try:
            self._connect().close()
        except OSError:
            return False
        return True

    def _connect(self) -> socket.socket:
        here = os.open(self.folder, os.O_PATH)
        control = socket.socket(socket.AF_UNIX)
        control.settimeout(READY_WITHIN_S)
        try:
            control.connect(f"/proc/self/fd/{here}/control")  # the path of a socket must be short
        except OSError:
            control.close()
            raise
        finally:
            os.close(here)
        return control

    def _node_states(self) -> Mapping[str, str]:
        lines = self.on(HEAD, ["sinfo", "-h", "-N", "-p", "main", "-o", "%N %T"], check=False).stdout.splitlines()
        return dict(line.split(maxsplit=1) for line in lines)

    def _all_idle(self) -> bool:
        states = self._node_states()
        for node, state in states.items():
            if state.startswith(("down", "drain", "fail")) and not state.endswith("*"):
                self.on(HEAD, ["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)
        return len(states) == len(self.nodes) and set(states.values()) == {"idle"}

    def _has_saved(self) -> bool:
        newest = "squeue -h -t running -o %S | sort | tail -1"
        script = f'[ "$(stat -c %Y /run/slurm/state/job_state)" -gt "$(date -d "$({newest})" +%s)" ]'
        return self.on(HEAD, ["sh", "-c", script], check=False).returncode == 0

    def _all_work(self) -> bool:
        nodes = ["-N", str(len(self.nodes)), "--immediate=5", "--time=1"]
        return self.as_user(["srun", *nodes, "true"], check=False).returncode == 0 and self._all_idle()

    def _lives(self, machine: str, daemon: str) -> bool:
        script = f"kill -0 $(cat /run/slurm/{daemon}.pid)"
        return self.on(machine, ["sh", "-c", script], check=False).returncode == 0


def wait_for(what: str, condition: Callable[[], object], state: Callable[[], str] = str) -> None:
    """Raises: RuntimeError, with the state, when it did not come true."""
    deadline = time.monotonic() + READY_WITHIN_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {READY_WITHIN_S:g} s for {what}\n{state()}")
        time.sleep(0.1)


def _write_folder(folder: Path, shape: Shape) -> None:
    for name in ("run", "etc/ssh", "etc/slurm", "home", "work", *(f"log/{name}" for name in [HEAD, *shape.node_names])):
        (folder / name).mkdir(parents=True)
    os.chown(folder / "home", USER_ID, USER_ID)
    os.chown(folder / "work", USER_ID, USER_ID)
    for name in [HEAD, *shape.node_names]:
        shutil.chown(folder / "log" / name, "slurm", "slurm")
    (folder / "shape.json").write_text(json.dumps(asdict(shape)))
    (folder / "init").write_text(render_init(shape, shown=_shown(), hidden=[ROOT / "src"]))
    etc = folder / "etc"
    for name, text in render_slurm(shape).items():
        (etc / "slurm" / name).write_text(text)
        if name == "slurmdbd.conf":
            (etc / "slurm" / name).chmod(0o600)
            shutil.chown(etc / "slurm" / name, "slurm", "slurm")
    (etc / "hosts").write_text(render_hosts(shape))
    account = f"{USER}:x:{USER_ID}:{USER_ID}::/home/{USER}:/bin/bash\n"
    (etc / "passwd").write_text(Path("/etc/passwd").read_text() + account)
    (etc / "group").write_text(Path("/etc/group").read_text() + f"{USER}:x:{USER_ID}:\n")
    (etc / "shadow").write_text(f"{USER}:*:19000:0:99999:7:::\n")  # no password, and yet not locked
    (etc / "munge.key").write_bytes(os.urandom(1024))
    (etc / "munge.key").chmod(0o400)
    shutil.chown(etc / "munge.key", "munge", "munge")
    (etc / "ssh/sshd_config").write_text(render_sshd())
    for key in (etc / "ssh/host_key", folder / "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key.name, "-f", str(key)], check=True)
    shutil.copy(folder / "user_key.pub", etc / "ssh/authorized_keys")


def _shown() -> list[Path]:
    """What is needed of this host: the environment with torch, what it was made from, and on the head our source."""
    base = Path(sys.base_prefix)
    return [Path(sys.prefix), ROOT / "src", *([base] if Path("/usr") not in [base, *base.parents] else [])]
