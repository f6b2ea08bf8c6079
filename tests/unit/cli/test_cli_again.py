"""`rerun`, `resume` with options, `debug`, `compare`: what they ask for and what they say."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def failed(client, make):
    run = make.run(phase="failed", reason="user_error", exit_code=1, ended=make.now, attempt=0)
    client.runs[run["id"]] = run
    return run["id"]


def call(client, name):
    return next(value for called, value in client.calls if called == name)


def test_resume_sends_a_checkpoint_and_changes(gangline, client, failed):
    done = gangline(
        "resume", failed, "--checkpoint", "200", "--nodes", "3", "--time-limit", "90m", "--max-restarts", "2"
    )
    assert done.code == 0, done.err
    run, checkpoint, changes = call(client, "resume")
    assert (run, checkpoint) == (failed, "200")
    assert changes == {
        "resources": {"nodes": 3, "min_nodes": None},
        "stop": {"time_limit_s": 5400.0},
        "restarts": {"max_restarts": 2},
    }


def test_a_path_for_resume_starts_where_it_is_typed(gangline, client, failed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gangline("resume", failed, "--checkpoint", "saved/step-0000000001.attempt-000")
    assert call(client, "resume")[1] == str(tmp_path / "saved/step-0000000001.attempt-000")


@pytest.mark.parametrize("option", ["--env", "--python", "--checkpoint-path", "--name"])
def test_resume_explains_why_an_option_of_submit_is_none_of_its_own(gangline, client, failed, option):
    done = gangline("resume", failed, option, "x", "--json")
    assert done.code == 64
    error = json.loads(done.err)["error"]
    assert f"`gangline resume` cannot change `{option}`" in error["what"]
    assert "gangline rerun" in error["fix"]
    assert client.calls == []


def test_rerun_sends_what_is_other_and_says_it(gangline, client, failed, make):
    client.submitted = make.run(
        id="llama-9zzz",
        phase="queued",
        rerun_of=failed,
        spec={**client.runs[failed]["spec"], "args": ["--lr", "1e-4"], "resources": {"nodes": 4}},
    )
    done = gangline("rerun", failed, "--nodes", "4", "--env", "A=1", "--", "--lr", "1e-4")
    assert done.code == 0, done.err
    run, changes, args = call(client, "rerun")
    assert (run, args) == (failed, ["--lr", "1e-4"])
    assert changes == {"resources": {"nodes": 4, "min_nodes": None}, "environment": {"env": {"A": "1"}}}
    assert "llama-9zzz is a rerun of llama-7k3q, the same but for:" in done.err
    assert 'args: ["--lr", "3e-4"] → ["--lr", "1e-4"]' in done.err


def test_rerun_keeps_the_arguments_unless_there_are_new_ones(gangline, client, failed):
    assert gangline("rerun", failed, "--json").code == 0
    assert call(client, "rerun")[2] is None
    client.calls.clear()
    gangline("rerun", failed, "--")
    assert call(client, "rerun")[2] == []


def test_last_failed_is_the_newest_failed_run_of_this_project(gangline, client, make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine, other = make.code(root=str(tmp_path)), make.code(root="/elsewhere")
    for run_id, code, debug_of in (("debug-1", mine, "mine-1"), ("other-1", other, None), ("mine-1", mine, None)):
        client.runs[run_id] = make.run(id=run_id, phase="failed", code=code, debug_of=debug_of)
    assert gangline("rerun", "--last-failed").code == 0
    assert call(client, "rerun")[0] == "mine-1"


def test_last_failed_of_a_project_without_failures_names_another(gangline, failed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = gangline("rerun", "--last-failed")
    assert done.code == 66
    assert f"No run of {tmp_path} has failed" in done.err
    assert f"gangline rerun {failed}" in done.err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("rerun",), "There is no run to run again"),
        (("rerun", "a", "--last-failed"), "--last-failed takes no RUN"),
        (("debug", "a", "--fresh", "--checkpoint", "1"), "contradicts"),
        (("debug", "a", "--attach"), "There is no run `a`"),
        (("compare", "a"), "compared with nothing"),
        (("compare", "a", "b", "--ranks"), "--ranks takes one run"),
        (("compare", "a", "b", "--attempt", "1"), "--attempt goes with --ranks"),
    ],
)
@pytest.mark.usefixtures("client")
def test_slips_are_one_clear_error(gangline, line, says):
    done = gangline(*line)
    assert done.code in {64, 66}
    assert says in done.err


def test_debug_asks_for_a_smaller_world(gangline, client, failed):
    assert gangline("debug", failed, "--procs-per-node", "3", "--pdb", "--rank", "2", "--detach").code == 0
    run, options = call(client, "debug")
    assert run == failed
    assert {name: options[name] for name in ("nodes", "procs_per_node", "pdb", "rank", "checkpoint", "fresh")} == {
        "nodes": 1,
        "procs_per_node": 3,
        "pdb": True,
        "rank": 2,
        "checkpoint": None,
        "fresh": False,
    }


def test_ctrl_c_ends_a_run_that_is_debugged(gangline, client, failed, make):
    client.submitted = make.run(id="llama-debug-2abc", phase="running", debug_of=failed, spec=debug_spec(None))
    client.runs["llama-debug-2abc"] = client.submitted
    client.stream = [KeyboardInterrupt()]
    done = gangline("debug", failed)
    assert done.code == 130
    assert call(client, "stop") == ("llama-debug-2abc", 1.0)
    assert "detached" not in done.err


def test_only_a_run_with_a_debugger_that_still_runs_is_attached_to(gangline, client, make):
    client.runs["plain"] = make.run(id="plain", spec=debug_spec(None))
    client.runs["ended"] = make.run(id="ended", phase="failed", debug_of="plain", spec=debug_spec(0))
    assert "`plain` has no debugger" in gangline("debug", "plain", "--attach").err
    assert "gangline debug plain --pdb" in gangline("debug", "ended", "--attach").err


def debug_spec(rank):
    return {
        "entry": "train.py",
        "entry_kind": "script",
        "args": [],
        "pdb_rank": rank,
        "checkpoint": {"start_from": None},
    }


def comparison(make):
    runs = [make.run(id="a-1"), make.run(id="b-2")]
    code = {"run": "b-2", "base": "a-1", "same": False, "fault": ""}
    changed = {"path": "train.py", "change": "changed", "lines_added": 1, "lines_removed": 2, "note": ""}
    return {
        "runs": runs,
        "facts": [{"key": "duration_s", "values": [61.0, None]}, {"key": "commit", "values": [None, None]}],
        "spec": [{"key": "resources.nodes", "values": [1, 2]}],
        "environment": [],
        "code": [{**code, "changes": [{**changed, "diff": "--- a/train.py\n+\x1b[31mred"}]}],
        "metrics": [{"name": "loss", "values": [{"last": 0.5, "min": 0.25, "max": 1.0, "count": 9}, None]}],
    }


def test_compare_shows_what_differs(gangline, client, make):
    client.compared = comparison(make)
    out = gangline("compare", "a-1", "b-2").out
    assert "duration_s  1m 01s  -" in out
    assert "commit" not in out
    assert "resources.nodes  1    2" in out
    assert "changed train.py +1 -2" in out
    assert "environment\n  the same" in out
    assert "loss    last   0.5    -" in out
    assert client.calls[-1] == ("compare", (("a-1", "b-2"), False))


def test_compare_and_rerun_hide_what_looks_secret(gangline, client, failed, make):
    env = {"key": "environment.env.HF_TOKEN", "values": ["first-one", "other-one"]}
    args = {"key": "args", "values": [["--key=first-one"], ["--lr", "1"]]}
    package = {"key": "python.packages.google-auth", "values": ["2.1", "2.2"]}
    client.compared = {**comparison(make), "spec": [env, args], "environment": [package]}
    out = gangline("compare", "a-1", "b-2").out
    assert "HF_TOKEN" in out
    assert "first-one" not in out
    assert "other-one" not in out
    assert "values that look secret are not shown" in out
    assert "2.1" in out
    assert "first-one" in gangline("compare", "a-1", "b-2", "--json").out
    spec = client.runs[failed]["spec"]
    client.submitted = make.run(id="c-3", spec={**spec, "environment": {"env": {"HF_TOKEN": "first-one", "A": "b"}}})
    err = gangline("rerun", failed, "--env", "HF_TOKEN=first-one").err
    assert "environment.env.HF_TOKEN: - → [removed]" in err
    assert "environment.env.A: - → b" in err
    assert "first-one" not in err


def test_compare_code_prints_the_lines_and_nothing_that_a_terminal_obeys(gangline, client, make):
    client.compared = comparison(make)
    assert gangline("compare", "a-1", "b-2", "--code").out == "--- a/train.py\n+\\x1b[31mred\n"


def test_compare_ranks_marks_the_slow_one(gangline, client):
    rank = {"node": 0, "host": "h", "exit_code": 0, "signal": None, "ended_by": "self", "duration_s": 2.0}
    rank |= {"peak_rss_bytes": 10**9, "last_step": 7}
    client.workers = {
        "run": "a-1",
        "attempt": 2,
        "nodes": [0, 1],
        "hosts": ["h", "i"],
        "environment": [{"key": "kernel", "values": ["5.1", "6.1"]}],
        "missing": [3],
        "ranks": [{**rank, "rank": number, "step_s": 0.5 if number == 2 else 0.1} for number in range(4)],
    }
    out = gangline("compare", "a-1", "--ranks", "--attempt", "2").out
    assert "kernel  5.1         6.1" in out
    assert "1 node described none: 3" in out
    assert [line.split()[0] for line in out.splitlines() if "x the median" in line] == ["2"]
    assert "5.0 x the median" in out


def test_report_writes_a_private_file_and_replaces_none(gangline, client, failed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = gangline("report", failed)
    path = tmp_path / f"gangline-report-{failed}.html"
    assert (done.code, path.read_bytes()) == (0, b"<!doctype html>"), done.err
    assert path.stat().st_mode & 0o777 == 0o600
    assert "3 secrets removed" in done.out
    assert "Look through it" in done.err
    path.write_text("mine")
    refused = gangline("report", failed)
    assert refused.code == 75
    assert "is there already" in refused.err
    assert path.read_text() == "mine"
    assert gangline("report", failed, "--force").code == 0
    assert path.read_bytes() == b"<!doctype html>"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    gangline("report", failed, "-o", "x.zip")
    assert client.calls[-1] == ("report", (failed, "zip"))


@pytest.mark.parametrize(("name", "says"), [("x.pdf", "neither a page nor"), ("no/such/x.html", "cannot be")])
def test_report_says_where_it_cannot_be_written(gangline, failed, tmp_path, monkeypatch, name, says):
    monkeypatch.chdir(tmp_path)
    done = gangline("report", failed, "-o", name)
    assert done.code == 64
    assert says in done.err


def test_resume_refuses_arguments_and_names_rerun(gangline, client, failed):
    done = gangline("resume", failed, "--json", "--", "--steps", "10")
    assert done.code == 64
    error = json.loads(done.err)["error"]
    assert f"gangline rerun {failed} -- --steps 10" in error["fix"]
    assert client.calls == []
    assert gangline("resume", failed, "--").code == 0
