"""Real gangs of plain Python ranks: started, seen to end, ended, restarted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Gang

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_gang_runs_and_succeeds(gang: Gang, nodes: int) -> None:
    gang.script("""
        import os
        print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"], flush=True)
    """)
    result = gang.run_to_end(nodes=nodes)
    assert result["outcome"] == "succeeded"
    assert result["exit_code"] == 0
    assert [one["exit_code"] for one in result["ranks"]] == [0] * (2 * nodes)
    for rank in range(2 * nodes):
        assert gang.log(rank) == f"rank {rank} of {2 * nodes} 127.0.0.1\n"
    assert set(gang.wait().values()) == {0}
    assert gang.left_behind() == []
