from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gangline.cli import ps, server, watch
from gangline.cli.main import ENTRIES, SYNONYMS, cli, main
from gangline.domain.errors import GanglineError, ServerUnreachable
from gangline.rundir.checkpoints import PASSED_OVER
from gangline.rundir.home import Home
from gangline.wire.spec import spec_from_yaml

# --- the root ---


def test_help_lists_every_command_in_sections(gangline: Any):
    result = gangline("--help")
    assert result.code == 0
    assert re.findall(r"^(\S[^:]*):$", result.out, re.MULTILINE)[1:4] == [
        "Start and steer",
        "See what happens",
        "Platform",
    ]
    assert all(re.search(rf"^  {name} ", result.out, re.MULTILINE) for name in ENTRIES)


def test_without_a_command_the_help_is_shown(gangline: Any):
    assert gangline().out == gangline("--help").out


@pytest.mark.parametrize("name", list(ENTRIES))
def test_the_list_says_what_the_command_says_of_itself(name: str):
    command = cli.get_command(cli.make_context("gangline", [name], resilient_parsing=True), name)
    assert command is not None
    assert (command.help or "").splitlines()[0] == ENTRIES[name].summary
    assert command.name == name


@pytest.mark.parametrize("width", ["40", "80", "200"])
def test_help_fits_the_terminal(gangline: Any, width: str):
    for args in (["--help"], ["ps", "--help"], ["logs", "--help"]):
        assert gangline(*args, env={"COLUMNS": width}).code == 0


def test_an_unknown_command_gets_the_nearest(gangline: Any):
    result = gangline("logz")
    assert (result.code, result.out) == (64, "")
    assert result.err == "error: There is no command `logz`.\n  fix: Did you mean `logs`?\n"


@pytest.mark.parametrize(("word", "meant"), [*SYNONYMS.items(), ("train.py", "submit train.py")])
def test_words_of_other_tools_are_understood(gangline: Any, word: str, meant: str):
    result = gangline(word)
    assert result.code == 64
    assert f"Did you mean `gangline {meant}`?" in result.err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["ps", "--al"], "Did you mean `--all`?"),
        (["logs", "x", "--rank", "-1"], "`-1` names no ranks"),
        (["logs"], "`gangline logs` needs a run"),
        (["ps", "-n", "0"], "`0` is not a whole number, 1 or more"),
        (["ps", "--phase", "runing"], "runing"),
        (["wait", "x", "--timeout", "soon"], "soon"),
    ],
)
@pytest.mark.usefixtures("client")
def test_wrong_usage_is_an_error_of_ours(gangline: Any, args: list[str], says: str):
    result = gangline(*args)
    assert result.code == 64
    assert result.err.startswith("error: ")
    assert says in result.err
    assert result.out == ""


# --- errors ---


@pytest.mark.parametrize("args", [["show"], ["logs"], ["watch"], ["stop"], ["resume"], ["wait"], ["checkpoints"]])
@pytest.mark.usefixtures("client")
def test_a_run_that_is_not_there(gangline: Any, args: list[str]):
    result = gangline(*args, "nope")
    assert result.code == 66
    assert result.err == "error: There is no run `nope`.\n  fix: `gangline ps` lists runs.\n"


@pytest.mark.usefixtures("client")
def test_errors_are_json_where_json_was_asked_for(gangline: Any):
    result = gangline("show", "nope", "--json")
    assert json.loads(result.err)["error"]["code"] == "not_found"
    assert result.out == ""
    assert json.loads(gangline("ps", "--json", "--nope").err)["error"]["code"] == "invalid_request"


@pytest.mark.usefixtures("client")
def test_control_characters_in_an_error_are_shown_not_obeyed(gangline: Any):
    assert "`\\x1b[31mx`" in gangline("show", "\x1b[31mx").err


