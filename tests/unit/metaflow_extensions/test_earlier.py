"""A gang goes on from a checkpoint of its own task, and of no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from metaflow_extensions.gangline.plugins.compat import is_one_of_many
from metaflow_extensions.gangline.plugins.earlier import find_earlier
from metaflow_extensions.gangline.plugins.parts import UNKNOWN
from metaflow_extensions.gangline.plugins.task import BEGAN, GangTask


class StubClient:
    """One gang of the flow's run 1, which has a checkpoint, and may live."""

    def __init__(
        self, *, part: str = "", phase: str = "failed", pool: str = "local", has_saved: bool = True, **more: Any
    ) -> None:
        self._has_saved = has_saved
        labels = {"flow": "F", "run": "1", "step": "train", "task": "F/1/train/7", "attempt": "0", "root": "1"}
        labels |= {name: more.pop(name) for name in ("run", "work") if name in more}
        labels |= {"part": part} if part else {}
        self._labels = {f"metaflow.{name}": value for name, value in labels.items()}
        self._run = {"id": "theirs", "phase": phase, "pool": pool, "labels": self._labels, "attempts": [{}]}
        self._run |= {"revision": 0, "ended": None, **more}
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


CATS, DOGS = "1f3a-0", "9c07-0"


def resumed(client: StubClient, *, part: str = "", work: str = "other", retry: int = 0) -> Any:
    task = GangTask(flow="F", run="2", step="train", task="9", retry=retry, part=part, root="1")
    asked = {"origins": ["1"], "work": work, "wants_checkpoint": True, "environ": {BEGAN: "100.0"}}
    return find_earlier(client, task, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["", CATS, f"{CATS}/{DOGS}", "round-3", "stored-1f3a-0"])
def test_the_same_task_of_a_resumed_flow_goes_on(part: str) -> None:
    client = StubClient(part=part, phase="running")
    found = resumed(client, part=part)
    assert (found.start_from, found.begun, client.stopped) == ("theirs:latest", 1, ["theirs"])


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [(UNKNOWN, UNKNOWN), (CATS, UNKNOWN), (UNKNOWN, CATS), ("stored-1f3a-0", "stored-77aa-0"), ("stored-1f3a-0", CATS)],
)
def test_what_may_be_of_another_task_is_neither_taken_nor_stopped(theirs: str, mine: str) -> None:
    client = StubClient(part=theirs, phase="running")
    found = resumed(client, part=mine)
    assert (found.start_from, found.begun, client.stopped) == (None, 0, [])
    assert "cannot be told which of them was of this very task" in found.words[0]


@pytest.mark.parametrize(("theirs", "mine"), [(CATS, DOGS), (CATS, f"{CATS}/{DOGS}"), ("round-0", "round-1")])
def test_another_part_of_a_foreach_has_nothing_to_say(theirs: str, mine: str) -> None:
    client = StubClient(part=theirs, phase="running")
    found = resumed(client, part=mine)
    assert (found.start_from, list(found.words), client.stopped) == (None, [], [])


def test_a_checkpoint_that_another_pool_has_is_told_of() -> None:
    found = resumed(StubClient(pool="a100"))
    assert found.start_from is None
    assert found.words == ["What was saved on pool a100 cannot be read on pool local: it starts anew."]


def test_nothing_is_said_of_another_pool_where_nothing_was_saved() -> None:
    found = resumed(StubClient(pool="a100", has_saved=False))
    assert (found.start_from, list(found.words)) == (None, [])


def node(kind: str, *out: str, parents: tuple[str, ...] = ()) -> SimpleNamespace:
    return SimpleNamespace(type=kind, out_funcs=list(out), split_parents=list(parents))


def test_foreaches_around_a_step_and_loops_are_seen() -> None:
    graph = {
        "start": node("split", "fan", "again"),
        "fan": node("foreach", "prep", parents=("start",)),
        "prep": node("linear", "train", parents=("start", "fan")),
        "train": node("linear", "end", parents=("start", "fan")),
        "again": node("split-switch", "again", "end", parents=("start",)),
        "end": node("end"),
    }
    graph["join"] = node("join", "end", parents=("start", "fan"))
    found = {step: is_one_of_many(graph, step) for step in graph}
    assert [step for step in found if found[step]] == ["prep", "train", "again"]


@pytest.mark.parametrize("phase", ["queued", "running", "restarting", "unknown"])
def test_a_run_that_lives_and_does_the_same_is_taken_up(phase: str) -> None:
    client = StubClient(phase=phase, work="w")
    found = resumed(client, work="w")
    assert (found.taken, client.stopped) == ("theirs", [])
    assert f"is {phase}: it is taken up" in found.words[0]


@pytest.mark.parametrize(
    "stub",
    [{"work": "v"}, {"work": "w", "revision": 1}, {"work": "w", "phase": "stopping"}, {"work": ""}],
    ids=["other work", "changed by a person", "told to end", "nobody knows"],
)
def test_a_run_that_may_do_something_else_is_stopped_first(stub: dict[str, Any]) -> None:
    client = StubClient(**{"phase": "running", **stub})
    found = resumed(client, work=stub["work"] and "w")
    assert (found.taken, found.start_from, client.stopped) == (None, "theirs:latest", ["theirs"])


def test_a_retry_starts_a_run_of_its_own() -> None:
    assert resumed(StubClient(phase="running", work="w"), work="w", retry=1).taken is None


@pytest.mark.parametrize(("ended", "taken"), [(101.0, "theirs"), (99.0, None)])
def test_a_finished_run_is_taken_unless_a_person_wants_it_again(ended: float, taken: str | None) -> None:
    assert resumed(StubClient(phase="succeeded", work="w", ended=ended), work="w").taken == taken


def test_a_run_of_another_resume_is_not_stopped() -> None:
    client = StubClient(phase="running", run="3")
    found = resumed(client)
    assert (found.start_from, client.stopped) == ("theirs:latest", [])
    assert "belongs to another resume" in found.words[0]
