"""Who the members of an attempt are: `gang.json`, the order to start; numbers of attempts, names of ranks.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gangline.agent.attempt import Attempt
from gangline.agent.gangwire import Message
from gangline.agent.launchspec import LaunchSpec
from gangline.agent.members import Member
from gangline.agent.site import Site
from gangline.rundir.files import write_json

__all__ = ["name_ranks", "next_attempt", "render_gang", "render_start", "write_gang"]

_MOST_NAMED = 8


def render_gang(launch: LaunchSpec, attempt: Attempt, members: Mapping[int, Member]) -> dict[str, Any]:
    """The content of the file."""
    listed = [
        {
            "node": node,
            "host": member.host,
            "address": _address(member, attempt),
            "agent_pid": member.pid,
            "devices": list(launch.devices_of(node) or member.devices),
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


def write_gang(site: Site, attempt: Attempt, members: Mapping[int, Member]) -> str:
    """Write the file; what is wrong with that, or "": ranks can do without it."""
    try:
        write_json(site.run.attempt(attempt.number).gang, render_gang(site.launch, attempt, members))
    except OSError as error:
        return f"The list of members could not be written: {error}."
    return ""


def _render_cluster(attempt: Attempt, members: Mapping[int, Member]) -> list[str]:
    """`address:port` of every port that was set aside, by node in order."""
    addresses = {node: _address(members[node], attempt) for node in attempt.ready}
    return [f"{addresses[node]}:{port}" for node in sorted(attempt.ready) for port in attempt.ready[node]]


def _address(member: Member, attempt: Attempt) -> str:
    """At which others reach a node: the leader's is where they meet."""
    return member.address if member.connection is not None else attempt.master_addr or member.address


def render_start(attempt: Attempt, members: Mapping[int, Member]) -> Message:
    """The order that has all nodes start their ranks."""
    return {
        "do": "start",
        "attempt": attempt.number,
        "nodes": attempt.shape.nodes,
        "master_addr": attempt.master_addr,
        "master_port": attempt.master_port,
        "resume": attempt.resume.path or None,
        "resume_step": attempt.resume.step,
        "fresh": attempt.resume.fresh or None,
        "cluster": _render_cluster(attempt, members),
        "addresses": [_address(members[node], attempt) for node in attempt.shape.nodes],
    }


def name_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 1 and 2 more`."""
    shown = ", ".join(str(rank) for rank in ranks[:_MOST_NAMED])
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"


def next_attempt(site: Site) -> int:
    """Never a number that was used: an earlier leader may have been killed right after it began one."""
    used = [attempt.number + 1 for attempt in site.run.attempts()]
    return max([site.launch.first_attempt, *used])
