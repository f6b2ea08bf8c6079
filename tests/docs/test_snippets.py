"""What the pages tell people to type, typed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gangline.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GANGLINE = str(Path(sys.executable).with_name("gangline"))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def gangline_lines() -> list[tuple[str, str]]:
    """Every command line of ours in every page, with the page."""
    found = []
    for page in PAGES:
        for block in blocks(page, "(?:sh|text|console)"):
            for line in block.splitlines():
                text = re.split(r"\s{2,}|\s#|\s\|\s", line.strip().removeprefix("$ "))[0]
                if re.match(r"gangline [a-z-]", text) and "[" not in text:
                    found.append((str(page.relative_to(ROOT)), text))
    return found


@pytest.mark.parametrize(("page", "line"), gangline_lines())
def test_command_lines_are_understood(page: str, line: str):  # noqa: ARG001 - names the test
    """The command exists, and it takes these options: no page shows a flag that is not there."""
    words = line.split()[1:]
    context, command = click.Context(cli), cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        command = command.get_command(context, name)
        assert command is not None, f"`{name}` is no command"
    known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
    options = [word.partition("=")[0] for word in words if word.startswith("-") and word != "--"]
    script = next((i for i, word in enumerate(words) if word.endswith(".py") or word in {"-m", "--"}), len(words))
    mine = [
        option for option in options if words.index(next(w for w in words if w.partition("=")[0] == option)) < script
    ]
    assert [option for option in mine if option not in known | {"--help"}] == []


PAGES_WITH_SCRIPTS = {"README.md": ["train.py"], "docs/tutorial/first-run.md": ["count.py", "40"]}
"""The script of each page, with arguments that make it short."""


def script_of(page: str) -> str:
    return next(
        block for block in blocks(ROOT / page, "python") if "should_stop" in block or "latest_checkpoint" in block
    )


@pytest.mark.parametrize("page", PAGES_WITH_SCRIPTS)
def test_first_scripts_run_alone(page: str, tmp_path: Path):
    name, *args = PAGES_WITH_SCRIPTS[page]
    (tmp_path / name).write_text(script_of(page), encoding="utf-8")
    command = [sys.executable, name, *args]
    done = subprocess.run(command, cwd=tmp_path, check=True, timeout=60, capture_output=True, text=True)
    assert list((tmp_path / "checkpoints").glob("step-*/manifest.json"))
    assert done.stdout, "a newcomer who follows the run sees nothing"


def test_the_tutorial_leaves_a_person_the_time_to_break_it():
    """A minute in all, a checkpoint in the first seconds, and the page says which line to wait for."""
    page = ROOT / "docs/tutorial/first-run.md"
    script = script_of("docs/tutorial/first-run.md")
    steps, pause_s, every = (
        float(re.search(pattern, script)[1]) for pattern in (r"else (\d+)", r"sleep\(([\d.]+)\)", r"step % (\d+)")
    )
    assert 45 <= steps * pause_s <= 90
    assert every * pause_s <= 5
    assert f"`step {every:.0f} is saved`" in page.read_text(encoding="utf-8")


@pytest.mark.integration
@pytest.mark.parametrize("page", PAGES_WITH_SCRIPTS)
def test_first_scripts_run_as_a_gang(page: str, tmp_path: Path, shared_server: Path):
    name, *args = PAGES_WITH_SCRIPTS[page]
    (tmp_path / name).write_text(script_of(page), encoding="utf-8")
    size = ["--nodes", "2", "--procs-per-node", "2"]
    env = {**os.environ, "GANGLINE_HOME": str(shared_server)}
    command = [GANGLINE, "submit", *size, "--follow", name, *args]
    done = subprocess.run(command, cwd=tmp_path, env=env, text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    runs = subprocess.run([GANGLINE, "ps", "--json"], env=env, text=True, capture_output=True, check=True)
    assert any(run["phase"] == "succeeded" and run["step"] for run in json.loads(runs.stdout))


def test_readme_names_the_two_commands():
    text = "\n".join(blocks(ROOT / "README.md", "sh"))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"^make ([a-z]+)", text, re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


def test_make_targets_of_all_pages_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        word
        for page in PAGES
        for word in re.findall(r"`make ([a-z]+)`|^make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
        for word in word
        if word
    }
    assert named <= targets


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_help_lists_every_task():
    done = subprocess.run(["make", "-s", "help"], cwd=ROOT, text=True, capture_output=True, check=True)
    targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert [line.split()[1] for line in done.stdout.splitlines()] == targets
