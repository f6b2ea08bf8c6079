"""Doubles and builders for tests, ours and those of extensions. Public: changes are listed in the changelog."""

from __future__ import annotations

from gangline.testing.backend import FakeBackend, FakeLaunch
from gangline.testing.builders import make_capacity, make_gang, make_spec
from gangline.testing.clock import FakeClock
from gangline.testing.cluster import FakeCluster, FakeElsewhere

__all__ = [
    "FakeBackend",
    "FakeClock",
    "FakeCluster",
    "FakeElsewhere",
    "FakeLaunch",
    "make_capacity",
    "make_gang",
    "make_spec",
]
