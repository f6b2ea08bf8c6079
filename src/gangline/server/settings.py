"""Every setting of a server, read in one place and passed down."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from gangline.agent.life import BEAT_S
from gangline.control.facts import LEADER_PATIENCE_S
from gangline.domain.errors import InvalidRequest
from gangline.queue.health import HealthPolicy
from gangline.rundir.home import Home

__all__ = ["Settings"]

_MAX_PORT = 65535
_LEAST_PATIENCE_S = BEAT_S + 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a server runs. Documented in docs/explanation/server.md."""

    home: Home
    port: int = 0
    """0: the port of the server before, if it is free, else any."""
    busy_tick_s: float = 0.1
    """Pause between two looks at the gangs while any is live."""
    idle_tick_s: float = 5.0
    """The same while nothing is."""
    leader_patience_s: float = LEADER_PATIENCE_S
    """How long a leader that has shown that it lives may then show nothing."""
    health: HealthPolicy = field(default_factory=HealthPolicy)
    """When a machine is avoided."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """What the environment says.

        Raises:
            InvalidRequest: a setting has a value that cannot be.
        """
        text = environ.get("GANGLINE_SERVER_PORT") or "0"
        if not text.isdecimal() or int(text) > _MAX_PORT:
            raise InvalidRequest(
                f"GANGLINE_SERVER_PORT is `{text}`", fix=f"Set a port from 1 to {_MAX_PORT}, or unset it."
            )
        return cls(
            home=Home.from_env(environ),
            port=int(text),
            leader_patience_s=_leader_patience_s(environ),
            health=_health(environ),
        )


def _leader_patience_s(environ: Mapping[str, str]) -> float:
    text = environ.get("GANGLINE_SERVER_LEADER_PATIENCE") or str(LEADER_PATIENCE_S)
    try:
        patience_s = float(text)
    except ValueError:
        patience_s = 0.0
    if not _LEAST_PATIENCE_S <= patience_s < math.inf:
        raise InvalidRequest(
            f"GANGLINE_SERVER_LEADER_PATIENCE is `{text}`",
            why=f"Leaders show a sign of life every {BEAT_S:g} s",
            fix=f"Set seconds, from {_LEAST_PATIENCE_S:g} on, or unset it.",
        )
    return patience_s


def _health(environ: Mapping[str, str]) -> HealthPolicy:
    usual = HealthPolicy()
    marks = environ.get("GANGLINE_SERVER_NODE_MARKS") or str(usual.marks)
    if not marks.isdecimal():
        raise InvalidRequest(
            f"GANGLINE_SERVER_NODE_MARKS is `{marks}`",
            fix="Set after how many attempts a node is avoided, 0 for never, or unset it.",
        )
    text = environ.get("GANGLINE_SERVER_NODE_WINDOW") or str(usual.window_s)
    try:
        window_s = float(text)
    except ValueError:
        window_s = 0.0
    if not 0 < window_s < math.inf:
        raise InvalidRequest(
            f"GANGLINE_SERVER_NODE_WINDOW is `{text}`",
            fix="Set for how many seconds a mark against a node counts, or unset it.",
        )
    return HealthPolicy(marks=int(marks), window_s=window_s)
