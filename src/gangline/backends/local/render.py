"""What starts an agent on this machine: its argument vector and its environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gangline.domain.gang import GangSpec, Launch

__all__ = ["render_agent_arguments", "render_env", "render_launch"]

_PASSED_ON = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "TMPDIR", "PATH", "TZ")


def render_launch(gang: GangSpec, *, backend: str, agent: Sequence[str], env: Mapping[str, str]) -> Launch:
    """One agent for each node.

    Args:
        gang: what is to start.
        backend: the backend's name.
        agent: interpreter and agent, before the agent's own arguments.
        env: the server's environment.
    """
    commands = tuple((*agent, *render_agent_arguments(gang.run_dir, gang.launch, node)) for node in range(gang.nodes))
    return Launch(backend=backend, commands=commands, env=render_env(env), gang=gang)


def render_agent_arguments(run_dir: str, launch: int, node: int) -> tuple[str, ...]:
    """The agent's own arguments; they tell it apart from every other process of the machine."""
    return ("agent", run_dir, "--launch", str(launch), "--node", str(node))


def render_env(env: Mapping[str, str]) -> dict[str, str]:
    """What an agent keeps of the server's environment: who and where, nothing that some shell happened to have set."""
    passed_on = {key: value for key, value in env.items() if key in _PASSED_ON or key.startswith("LC_")}
    # All agents of a gang are on this machine: they meet on its loopback address and share its CPUs.
    return {**passed_on, "GANGLINE_ADDRESS": "127.0.0.1"}
