"""A Jobs API over HTTP in this process: what a cluster says, a healthy one never says included.

Jobs run the real driver's plan with local processes: one agent for each bundle, as the driver would start them.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

__all__ = ["FakeRay"]


class FakeRay(httpx.BaseTransport):
    """Answers as Ray 2.60 does; `down` says nothing at all."""

    def __init__(self, agent: tuple[str, ...]) -> None:
        self.agent = agent
        self.session = "session_1"
        self.jobs: dict[str, dict[str, Any]] = {}
        self.agents: dict[str, dict[int, subprocess.Popen[bytes]]] = {}
        self.asked: list[str] = []
        self.down = False
        self.lose_next_answer = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.asked.append(f"{request.method} {path}")
        if self.down:
            raise httpx.ConnectError("nobody listens", request=request)
        if path == "/api/version":
            return httpx.Response(200, json={"ray_version": "2.60.0", "session_name": self.session})
        if path == "/api/v0/nodes":
            node = {"state": "ALIVE", "node_name": "n", "resources_total": {"CPU": 64.0, "memory": 1e12}}
            return httpx.Response(200, json={"data": {"result": {"result": [node] * 4}}})
        if request.method == "POST" and path == "/api/jobs/":
            return self._submit(request, json.loads(request.content))
        if path.endswith("/stop"):
            return self._stop(path.split("/")[-2])
        self._settle()
        return httpx.Response(200, json=list(self.jobs.values()))

    def new_session(self) -> None:
        """The head is started anew: nothing of before is known."""
        for job in list(self.jobs):
            self._end(job)
        self.session, self.jobs = "session_2", {}

    def _submit(self, request: httpx.Request, body: dict[str, Any]) -> httpx.Response:
        name = body["submission_id"]
        if name in self.jobs:
            return httpx.Response(400, text=f"ValueError: Job with submission_id {name} already exists. ")
        plan_path = shlex.split(body["entrypoint"])[-1]
        plan = json.loads(Path(plan_path).read_text())
        self.jobs[name] = {**body, "status": "RUNNING", "message": "running", "start_time": 1000}
        self.agents[name] = {node: self._start(words, plan) for node, words in enumerate(plan["agents"])}
        state = {"version": 1, "state": "started", "hosts": []}
        Path(plan["launch_dir"], "ray-state.json").write_text(json.dumps(state))
        if self.lose_next_answer:
            self.lose_next_answer = False
            raise httpx.ReadTimeout("the answer was lost", request=request)
        return httpx.Response(200, json={"submission_id": name})

    def _start(self, words: list[str], plan: dict[str, Any]) -> subprocess.Popen[bytes]:
        arguments = words[words.index("agent") :]
        return subprocess.Popen([*self.agent, *arguments], cwd=plan["run_dir"], stdin=subprocess.DEVNULL)

    def _stop(self, name: str) -> httpx.Response:
        if name not in self.jobs:
            return httpx.Response(404, text=f"Job {name} does not exist")
        if self.jobs[name]["status"] == "RUNNING":
            self._end(name)
            self.jobs[name]["status"] = "STOPPED"
        return httpx.Response(200, json={"stopped": True})

    def _end(self, name: str) -> None:
        for agent in self.agents.get(name, {}).values():
            agent.terminate()
        for agent in self.agents.get(name, {}).values():
            agent.wait()

    def _settle(self) -> None:
        for name, agents in self.agents.items():
            job = self.jobs.get(name)
            if job is None or job["status"] != "RUNNING":
                continue
            gone = [node for node, agent in agents.items() if agent.poll() is not None]
            folder = Path(shlex.split(job["entrypoint"])[-1]).parent
            state = {"version": 1, "state": "started", "hosts": [], "gone": gone}
            (folder / "ray-state.json").write_text(json.dumps(state))
            if len(gone) == len(agents):
                job["status"] = "SUCCEEDED"

    def kill_agent(self, name: str, node: int) -> None:
        """Kill an agent, and what it has started with it, as its guardian would."""
        agent = self.agents[name][node]
        below = subprocess.run(
            [sys.executable, "-c", f"import psutil; print(*[p.pid for p in psutil.Process({agent.pid}).children()])"],
            capture_output=True,
            text=True,
            check=True,
        )
        for pid in [agent.pid, *map(int, below.stdout.split())]:
            os.kill(pid, signal.SIGKILL)
        agent.wait()
