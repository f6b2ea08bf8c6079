"""The batch script, line by line, and that nothing anybody writes into an option becomes a command."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.backends.slurm.options import check_options, merge_for_script, merge_options, quote_value
from gangline.backends.slurm.render import JobTerms, render_job, render_node, render_shell, render_time
from gangline.backends.slurm.tokens import Token, job_name, parse_token
from gangline.domain.errors import SpecInvalid
from gangline.domain.gang import GangSpec
from gangline.domain.naming import run_id_from
from gangline.domain.spec import SlurmOptions
from gangline.rundir.home import Home
from gangline.rundir.identity import home_identity
from gangline.testing import make_gang

GOLDEN = Path(__file__).with_name("golden")
SBATCH_LINE = re.compile(r"#SBATCH --([a-z][a-z0-9-]*)(=(\"([^\"\\\n]|\\.)*\"|[^\s\"'#\\;`$]+))?")


def gang(**fields: object) -> GangSpec:
    return make_gang(**{"run_id": "llama-ft-7k3q", "name": "Llama FT", "nodes": 2, "procs_per_node": 4, **fields})


def terms(launch: int = 0, **fields: object) -> JobTerms:
    given = {
        "run_dir": "/scratch/team/gangline/runs/llama-ft-7k3q",
        "agent": "/scratch/team/gangline/agents/agent-0123456789abcdef.pyz",
        "python": "/usr/bin/python3.11",
        "token": Token(home="a1b2c3d4e5f6", run_id="llama-ft-7k3q", launch=launch),
        **fields,
    }
    return JobTerms(**given)  # type: ignore[arg-type]


CASES = {
    "plain": (gang(nodes=1, procs_per_node=1), SlurmOptions(), terms()),
    "full": (
        gang(
            launch=3,
            gpus_per_node=4,
            cpus_per_node=32,
            memory_bytes=64_000_000_000,
            time_limit_s=7200.0,
            exclude_hosts=("node07",),
        ),
        SlurmOptions(
            partition="a100,h100",
            account="nlp",
            qos="high",
            constraint="nvlink&[rack1*2|rack2]",
            reservation="icml",
            nodelist="node[01-02]",
            exclude="node09",
            exclusive=True,
            dependency="afterok:123",
            setup=("module load cuda/12.4", 'export GREETING="it\'s; fine"'),
            options={"mail-type": "END", "mail-user": "me@lab.example", "overcommit": "", "wckey": 'a "b" #c'},
        ),
        terms(3, env={"NCCL_SOCKET_IFNAME": "ib0"}),
    ),
    "script": (
        gang(nodes=1, procs_per_node=1, time_limit_s=3600.0),
        SlurmOptions(
            account="nlp",
            script="old.sbatch",
            directives={
                "job-name": "my job",
                "nodes": "2",
                "output": "logs/%j.out",
                "time": "5",
                "account": "old",
                "exclusive": "",
                "requeue": "",
                "wckey": "a b",
            },
        ),
        terms(),
    ),
    "elastic": (gang(nodes=4, min_nodes=2, gpus_per_node=8), SlurmOptions(gres="gpu:a100:8"), terms(cpus_per_node=96)),
}


@pytest.mark.parametrize("name", CASES)
def test_scripts_are_those_that_were_agreed_on(name: str) -> None:
    """After a change that is meant: remove the file, run again, look at the diff."""
    for kind, render in (("job", render_job), ("node", render_node)):
        text, golden = render(*CASES[name]), GOLDEN / f"{name}.{kind}.sh"
        if not golden.exists():
            golden.write_text(text, encoding="utf-8")
        assert text == golden.read_text(encoding="utf-8")
        subprocess.run(["bash", "-n", golden], check=True)


def test_a_shell_runs_on_the_interpreter_of_its_nodes_agent(tmp_path: Path) -> None:
    bundle, script, launch = tmp_path / "b d.pyz", tmp_path / "shell.sh", tmp_path / "a b" / "launches" / "000"
    bundle.write_text("import json, sys; print(json.dumps(sys.argv[1:]))\n")
    script.write_text(render_shell(gang(), terms(run_dir=str(tmp_path / "a b"), agent=str(bundle))))
    launch.mkdir(parents=True)
    words = ["bash", script, "1", "--rank", "3", "--", "echo", "a  b", "$x"]
    gone = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (gone.returncode, gone.stdout) == (75, "")
    assert "node 1 of this run does not run any more" in gone.stderr

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as agent:
        (launch / "node-001.lock").write_text(f"{agent.pid}\n")
        called = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    beside = ["--launch", "0", "--node", "1", "--rank", "3", "--", "echo", "a  b", "$x"]
    assert called == ["shell", str(tmp_path / "a b"), *beside]


hostile = st.text(alphabet=st.characters(exclude_categories=("Cs", "Cc")), min_size=1).filter(str.strip)
nasty = st.sampled_from(['"', "'", ";", "`", "$(touch /tmp/x)", "\\", "#", "--wrap=x", "a b", "\\\\", '"; rm -rf /; "'])


@settings(deadline=None, max_examples=150)
@given(value=st.one_of(hostile, nasty), name=hostile)
def test_values_stay_on_their_line(value: str, name: str) -> None:
    options = SlurmOptions(account=value, options={"wckey": value})
    check_options(options)
    script = render_job(gang(name=name), options, terms(run_dir=f"/w/{value}"))
    lines = script.split("\n")
    asked = [line for line in lines if line.startswith("#SBATCH")]
    assert all(SBATCH_LINE.fullmatch(line) for line in asked), asked
    assert all(line.startswith("#") or line == "" for line in lines[: lines.index("")])
    found = dict(line.removeprefix("#SBATCH --").split("=", 1) for line in asked if "=" in line)
    assert as_sbatch_reads(found["account"]) == as_sbatch_reads(found["wckey"]) == value


def as_sbatch_reads(text: str) -> str:
    if not text.startswith('"'):
        return text
    return re.sub(r"\\(.)", r"\1", text[1:-1])


@settings(deadline=None, max_examples=60)
@given(value=st.one_of(hostile, nasty))
def test_values_stay_words_of_the_script(value: str) -> None:
    """What bash makes of the script's own lines is what was meant, whatever stands in a path or a variable."""
    text = render_node(gang(), SlurmOptions(), terms(run_dir=f"/w/{value}", env={"X": value}))
    subprocess.run(["bash", "-n"], input=text.encode(), check=True)
    line = next(line for line in text.split("\n") if line.startswith("export X="))
    shown = subprocess.run(["bash", "-c", f'{line}\nprintf %s "$X"'], capture_output=True, check=True)
    assert shown.stdout == value.encode()
    assert shlex.split(text[text.index("launch=") :].split("\npython=")[0])[0] == f"launch=/w/{value}/launches/000"


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b", "", "  ", "\x1b[31m", "x" * 5000])
def test_what_no_line_can_hold_is_refused(value: str) -> None:
    for options in (SlurmOptions(account=value), SlurmOptions(dependency=value)):
        with pytest.raises(SpecInvalid, match=r"--(account|dependency)"):
            check_options(options)
    if value:
        with pytest.raises(SpecInvalid, match="--sbatch-option"):
            check_options(SlurmOptions(options={"wckey": value}))


@pytest.mark.parametrize(
    "name",
    ["job-name", "output", "nodes", "comment", "requeue", "partition", "C", "--wckey", "wc key", "a\nb", "clusters"],
)
def test_options_that_are_ours_or_no_names_are_refused(name: str) -> None:
    with pytest.raises(SpecInvalid, match="--sbatch-option"):
        check_options(SlurmOptions(options={name: "x"}))


def test_unknown_options_are_passed_on() -> None:
    options = SlurmOptions(options={"some-sites-own": "7", "spread-job": ""})
    check_options(options)
    script = render_job(gang(), options, terms())
    assert "#SBATCH --some-sites-own=7\n" in script
    assert "#SBATCH --spread-job\n" in script


def test_the_runs_words_come_before_the_pools() -> None:
    pool = SlurmOptions(
        account="team", partition="main", exclusive=True, setup=("a",), options={"nice": "1", "tmp": "1"}
    )
    merged = merge_options(pool, SlurmOptions(partition="debug", exclusive=False, setup=("b",), options={"nice": "2"}))
    assert (merged.account, merged.partition, merged.exclusive) == ("team", "debug", False)
    assert (merged.setup, merged.options) == (("a", "b"), {"nice": "2", "tmp": "1"})


def test_a_scripts_own_lines_come_before_the_pools_words() -> None:
    pool = SlurmOptions(account="team", partition="main", gres="gpu:8", setup=("a",), options={"nice": "1", "tmp": "1"})
    own = SlurmOptions(qos="high", script="x", directives={"partition": "debug", "nice": "5", "gpus-per-node": "2"})
    merged = merge_for_script(pool, own)
    assert (merged.account, merged.partition, merged.gres, merged.qos) == ("team", None, None, "high")
    assert (merged.setup, merged.options) == ((), {"tmp": "1"})
    script = render_job(gang(nodes=1), merged, terms())
    asked = [line for line in script.split("\n") if line.startswith("#SBATCH")]
    assert {"#SBATCH --partition=debug", "#SBATCH --nice=5", "#SBATCH --account=team"} <= set(asked)
    assert not any("--nodes" in line for line in asked)


def test_a_scripts_agent_gets_its_signals_and_its_code_is_the_jobs(tmp_path: Path) -> None:
    launch = tmp_path / "launches" / "000"
    launch.mkdir(parents=True)
    (launch / "node.sh").write_text('trap "echo heard >>$1/../said; exit 9" USR1\n'.replace("$1", str(launch)))
    with (launch / "node.sh").open("a") as file:
        file.write(f"touch {tmp_path}/up\nfor i in $(seq 3000); do sleep 0.01; done\n")
    text = render_job(gang(nodes=1, time_limit_s=60.0), SlurmOptions(script="x"), terms(run_dir=str(tmp_path)))
    env = {"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": "node02", "SLURM_JOB_ID": "12"}
    job = subprocess.Popen(["bash", "-c", text], env=env)
    deadline = time.monotonic() + 30
    while not (tmp_path / "up").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(timeout=30) == 9
    assert (launch / "job.exit").read_text().startswith("9 0 ")


def test_a_percent_sign_in_the_path_is_no_pattern() -> None:
    assert "--output=/w/100%%/launches/000/job.log" in render_job(gang(), SlurmOptions(), terms(run_dir="/w/100%"))


@pytest.mark.parametrize(
    ("time_s", "text"), [(1, "0-00:01:00"), (90, "0-00:02:00"), (3600, "0-01:00:00"), (90_061, "1-01:02:00")]
)
def test_time_as_slurm_takes_it(time_s: float, text: str) -> None:
    assert render_time(time_s) == text


NAMES = ["x" * 200, "Hello Flow/u_'\"", "HelloFlow", "Helloflow", "-rf", "🚀🚀", "first last", "%j", "a;b", "名前"]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_makes_a_job_name_that_people_recognise(name: str) -> None:
    run_id = run_id_from(name, b"abcd")
    shown = job_name(run_id, 0)
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,50}\.0", shown)
    script = render_job(gang(run_id=run_id, name=name), SlurmOptions(), terms())
    assert f"#SBATCH --job-name={shown}\n" in script
    assert quote_value(shown) == shown


