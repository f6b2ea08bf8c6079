"""Resident memory of an agent while its ranks run, and of the server when it is idle."""

from __future__ import annotations

import psutil

from measure import Row, new_place, wait_until

AGENT_MB, SERVER_MB = 40, 150


def measure() -> list[Row]:
    with new_place() as place, place.client() as client:
        server = psutil.Process(client.health()["pid"]).memory_info().rss / 1e6
        project, out = place.project("hold.py"), place.out()
        place.gangline("submit", "--procs-per-node", "4", "hold.py", str(out), cwd=project)
        wait_until(lambda: len(list(out.glob("rank-*"))) == 4, what="4 ranks")
        run = wait_until(lambda: _with_agents(client.run("latest")), what="the agent to be known")
        agent = psutil.Process(run["attempts"][-1]["nodes"][0]["agent_pid"]).memory_info().rss / 1e6
        (out / "stop").touch()
        client.wait(run["id"], timeout_s=30, version=run["version"])
        after = psutil.Process(client.health()["pid"]).memory_info().rss / 1e6
    return [
        _row("agent, resident, 4 ranks running", agent, AGENT_MB),
        _row("server, resident, idle after its start", server, SERVER_MB),
        _row("server, resident, idle after a run", after, SERVER_MB),
    ]


def _row(what: str, value: float, limit: float) -> Row:
    return Row(what=what, unit="MB", ours=value, goal=f"< {limit} MB", met=value < limit)


def _with_agents(run):
    nodes = run["attempts"][-1]["nodes"] if run["attempts"] else []
    return run if nodes and nodes[0]["agent_pid"] else None
