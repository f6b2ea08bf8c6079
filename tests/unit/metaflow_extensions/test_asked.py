"""@resources beside @gang, on a pool: one of the two says it, in numbers that a gang can have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metaflow_extensions.gangline.plugins.asked import read_resources
from metaflow_extensions.gangline.plugins.compat import GangError


def read(options: dict[str, Any] | None = None, **asked: Any) -> dict[str, Any]:
    decorator = SimpleNamespace(name="resources", attributes=asked, _user_defined_attributes={*asked})
    return read_resources(SimpleNamespace(decorators=[decorator]), options or {}, where="train")


def test_each_has_its_key() -> None:
    asked = {"gpu": "2", "memory": 16000, "cpu": "8", "disk": 7}
    assert read({"procs_per_node": 3}, **asked) == {
        "gpus_per_node": 2,
        "memory_bytes": 16000 * 2**20,
        "cpus_per_rank": 2,
    }
    assert read(cpu=0.5) == {"cpus_per_rank": 1}
    assert read(gpu=0) == read_resources(SimpleNamespace(decorators=[]), {}, where="train") == {}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"gpu": "0.5"}, r"gpu='0.5' in @resources. Ranks of a gang have whole devices"),
        ({"gpu": "many"}, "gpu='many' in @resources. Give it a number"),
        ({"cpu": -1}, "cpu=-1 in @resources"),
        ({"memory": "nan"}, "memory='nan'"),
    ],
)
def test_what_no_gang_can_have_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(GangError, match=says):
        read(**asked)


@pytest.mark.parametrize(
    ("asked", "options", "says"),
    [
        ({"gpu": 4}, {"gpus_per_node": 8}, "gpu=4 in @resources and gpus_per_node=8 in @gang"),
        ({"memory": 4096}, {"memory": "16GB"}, "memory=4096 in @resources and memory='16GB' in @gang"),
        ({"cpu": 4}, {"cpus_per_rank": 4}, "cpu=4 in @resources and cpus_per_rank=4 in @gang"),
    ],
)
def test_what_both_say_is_refused(asked: dict[str, Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises(GangError, match=says):
        read(options, **asked)