def test_a_token_is_read_again() -> None:
    token = Token(home="a1b2c3d4e5f6", run_id="llama-ft-7k3q", launch=12)
    assert parse_token(f" {token}\n") == token
    assert parse_token("gangline:a1b2c3d4e5f6:llama-ft-7k3q/12:more") is None
    assert parse_token("(null)") is None


def test_a_state_folder_keeps_its_identity(tmp_path: Path) -> None:
    home = Home(tmp_path).create()
    first = home_identity(home)
    assert home_identity(home) == first
    (tmp_path / "identity").write_text("torn")
    assert re.fullmatch("[0-9a-f]{12}", home_identity(home))


def run_node(tmp_path: Path, text: str, **env: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "launches" / "000").mkdir(parents=True, exist_ok=True)
    base = {"PATH": "/usr/bin:/bin", "SLURM_PROCID": "1", "SLURMD_NODENAME": "node02"}
    return subprocess.run(
        ["bash", "-c", text], env={**base, **env}, capture_output=True, text=True, timeout=60, check=False
    )


def agent_that_tells(tmp_path: Path) -> Path:
    agent = tmp_path / "agent.sh"
    agent.write_text('#!/bin/bash\necho "agent: $* X=$X UMASK=$(umask)"\nexit 5\n')
    agent.chmod(0o755)
    return agent


