"""How long a gang is waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gangline.agent.assembly import Assembly
from gangline.agent.attempt import Attempt
from gangline.agent.launchspec import Shape


class FakeLoop:
    def __init__(self) -> None:
        self.timers: list[tuple[float, Any]] = []

    def after(self, delay_s: float, call: Any) -> None:
        self.timers.append((delay_s, call))

    def every(self, delay_s: float, call: Any) -> None: ...


@pytest.mark.parametrize(("nodes", "waited_s"), [(1, 300), (2, 301), (1000, 800)])
def test_a_large_gang_gets_more_time_and_is_told_how_long_it_was(nodes: int, waited_s: int) -> None:
    loop, faults = FakeLoop(), list[str]()
    launch = SimpleNamespace(nodes=nodes, stop=SimpleNamespace(start_timeout_s=300.0))
    site, members = SimpleNamespace(launch=launch), SimpleNamespace(missing=(), sealed=False)
    assembly = Assembly(site, loop, members, warn=faults.append, fail=faults.append, go_on=lambda: None)  # type: ignore[arg-type]
    assembly.begin(Attempt(number=0, launch=0, started=0.0, shape=Shape((0,), 2)))
    assembly.seal()
    ((limit_s, call),) = loop.timers
    assert limit_s == pytest.approx(waited_s, abs=0.5)
    call()
    assert faults == [f"The gang was not complete after {waited_s} s: the ranks were not started."]
