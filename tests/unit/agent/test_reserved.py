"""A run that uses more memory than it has asked for is told so once, and goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gangline.agent.reserved import Reserved, read_shares

MIB = 1 << 20
RANKS = {4: 100, 5: 101}


class Plot:
    def __init__(self, asked_bytes: int | None, shares: dict[int, int]) -> None:
        self.said: list[tuple[str, int]] = []
        self.reserved = Reserved(
            asked_bytes, "node 1 (h1)", lambda text, rank: self.said.append((text, rank)), shares=lambda _: shares
        )

    def sample(self, *resident: int | None, attempt: Path | None = Path("attempts/0")) -> None:
        ranks = {str(rank): {"rss_bytes": one} for rank, one in zip(RANKS, resident, strict=True)}
        self.reserved.look(attempt, RANKS, {"ranks": ranks})


def test_rank_node_and_figures_are_named_once_an_attempt():
    plot = Plot(100 * MIB, {4: 30 * MIB, 5: 90 * MIB})
    for _ in range(3):
        plot.sample(40 * MIB, 95 * MIB)
    ((text, rank),) = plot.said
    assert rank == 5
    assert text.startswith("The ranks of node 1 (h1) use 120.0 MiB of memory, --memory has asked for 100.0 MiB;")
    assert "rank 5 uses most, 90.0 MiB" in text
    plot.sample(40 * MIB, 95 * MIB, attempt=Path("attempts/1"))
    assert len(plot.said) == 2


@pytest.mark.parametrize(
    ("asked", "shares", "resident"),
    [
        (100 * MIB, {4: 30 * MIB, 5: 70 * MIB}, (80 * MIB, 90 * MIB)),  # what they share was counted twice
        (100 * MIB, {4: 90 * MIB, 5: 90 * MIB}, (50 * MIB, 50 * MIB)),
        (100 * MIB, {4: 0, 5: 0}, (None, None)),
        (None, {4: 90 * MIB, 5: 90 * MIB}, (90 * MIB, 90 * MIB)),
    ],
)
def test_where_it_is_kept_to_nothing_is_said(asked, shares, resident):
    plot = Plot(asked, shares)
    plot.sample(*resident)
    assert plot.said == []


def test_between_attempts_nothing_is_looked_at():
    plot = Plot(1, {4: 2, 5: 2})
    plot.sample(9, 9, attempt=None)
    assert plot.said == []


def test_a_process_has_its_share_and_one_that_is_gone_has_none():
    found = read_shares({0: os.getpid(), 1: 2**22 + 1})
    assert 5 * MIB < found[0] < 10_000 * MIB
    assert found[1] == 0