def test_a_node_becomes_the_agent_and_ends_with_its_code(tmp_path: Path) -> None:
    setup = ("export X=from-setup", "true")
    text = render_node(
        gang(), SlurmOptions(setup=setup), terms(run_dir=str(tmp_path), python=str(agent_that_tells(tmp_path)))
    )
    done = run_node(tmp_path, text)
    log = tmp_path / "launches" / "000" / "node-001.log"
    assert done.returncode == 5
    assert f"agent {tmp_path} --launch 0 --node 1 X=from-setup UMASK=0022" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600
    assert done.stderr == ""


@pytest.mark.parametrize("line", ["false", "module load nowhere", 'echo "never closed', "(exit 3)", "if true; then"])
def test_a_set_up_line_that_fails_ends_the_node(tmp_path: Path, line: str) -> None:
    agent = agent_that_tells(tmp_path)
    text = render_node(gang(), SlurmOptions(setup=(line,)), terms(run_dir=str(tmp_path), python=str(agent)))
    done = run_node(tmp_path, text)
    assert done.returncode == 67
    assert f"gangline: node 1 (node02): the set-up line `{line}` failed" in done.stderr
    assert line in (tmp_path / "launches" / "000" / "node-001.log").read_text()


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    done = run_node(tmp_path, render_node(gang(), SlurmOptions(), terms(run_dir=str(tmp_path), python="/no/python")))
    assert done.returncode == 69
    assert "there is no interpreter /no/python" in done.stderr


def test_a_node_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "srun").write_text('#!/bin/bash\nwhile [[ "$1" == --* ]]; do shift; done\nexec "$@"\n')
    (tools / "sleep").write_text("#!/bin/bash\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    text = render_job(gang(time_limit_s=60.0), SlurmOptions(), terms(run_dir=str(tmp_path / "elsewhere")))
    env = {"PATH": f"{tools}:/usr/bin:/bin", "SLURMD_NODENAME": "node02", "SLURM_JOB_ID": "12"}
    done = subprocess.run(["bash", "-c", text], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 66
    assert f"gangline: node02 does not see {tmp_path}/elsewhere/launches/000" in done.stderr
