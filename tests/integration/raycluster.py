"""A Ray cluster of this test alone: several raylets on one machine, with ports and folders of their own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

__all__ = ["RayCluster", "wait_for"]

PATIENCE_S = 300.0


def wait_for(call: Callable[[], Any], what: str) -> Any:
    """What a call gives once it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := call()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return found


class RayCluster:
    """The head has no CPUs for gangs: its raylet may not die."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="glr-", dir="/tmp"))
        self.gcs, self.dashboard = _free_ports(2)
        self.address = f"http://127.0.0.1:{self.dashboard}"
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.started = 0

    def start(self, *, nodes: int, cpus: int = 2) -> RayCluster:
        """Start head and nodes, and wait until the Jobs API lists them."""
        (client,) = _free_ports(1)
        ports = ["--port", self.gcs, "--dashboard-port", self.dashboard, "--ray-client-server-port", client]
        self.head = self._ray("head", "--head", *map(str, ports), "--temp-dir", str(self.folder), "--num-cpus", "0")
        wait_for(lambda: self.session() and self.count() == 1, "the head's Jobs API, and the head in it")
        for _ in range(nodes):  # one after another: several at once are too much for a busy machine
            self.add_one(cpus=cpus)
        return self

    def add_one(self, *, cpus: int = 2) -> None:
        """One more node, once it is one of the cluster."""
        wanted = self.count() + 1
        self.add(cpus=cpus)
        wait_for(lambda: self._has(wanted, cpus), "one more node of the cluster")

    def _has(self, wanted: int, cpus: int) -> bool:
        """Ray gives up a node whose processes are slow to start, or meet on a port: then another one is started."""
        if self.nodes[-1].poll() is not None:
            self.nodes.pop()
            self.add(cpus=cpus)
        is_up = "Ray runtime started" in self._log().read_text(errors="replace")
        # A node counts before it has all its sockets, whose names the next one would take.
        return is_up and self.count() == wanted

    def add(self, *, cpus: int = 2) -> subprocess.Popen[bytes]:
        """One more node."""
        self.started += 1
        args = ["--address", f"127.0.0.1:{self.gcs}", "--num-cpus", str(cpus)]
        self.nodes.append(self._ray(self._log().stem, *args))
        return self.nodes[-1]

    def _log(self) -> Path:
        """Of the node that was started last."""
        return self.folder / f"node-{self.started}.log"

    def session(self) -> str | None:
        raw = self.get("/api/version")
        return None if raw is None else raw["session_name"]

    def count(self) -> int:
        raw = self.get("/api/v0/nodes?detail=1")
        found = [] if raw is None else raw["data"]["result"]["result"]
        return sum(node["state"] == "ALIVE" for node in found)

    def get(self, path: str) -> Any:
        try:
            answer = httpx.get(f"{self.address}{path}", timeout=30.0)
        except httpx.HTTPError:
            return None
        return answer.json() if answer.is_success else None

    def groups(self) -> dict[str, str]:
        """States of placement groups by name."""
        raw = wait_for(lambda: self.get("/api/v0/placement_groups?detail=1"), "the placement groups")
        return {one["name"]: one["state"] for one in raw["data"]["result"]["result"]}

    def actors(self) -> list[dict[str, Any]]:
        """Those that live."""
        raw = wait_for(lambda: self.get("/api/v0/actors?detail=1"), "the actors")
        return [one for one in raw["data"]["result"]["result"] if one["state"] != "DEAD"]

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """SIGKILL for all of Ray's own processes of a node; what they have started is left to itself."""
        below = [process for process in _below(node.pid) if process.name() in {"raylet", "gcs_server"}]
        assert below
        for process in below:
            process.kill()
        psutil.wait_procs(below, timeout=PATIENCE_S)

    def close(self) -> None:
        """End everything; the folder goes, too."""
        for node in [*self.nodes, self.head]:
            below = _below(node.pid)
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGTERM)
                try:
                    node.wait(30)
                except subprocess.TimeoutExpired:
                    node.kill()
                    node.wait()
            for process in below:
                if process.is_running():
                    process.kill()
            psutil.wait_procs(below, timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ray(self, name: str, *args: str) -> subprocess.Popen[bytes]:
        agent, grpc, metrics = map(str, _free_ports(3))
        own = ["--dashboard-agent-listen-port", agent, "--dashboard-agent-grpc-port", grpc]
        own += ["--metrics-export-port", metrics, "--min-worker-port", "0", "--max-worker-port", "0"]
        env = {key: value for key, value in os.environ.items() if not key.startswith(("GANGLINE_", "PYTHON"))}
        bin_folder = Path(sys.executable).parent
        env |= {
            "RAY_DISABLE_USAGE_STATS": "1",
            "RAY_raylet_start_wait_time_s": "120",
            "PATH": f"{bin_folder}:{env['PATH']}",
        }
        with Path(self.folder, f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(bin_folder / "ray"), "start", "--block", *args, *own, "--object-store-memory", "80000000"],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
