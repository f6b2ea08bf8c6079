"""`gang.json`: who the members of an attempt are. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gangline.agent.attempt import Attempt
from gangline.agent.launchspec import LaunchSpec
from gangline.agent.members import Member

__all__ = ["render_cluster", "render_gang"]


def render_gang(launch: LaunchSpec, attempt: Attempt, members: Mapping[int, Member]) -> dict[str, Any]:
    """The content of the file."""
    listed = [
        {
            "node": node,
            "host": member.host,
            "address": member.address,
            "agent_pid": member.pid,
            "devices": list(launch.devices_of(node)),
            "ranks": list(attempt.shape.ranks_of(node)),
            "clock_offset_s": None if member.clock is None else round(member.clock[0], 6),
        }
        for node, member in sorted(members.items())
        if node in attempt.shape.nodes
    ]
    return {
        "version": 1,
        "attempt": attempt.number,
        "launch": attempt.launch,
        "started": attempt.started,
        "master_addr": attempt.master_addr,
        "master_port": attempt.master_port,
        "members": listed,
    }


def render_cluster(attempt: Attempt, members: Mapping[int, Member]) -> list[str]:
    """`address:port` of every rank that has set a port aside, in order."""
    return [f"{members[node].address}:{port}" for node in sorted(attempt.ready) for port in attempt.ready[node]]