def test_the_unexpected_is_short_and_leaves_a_trace(
    gangline: Any, client: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("GANGLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(client, "list_runs", lambda **_: 1 / 0, raising=False)
    result = gangline("ps")
    assert result.code == GanglineError.exit_code
    assert "ZeroDivisionError" in result.err
    assert "Traceback" not in result.err
    kept = tmp_path / "home" / "cli-crash.log"
    assert "Traceback" in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert "Traceback" in gangline("ps", env={"GANGLINE_DEBUG": "1"}).err


def test_ctrl_c_is_no_trace(gangline: Any, client: Any, monkeypatch: pytest.MonkeyPatch):
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "list_runs", interrupt)
    assert (gangline("ps").code, gangline("ps").err) == (130, "interrupted\n")


# --- ps ---


def test_ps_at_80_columns(gangline: Any, client: Any, make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gangline.cli.terminal.time.time", lambda: make.now)
    over = {"phase": "failed", "reason": "user_error", "ended": make.now - 40, "exit_code": 1}
    runs = [make.run(), make.run(id="x-2222", name="x", step=None, total_steps=None, message="Why.", **over)]
    client.runs = {run["id"]: run for run in runs}
    result = gangline("ps", env={"COLUMNS": "80"})
    assert result.out.splitlines() == [
        "ID          NAME   PHASE                       STEP  GANG  ATTEMPT  AGE    TOOK",
        "llama-7k3q  llama  running              120/200 60%  2x2         0   1m  1m 00s",
        "x-2222      x      failed (user_error)            -  2x2         0   1m     20s",
    ]


def test_ps_names_pools_where_there_is_more_than_this_machine(gangline: Any, client: Any, make: Any):
    client.runs = {run["id"]: run for run in [make.run(pool="local"), make.run(id="x-2222", pool="a100")]}
    shown = gangline("ps", env={"COLUMNS": "200"}).out.splitlines()
    assert shown[0].split()[:4] == ["ID", "NAME", "POOL", "PHASE"]
    assert {line.split()[2] for line in shown[1:]} == {"local", "a100"}
    del client.runs["x-2222"]
    assert "POOL" not in gangline("ps", env={"COLUMNS": "200"}).out


def test_ps_shows_live_runs_however_old(gangline: Any, client: Any, make: Any):
    done = [make.run(id=f"done-{i}", phase="succeeded", created=make.now + i) for i in range(ps.DEFAULT_LIMIT + 5)]
    client.runs = {run["id"]: run for run in [*done, make.run(id="old-live", created=1.0)]}
    result = gangline("ps")
    assert "old-live" in result.out
    assert len(result.out.splitlines()) == ps.DEFAULT_LIMIT + 1
    assert "ps --all" in result.err
    assert len(gangline("ps", "--all").out.splitlines()) == ps.DEFAULT_LIMIT + 7


def test_ps_with_a_limit_hides_no_live_run(gangline: Any, client: Any, make: Any):
    runs = [make.run(id=f"done-{i}", phase="succeeded", created=make.now + i) for i in range(3)]
    client.runs = {run["id"]: run for run in [*runs, make.run(id="old-live", created=1.0)]}
    shown = gangline("ps", "-n", "2").out
    assert "old-live" in shown
    assert len(shown.splitlines()) == 3


def test_ps_passes_its_filters_on(gangline: Any, client: Any):
    labels = ("--label", "team=nlp", "--label", "x=1")
    result = gangline("ps", "--phase", "running", "--phase", "queued", "--project", "nlp", "-n", "3", *labels)
    query = {
        "phases": ("running", "queued"),
        "name": None,
        "project": "nlp",
        "labels": ("team=nlp", "x=1"),
        "limit": 3,
    }
    assert client.calls == [("list_runs", query)]
    assert result.out.startswith("No run matches.")


@pytest.mark.usefixtures("client")
def test_a_slip_in_a_phase_gets_the_nearest_one(gangline: Any):
    result = gangline("ps", "--phase", "runing")
    assert result.code == 64
    assert result.err == "error: There is no phase `runing`.\n  fix: Did you mean `running`?\n"


@pytest.mark.usefixtures("client")
def test_ps_says_how_to_begin(gangline: Any):
    assert "gangline init" in gangline("ps").out
    assert gangline("ps", "--json").out == "[]\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_names_that_the_terminal_cannot_show_are_escaped(
    client: Any, make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encoding: str
):
    client.runs = {"x": make.run(id="x", name="日本 🐕 \x1b[31m")}
    with (tmp_path / "out").open("w", encoding=encoding) as out:
        monkeypatch.setattr(sys, "stdout", out)
        assert main(["ps"]) == 0
    text = (tmp_path / "out").read_text(encoding=encoding)
    assert "\\u65e5" in text
    assert "\x1b" not in text


# --- stop, resume, wait ---


def test_stop_passes_its_grace_on(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a"), "b": make.run(id="b")}
    result = gangline("stop", "a", "b", "--grace", "2m")
    assert client.calls == [("stop", ("a", 120.0)), ("stop", ("b", 120.0))]
    assert result.out.splitlines()[0] == "a is stopping; `gangline wait a` returns when it is over."


def test_resume_says_what_is_next(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a", phase="failed", attempt=1)}
    assert "gangline watch a" in gangline("resume", "a").out


def test_resume_says_that_it_waits_for_a_run_that_still_ends(gangline: Any, client: Any, make: Any):
    client.runs, client.is_ending = {"a": make.run(id="a", phase="failed", attempt=1)}, True
    done = gangline("resume", "a")
    assert done.code == 0
    assert "Run `a` is still ending; this waits for it." in done.err
    assert "gangline watch a" in done.out


def test_resume_follows_from_the_new_attempt_on(gangline: Any, client: Any, make: Any):
    events = [{"seq": 7, "time": 0.0, "kind": "phase", "message": "", "data": {}}]
    client.runs = {"a": make.run(id="a", phase="failed", attempt=1, events=events)}
    client.stream = [{"end": make.run(id="a", phase="succeeded", exit_code=0)}]
    assert gangline("resume", "a", "--follow").code == 0
    assert client.calls[-1] == ("follow", ("a", {"ranks": None, "attempt": 2, "tail": None, "since": None, "after": 7}))


@pytest.mark.parametrize(
    ("phase", "exit_code", "code"),
    [("succeeded", 0, 0), ("failed", 3, 3), ("failed", 137, 137), ("failed", None, 1), ("stopped", 130, 130)],
)
def test_wait_ends_as_the_run_did(gangline: Any, client: Any, make: Any, phase: str, exit_code: int | None, code: int):
    client.runs = {"a": make.run(id="a")}
    client.later = [make.run(id="a", version=4), make.run(id="a", phase=phase, exit_code=exit_code, version=5)]
    assert gangline("wait", "a").code == code
    assert [call[1]["version"] for call in client.calls] == [None, 4]


def test_wait_for_several_gives_the_first_code_that_is_not_0(gangline: Any, client: Any, make: Any):
    ends = {"a": ("succeeded", 0), "b": ("failed", 7), "c": ("failed", 9)}
    client.runs = {run: make.run(id=run, phase=phase, exit_code=code) for run, (phase, code) in ends.items()}
    assert gangline("wait", "a", "b", "c").code == 7


def test_wait_gives_up_in_time(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a")}
    result = gangline("wait", "a", "--timeout", "0.001s")
    assert (result.code, result.err) == (124, "not over after 0.001s\n")


# --- metrics, checkpoints, pools, version, schema, server ---


def test_metrics_lists_newest_values(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a", metrics={"loss": 0.5, "lr": None})}
    listed = ["METRIC      NEWEST", "loss           0.5", "lr      not finite"]
    assert gangline("metrics", "a").out.splitlines() == listed
    assert json.loads(gangline("metrics", "a", "--json").out) == {"loss": 0.5, "lr": None}


def test_a_metric_is_a_curve_and_a_table(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a")}
    client.series = {"loss": make.metric([3.0, 2.0, 1.0])}
    lines = gangline("metrics", "a", "loss", "--rank", "1", "--buckets", "50").out.splitlines()
    assert client.calls == [("metric", ("a", "loss", 1, 50))]
    assert "┤" in lines[1]
    assert lines[-1].split() == ["2", "1"]


def test_a_metric_as_csv(gangline: Any, client: Any, make: Any):
    client.series = {"loss": make.metric([3.0, None])}
    lines = gangline("metrics", "a", "loss", "--csv").out.splitlines()
    assert lines == ["step,last_step,count,min,max,mean", "0,0,1,3.0,3.0,3.0", "1,1,1,,,"]
    assert gangline("metrics", "a", "--csv").code == 64


def test_checkpoints(gangline: Any, client: Any, make: Any):
    found = [make.checkpoint(100, state="removed"), make.checkpoint(150), make.checkpoint(200, latest=True)]
    client.runs = {"a": make.run(id="a", checkpoints=found)}

    def states(*options: str) -> list[str]:
        return [line.split()[-2] for line in gangline("checkpoints", "a", *options).out.splitlines()[1:]]

    assert states() == ["latest", "complete"]
    assert states("--all") == ["latest", "complete", "removed"]
    assert "removed 1 more; `--all`" in gangline("checkpoints", "a").err
    assert [item["step"] for item in json.loads(gangline("checkpoints", "a", "--json").out)] == [200, 150]


def test_checkpoints_that_were_passed_over_are_named_with_the_reason(gangline: Any, client: Any, make: Any):
    text = f"Checkpoint /runs/a/step-3{PASSED_OVER}it has no manifest.json."
    told = [
        {"seq": i, "time": 0.0, "kind": "warning", "message": m, "data": {}} for i, m in enumerate([text, "x", text])
    ]
    client.runs = {"a": make.run(id="a", checkpoints=[make.checkpoint(2, latest=True)], events=told)}
    assert gangline("checkpoints", "a").out.splitlines()[2:] == [text]


def test_checkpoints_that_a_resume_passes_over_are_listed_with_the_reason(gangline: Any, client: Any, make: Any):
    bad = make.checkpoint(3, state="damaged", why="`model.pt` is missing")
    text = f"Checkpoint {bad['path']}{PASSED_OVER}it is said above."
    told = [{"seq": 0, "time": 0.0, "kind": "warning", "message": text, "data": {}}]
    client.runs = {"a": make.run(id="a", checkpoints=[make.checkpoint(2, latest=True), bad], events=told)}
    lines = gangline("checkpoints", "a").out.splitlines()
    assert "damaged" in lines[1]
    assert lines[3:] == ["Step 3, attempt 0: `model.pt` is missing."]


@pytest.mark.usefixtures("client")
def test_pools(gangline: Any):
    assert gangline("pools").out.splitlines()[1].split()[:4] == ["local", "local", "ready", "8"]


def machine(host: str, state: str, *marks: dict[str, Any]) -> dict[str, Any]:
    why = "1 loss of run a within 24 h" if marks else ""
    told = {"why": why, "forgotten_at": time.time() + 3600 if marks else None}
    return {"pool": "local", "host": host, "state": state, "marks": list(marks), **told}


def test_nodes_of_pools(gangline: Any, client: Any):
    mark = {
        "time": time.time() - 60,
        "run": "a",
        "attempt": 2,
        "kind": "node_lost",
        "detail": "Node 1 \x1b[31mwas lost.",
    }
    assert gangline("pools", "nodes").out == "No node is known by name yet.\n"
    client.machines = [machine("h1", "avoided", *[mark] * 8), machine("h2", "ok")]
    lines = gangline("pools", "nodes", "local").out.splitlines()
    assert lines[1].split()[:4] == ["local", "h1", "avoided", "8"]
    assert lines[2].split() == ["local", "h2", "ok", "0", "-"]
    assert lines[4].startswith("h1: forgotten in ")
    assert lines[5].strip().startswith("1m ago  a attempt 2  node_lost: Node 1 ")
    assert "\x1b" not in lines[5]
    assert lines[-1] == "  and 2 earlier ones"
    assert json.loads(gangline("pools", "nodes", "--json").out) == client.machines
    assert [pool for name, pool in client.calls if name == "nodes"] == [None, "local", None]


def test_a_node_is_cleared(gangline: Any, client: Any):
    said = "Node h1 is cleared in pool `local`: nothing speaks against it.\n"
    assert gangline("pools", "clear", "h1", "--pool", "local").out == said
    assert gangline("pools", "clear", "h2").out == "Nothing speaks against node h2.\n"
    assert json.loads(gangline("pools", "clear", "h1", "--json").out) == {"host": "h1", "pools": ["local"]}
    assert client.calls[:2] == [("clear_node", ("h1", "local")), ("clear_node", ("h2", None))]
    assert gangline("pools", "clear").code == 64


def test_show_names_the_nodes_that_the_newest_launch_avoids(gangline: Any, client: Any, make: Any):
    told = [(0, "h1"), (1, "h1"), (1, "h2")]
    events = [
        {"seq": i, "time": 0.0, "kind": "avoided", "message": "x", "data": {"launch": n, "avoids": h, "why": "1 loss"}}
        for i, (n, h) in enumerate(told)
    ]
    client.runs = {"a": make.run(id="a", events=events)}
    assert "avoided     node h1 (1 loss); node h2 (1 loss)" in gangline("show", "a").out.splitlines()
    client.runs = {"a": make.run(id="a")}
    assert "avoided" not in gangline("show", "a").out


def test_show_says_what_the_newest_attempt_was_warned_of(gangline: Any, client: Any, make: Any):
    told = [(0, "old"), (1, "Rank 0: gangline.log left out `loss`: str is not a number"), (1, "other")]
    events = [
        {"seq": i, "time": 0.0, "kind": "warning", "message": text, "data": {"attempt": number}}
        for i, (number, text) in enumerate(told)
    ]
    client.runs = {"a": make.run(id="a", attempt=1, events=events)}
    lines = gangline("show", "a").out.splitlines()
    assert "warnings    Rank 0: gangline.log left out `loss`: str is not a number (1 more: gangline show a" in lines
    client.runs = {"a": make.run(id="a")}
    assert "warnings" not in gangline("show", "a").out


def test_a_loss_that_is_not_finite_is_not_shown_as_missing(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a", metrics={"loss": None, "lr": 0.1})}
    assert "metrics     loss not finite" in gangline("show", "a").out


@pytest.mark.usefixtures("no_server")
def test_version_starts_nothing(gangline: Any):
    assert gangline("version").out.splitlines()[-1] == "server   not running"
    assert gangline("--version").out.startswith("gangline ")


def test_schema_is_json(gangline: Any):
    assert json.loads(gangline("schema").out)["properties"]


@pytest.mark.usefixtures("client")
def test_server_status(gangline: Any):
    assert "pid      99" in gangline("server", "status").out


@pytest.mark.usefixtures("no_server")
def test_server_status_without_one(gangline: Any):
    result = gangline("server", "status")
    assert result.code == ServerUnreachable.exit_code
    assert result.out.startswith("No server runs")
    assert gangline("server", "status", "--json").out == "null\n"


def test_server_stop_says_that_gangs_go_on(gangline: Any, client: Any):
    result = gangline("server", "stop")
    assert client.calls == [("stop_server", None)]
    assert "1 gang goes on without it" in result.out


@pytest.mark.usefixtures("no_server")
def test_server_stop_without_one_is_no_error(gangline: Any):
    assert (gangline("server", "stop").code, gangline("server", "stop").out) == (0, "No server runs.\n")


def test_server_logs(gangline: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("GANGLINE_HOME", str(tmp_path))
    assert gangline("server", "logs").code == 66
    Home(tmp_path).server_log.write_bytes(b"".join(b"line %d\x1b[31m \xff\n" % i for i in range(5)))
    assert gangline("server", "logs", "-n", "2").out == "line 3\\x1b[31m \ufffd\nline 4\\x1b[31m \ufffd\n"


def test_server_logs_as_json(gangline: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("GANGLINE_HOME", str(tmp_path))
    assert json.loads(gangline("server", "logs", "--json").err)["error"]["code"] == "not_found"
    Home(tmp_path).server_log.write_bytes(b'one "1"\n\x1b[31m \xff\n')
    found = [json.loads(line) for line in gangline("server", "logs", "--json").out.splitlines()]
    assert found == [{"line": 'one "1"'}, {"line": "\x1b[31m \ufffd"}]


def test_a_line_of_the_server_log_that_is_half_written_waits_for_its_end(tmp_path: Path, capsys: Any):
    path = tmp_path / "log"
    path.write_text("one\ntw")
    position = server._print_new(path, 0, server._print_objects)
    path.write_text("one\ntwo\n")
    assert server._print_new(path, position, server._print_objects) == 8
    assert capsys.readouterr().out == '{"line": "one"}\n{"line": "two"}\n'


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("log latest --rank 3", "Did you mean `gangline logs latest --rank 3`?"),
        ("why llama-7k3q", "Did you mean `gangline show llama-7k3q`?"),
        ("events llama-7k3q", "Did you mean `gangline show llama-7k3q --events`?"),
        ("tail llama-7k3q", "Did you mean `gangline logs --follow llama-7k3q`?"),
        ("ps now", "`gangline ps` has no use for `now`"),
        ("help submit", "Did you mean `gangline submit --help`?"),
        ("logs", "`gangline logs latest` means the newest one"),
        ("stop", "`gangline stop latest` means the newest one"),
        ("server", "One of: logs, start, status, stop."),
    ],
)
def test_a_slip_is_answered_with_the_whole_line(gangline: Any, line: str, says: str):
    result = gangline(*line.split())
    assert (result.code, says in result.err) == (64, True), result.err


def test_the_schema_is_json_anyway(gangline: Any):
    assert gangline("schema", "--json").out == gangline("schema").out


def test_new_lines_of_the_server_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "log"
    path.write_text("one\n")
    position = server._print_new(path, 0, server._print_bytes)
    assert server._print_new(path, position, server._print_bytes) == position
    path.write_text("2\n")  # it was rotated
    assert server._print_new(path, position, server._print_bytes) == 2
    assert capsys.readouterr().out == "one\n2\n"


# --- init ---


@pytest.mark.parametrize("flags", [[], ["--template", "plain"], ["--template", "gpt"]])
def test_init_writes_a_script_that_compiles(gangline: Any, tmp_path: Path, flags: list[str]):
    folder = tmp_path / "new" / "project"
    result = gangline("init", str(folder), *flags)
    assert result.code == 0
    compile((folder / "train.py").read_text(), "train.py", "exec")
    assert (folder / "gangline.yaml").is_file()
    assert "data/" in (folder / ".ganglineignore").read_text().splitlines()
    assert "gangline submit --follow -f run.yaml" in result.out
    assert spec_from_yaml(folder / "run.yaml").entry == "train.py"


def test_init_as_json(gangline: Any, tmp_path: Path):
    said = json.loads(gangline("init", str(tmp_path), "--template", "plain", "--json").out)
    files = [".ganglineignore", "gangline.yaml", "run.yaml", "train.py"]
    assert said == {"template": "plain", "folder": str(tmp_path), "files": files}
    assert sorted(path.name for path in tmp_path.iterdir()) == files


def test_templates_are_listed_with_what_they_are(gangline: Any):
    assert "gpt    PyTorch and DDP: a small GPT on English text" in gangline("template").out
    found = json.loads(gangline("template", "--json").out)
    assert {"name", "summary", "files"} == set(found[0])
    assert [item["name"] for item in found] == ["gpt", "plain", "torch"]
    assert "Did you mean `torch`?" in gangline("init", "--template", "troch", "new").err


def test_init_overwrites_nothing(gangline: Any, tmp_path: Path):
    (tmp_path / "gangline.yaml").write_text("mine")
    result = gangline("init", str(tmp_path))
    assert result.code == 75
    assert "gangline.yaml is there already" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["gangline.yaml"]


def test_init_says_where_it_cannot_write(gangline: Any, tmp_path: Path):
    (tmp_path / "file").touch()
    assert gangline("init", str(tmp_path / "file" / "x")).code == 64


def test_system_samples_are_tables(gangline: Any, client: Any):
    ranks = {"1": {"cpu": 1.02, "delay": 0.4, "rss_bytes": 3 << 20, "state": "D"}, "0": {"state": ""}}
    devices = [{"id": "0", "use_percent": 97.0, "temperature_c": 81.0, "throttled": ["power cap"]}]
    sample = {"cpu": {"busy": 0.51}, "pressure": {"cpu": 12.5}, "ranks": ranks, "devices": devices}
    client.samples = [{"node": 0, "host": "gpu-7", "attempt": 0, "samples": [sample]}]
    done = gangline("metrics", "llama", "--system")
    assert done.code == 0
    assert "51%" in done.out
    assert "97 %" in done.out
    assert "power cap" in done.out
    assert "40%" in done.out
    assert "waits for a disk" in done.out


def test_system_without_samples_says_so(gangline: Any, client: Any):
    client.samples = [{"node": 0, "host": "", "attempt": 0, "samples": []}]
    assert "No samples yet" in gangline("metrics", "llama", "--system").out
    assert gangline("metrics", "llama", "loss", "--system").code == 64


def test_logs_say_that_earlier_attempts_have_logs_of_their_own(gangline: Any, client: Any, make: Any):
    client.runs = {"a": make.run(id="a", attempt=2, attempts=[make.attempt(number=number) for number in range(3)])}
    told = "this is attempt 2; --attempt N shows an earlier one: 0 to 1"
    assert told in gangline("logs", "a", "--rank", "0").err
    for args in (["--attempt", "0"], ["--json"], ["--raw"], ["--search", "x"]):
        assert "this is attempt" not in gangline("logs", "a", *args).err


def test_logs_say_which_rank_failed_first(gangline: Any, client: Any, make: Any):
    attempt = make.attempt(0, outcome="failed", reason="user_error", first_failure=make.failure())
    client.runs["llama-7k3q"] = make.run(phase="failed", reason="user_error", attempts=[attempt])
    assert "rank 2 failed first: gangline logs llama-7k3q --rank 2" in gangline("logs", "llama-7k3q").err
    assert "failed first" not in gangline("logs", "llama-7k3q", "--rank", "1").err
    assert "failed first" not in gangline("logs", "llama-7k3q", "-A").err


@pytest.mark.usefixtures("client")
def test_watch_shows_each_line_of_a_log_by_itself(client: Any, make: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "log_chunk", lambda *_, **__: make.chunk("one\ntwo\nthree"))
    assert watch._fetch_log(client, make.run(), 0) == ["one", "two", "three"]
