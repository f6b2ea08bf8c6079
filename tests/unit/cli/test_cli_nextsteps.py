"""What is proposed next: only what makes sense for the run; and where a run came from."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.cli.describe import describe_gang, explain
from gangline.cli.nextsteps import next_commands
from gangline.cli.summary import render_summary
from gangline.cli.terminal import Terminal


def failed(make: Any, reason: str, **changes: Any) -> dict[str, Any]:
    attempt = make.attempt(0, outcome="failed", reason=reason, first_failure=make.failure())
    return make.run(**{"phase": "failed", "reason": reason, "ended": make.now, "attempts": [attempt], **changes})


def proposed(run: dict[str, Any]) -> list[str]:
    return [command.removeprefix("gangline ").replace("llama-7k3q", "RUN") for command, _ in next_commands(run)]  # type: ignore[arg-type]


def event(kind: str, attempt: int = 0, message: str = "") -> dict[str, Any]:
    return {"seq": 0, "time": 1.0, "kind": kind, "message": message, "data": {"attempt": attempt}}


def text_of(run: dict[str, Any], make: Any) -> str:
    return "\n".join(render_summary(run, Terminal(width=120, now=make.now)))  # type: ignore[arg-type]


def test_an_exception_is_debugged_and_what_was_saved_is_gone_on_from(make: Any) -> None:
    run = failed(make, "user_error", checkpoints=[make.checkpoint(100, latest=True)])
    edited = ["submit ...", "rerun RUN -- ARGS"]
    assert proposed(run) == ["logs RUN --rank 2", "debug RUN --pdb", *edited, "resume RUN", "show RUN --full"]
    assert ("gangline resume llama-7k3q", "go on from its checkpoint of step 100") in next_commands(run)  # type: ignore[arg-type]


def test_without_a_checkpoint_it_is_run_again(make: Any) -> None:
    lost = failed(make, "user_error", checkpoints=[make.checkpoint(100, state="damaged")])
    assert "rerun RUN" in proposed(lost)
    assert "resume RUN" not in proposed(lost)


def test_a_command_has_no_debugger(make: Any) -> None:
    run = failed(make, "user_error", spec={"entry": "bash", "entry_kind": "command"})
    assert "debug RUN" in proposed(run)


def test_a_lost_node_is_nothing_to_debug(make: Any) -> None:
    assert proposed(failed(make, "node_lost")) == ["logs RUN --rank 2", "rerun RUN", "show RUN --full"]


def test_after_a_hang_there_are_stacks_and_workers_to_look_at(make: Any) -> None:
    run = failed(make, "hang", events=[event("hang")])
    assert proposed(run)[:4] == ["logs RUN --rank 2", "stacks RUN", "compare RUN --ranks", "debug RUN"]
    assert "compare RUN --ranks" not in proposed({**run, "nodes": 1, "procs_per_node": 1})


def test_a_failure_before_the_newest_attempt_names_its_attempt(make: Any) -> None:
    run = failed(make, "platform", attempt=1)
    run["attempts"].append(make.attempt(1, outcome="failed"))
    assert proposed(run)[0] == "logs RUN --rank 2 --attempt 0"


def test_a_debug_run_leads_back_to_what_it_debugs(make: Any) -> None:
    assert proposed(failed(make, "user_error", debug_of="big-1"))[1:] == ["debug big-1 --pdb", "show RUN --full"]


@pytest.mark.parametrize(
    ("kind", "command"), [("hang_suspected", "stacks RUN"), ("straggler", "compare RUN --ranks"), ("warning", None)]
)
def test_a_living_run_is_looked_at_where_it_is_in_trouble(make: Any, kind: str, command: str | None) -> None:
    usual = ["watch RUN", "logs RUN --follow", "stop RUN"]
    found = proposed(make.run(events=[event(kind)]))
    assert [one for one in found if one not in usual] == ([command] if command else [])
    assert proposed(make.run(attempt=1, events=[event(kind, attempt=0)])) == usual


def test_a_run_that_waits_in_its_debugger_can_be_attached_to(make: Any) -> None:
    assert proposed(make.run(spec={"entry": "a.py", "pdb_rank": 0}))[0] == "debug RUN --attach"


def test_show_says_where_a_run_came_from(make: Any) -> None:
    revised = event("revised", message="The spec was changed: resources.nodes 2 → 4.")
    text = text_of(make.run(rerun_of="old-1", revision=1, events=[revised]), make)
    assert "origin      rerun of old-1 · revision 1 of its spec: resources.nodes 2 → 4\n" in text
    assert "origin      smaller world of old-1, for debugging\n" in text_of(make.run(debug_of="old-1"), make)
    assert "origin" not in text_of(make.run(), make)


def test_an_elastic_gang_says_how_many_of_its_nodes_run(make: Any) -> None:
    attempts = [make.attempt(0, outcome="failed"), make.attempt(1, outcome=None, ended=None)]
    attempts[0]["nodes"] = [make.node(node) for node in range(4)]
    run = make.run(nodes=4, attempt=1, attempt_nodes=2, attempts=attempts)
    text = text_of(run, make)
    assert "4 nodes x 2 ranks = 8 ranks · 2 of 4 nodes now = 4 ranks" in text
    assert "NODES" in text
    assert describe_gang(run) == "2/4x2"  # type: ignore[arg-type]
    assert explain(run, make.now).startswith("The 4 ranks of 2 of 4 nodes run, for")  # type: ignore[arg-type]
    assert "ran at last" in text_of({**run, "phase": "succeeded", "ended": make.now}, make)


def test_a_gang_of_full_size_or_that_starts_anew_says_nothing_of_it(make: Any) -> None:
    assert describe_gang(make.run(nodes=4, attempt_nodes=4)) == "4x2"
    assert describe_gang(make.run(nodes=4, attempt_nodes=2, phase="queued")) == "4x2"
    assert "NODES" not in text_of(make.run(attempts=[make.attempt(0), make.attempt(1)]), make)


def test_the_command_is_shown_without_its_secrets(make: Any) -> None:
    spec = {"entry": "a.py", "args": ["--api-key", "k1", "--x=hunter22"], "environment": {"env": {"PASS": "hunter22"}}}
    text = text_of(make.run(spec=spec), make)
    assert "k1" not in text
    assert "hunter22" not in text


def test_of_an_existing_script_it_is_said_what_the_scheduler_gave_or_what_it_asks(make: Any):
    slurm = {"script": "old.sbatch", "directives": {"nodes": "2", "ntasks-per-node": "8"}}
    spec = {**make.run()["spec"], "slurm": slurm}
    waits = make.run(
        nodes=1, procs_per_node=1, spec=spec, attempts=[], attempt=None, attempt_nodes=None, phase="queued"
    )
    assert "as its script asks: --nodes=2 --ntasks-per-node=8" in text_of(waits, make)
    node = {**make.attempt()["nodes"][0], "machines": ["a1", "a2"], "tasks": 16}
    run = make.run(nodes=1, procs_per_node=1, spec=spec, attempts=[make.attempt(nodes=[node])], attempt_nodes=2)
    assert "2 nodes, 16 tasks" in text_of(run, make)
    assert "a1, a2" in text_of(run, make)
    assert describe_gang(run) == "2 nodes"
    assert explain({**run, "phase": "running", "message": ""}, 0.0).startswith(
        "The script and its tasks on 2 nodes run,"
    )
