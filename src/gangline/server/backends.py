"""Backends by their entry points (`gangline.backends`). One that does not load is logged; the others serve."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points

from gangline.ports import Backend
from gangline.rundir.home import Home

__all__ = ["load_backends"]

_GROUP = "gangline.backends"
_log = logging.getLogger(__name__)


def load_backends(home: Home) -> dict[str, Backend]:
    """A backend for every entry point, by its name; each is made with the state folder."""
    found: dict[str, Backend] = {}
    for entry in entry_points(group=_GROUP):
        try:
            found[entry.name] = entry.load()(home)
        except Exception:  # noqa: BLE001, PERF203 - it is of a third party, and recorded
            _log.exception("backend %s cannot be used", entry.name)
    return found
