"""What each strategy adds to what every rank gets: one small module each, loaded when a run asks for it.

A strategy says which ports each node sets aside, which variables a rank gets more, which processes stand beside the
ranks of a node (`company.py`), what is started as a rank, and which ranks are there for the others only. How the agent
starts, watches, blames and ends a gang is the same for all. Standard library only.
"""

from __future__ import annotations

import importlib

from gangline.agent.strategies.rules import Rules
from gangline.domain.spec import Strategy

__all__ = ["WITH_COMPANY", "Rules", "rules_of"]

_MODULES = {
    Strategy.DEEPSPEED: "deepspeed",
    Strategy.HOROVOD: "horovod",
    Strategy.JAX: "jax",
    Strategy.MPI: "mpi",
    Strategy.RAY: "ray",
    Strategy.TENSORFLOW: "tensorflow",
}
"""Those that are not here need nothing beyond the common contract."""
WITH_COMPANY = frozenset({Strategy.HOROVOD, Strategy.MPI, Strategy.RAY})
"""Strategies by which processes stand beside the ranks of some node."""
_loaded: dict[Strategy, Rules] = {}


def rules_of(strategy: Strategy) -> Rules:
    """The rules of a strategy."""
    if strategy not in _loaded:
        name = _MODULES.get(strategy)
        module = None if name is None else importlib.import_module(f"gangline.agent.strategies.{name}")
        _loaded[strategy] = Rules() if module is None else module.RULES
    return _loaded[strategy]
