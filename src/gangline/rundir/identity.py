"""What tells a state folder apart from every other one that uses the same cluster. Standard library only."""

from __future__ import annotations

import re
import secrets
from pathlib import Path

from gangline.rundir.files import write_text
from gangline.rundir.home import Home

__all__ = ["home_identity"]

_IDENTITY = re.compile(r"[0-9a-f]{12}")
_IDENTITY_BYTES = 6


def home_identity(home: Home) -> str:
    """A few random digits that a state folder keeps for ever; made when they are first asked for."""
    path = Path(home.path, "identity")
    try:
        found = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        found = ""
    if not _IDENTITY.fullmatch(found):
        found = secrets.token_hex(_IDENTITY_BYTES)
        write_text(path, f"{found}\n", durable=True)
    return found
