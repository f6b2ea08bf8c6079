"""A gang goes on from a checkpoint of its own task, and of no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metaflow_extensions.gangline.plugins.compat import foreach_depth
from metaflow_extensions.gangline.plugins.earlier import find_earlier
from metaflow_extensions.gangline.plugins.task import GangTask


class StubClient:
    """One gang of the flow's run 1, which has a checkpoint, and may live."""

    def __init__(
        self, *, split: int | None = None, phase: str = "failed", pool: str = "local", has_saved: bool = True
    ) -> None:
        self._has_saved = has_saved
        labels = {"flow": "F", "run": "1", "step": "train", "task": "F/1/train/7", "attempt": "0"}
        labels |= {} if split is None else {"split": str(split)}
        self._labels = {f"metaflow.{name}": value for name, value in labels.items()}
        self._run = {"id": "theirs", "phase": phase, "pool": pool, "labels": self._labels, "attempts": [{}]}
        self.stopped: list[str] = []

    def list_runs(self, *, labels: list[str], limit: int) -> list[dict[str, Any]]:  # noqa: ARG002
        wanted = [tuple(one.split("=")) for one in labels]
        return [self._run] if all(self._labels.get(name) == value for name, value in wanted) else []

    def stop(self, run: str) -> None:
        self.stopped.append(run)

    def wait(self, run: str, timeout_s: float) -> None:
        pass

    def run(self, run: str) -> dict[str, Any]:  # noqa: ARG002
        return self._run

    def checkpoints(self, run: str) -> list[dict[str, Any]]:  # noqa: ARG002
        return [{"latest": True}] if self._has_saved else []


def resumed(client: StubClient, *, split: int | None, depth: int | None) -> Any:
    task = GangTask(flow="F", run="2", step="train", task="9", retry=0, split=split)
    return find_earlier(client, task, clone="1", wants_checkpoint=True, depth=depth)  # type: ignore[arg-type]


@pytest.mark.parametrize(("split", "depth"), [(None, 0), (1, 1)])
def test_the_same_task_of_a_resumed_flow_goes_on(split: int | None, depth: int) -> None:
    client = StubClient(split=split, phase="running")
    found = resumed(client, split=split, depth=depth)
    assert (found.start_from, found.begun, client.stopped) == ("theirs:latest", 1, ["theirs"])


@pytest.mark.parametrize(
    ("split", "depth"),
    [(None, 1), (1, 2), (None, None)],
    ids=["a later step of a foreach", "a foreach in a foreach", "a step that a switch repeats"],
)
def test_what_may_be_of_another_task_is_neither_taken_nor_stopped(split: int | None, depth: int | None) -> None:
    client = StubClient(split=split, phase="running")
    found = resumed(client, split=split, depth=depth)
    assert (found.start_from, found.begun, client.stopped) == (None, 0, [])
    assert "cannot be told which of them was of this very task" in found.words[0]


def test_another_part_of_a_foreach_has_nothing_to_say() -> None:
    found = resumed(StubClient(split=0), split=1, depth=1)
    assert (found.start_from, list(found.words)) == (None, [])


def test_a_checkpoint_that_another_pool_has_is_told_of() -> None:
    found = resumed(StubClient(pool="a100"), split=None, depth=0)
    assert found.start_from is None
    assert found.words == ["What was saved on pool a100 cannot be read on pool local: it starts anew."]


def test_nothing_is_said_of_another_pool_where_nothing_was_saved() -> None:
    found = resumed(StubClient(pool="a100", has_saved=False), split=None, depth=0)
    assert (found.start_from, list(found.words)) == (None, [])


def node(kind: str, *out: str, parents: tuple[str, ...] = ()) -> SimpleNamespace:
    return SimpleNamespace(type=kind, out_funcs=list(out), split_parents=list(parents))


def test_foreaches_around_a_step_are_counted_and_loops_seen() -> None:
    graph = {
        "start": node("split", "fan", "again"),
        "fan": node("foreach", "prep", parents=("start",)),
        "prep": node("linear", "train", parents=("start", "fan")),
        "train": node("linear", "end", parents=("start", "fan")),
        "again": node("split-switch", "again", "end", parents=("start",)),
        "end": node("end"),
    }
    graph["join"] = node("join", "end", parents=("start", "fan"))
    flow = SimpleNamespace(_graph=graph)
    assert [foreach_depth(flow, step) for step in ("start", "train", "join", "again")] == [0, 1, 0, None]
