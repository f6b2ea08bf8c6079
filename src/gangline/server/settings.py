"""Every setting of a server, read in one place and passed down."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from gangline.domain.errors import InvalidRequest
from gangline.rundir.home import Home

__all__ = ["Settings"]

_MAX_PORT = 65535


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

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """What the environment says.

        Raises:
            InvalidRequest: GANGLINE_SERVER_PORT is no port.
        """
        text = environ.get("GANGLINE_SERVER_PORT") or "0"
        if not text.isdecimal() or int(text) > _MAX_PORT:
            raise InvalidRequest(
                f"GANGLINE_SERVER_PORT is `{text}`", fix=f"Set a port from 1 to {_MAX_PORT}, or unset it."
            )
        return cls(home=Home.from_env(environ), port=int(text))
