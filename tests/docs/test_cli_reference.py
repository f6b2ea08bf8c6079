"""The page on the command line is what the commands say of themselves."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click
import pytest

from gangline.cli.main import ENTRIES, cli

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "cli.md"


def render() -> str:
    path = ROOT / "tools" / "generate_cli_reference.py"
    spec = importlib.util.spec_from_file_location("generate_cli_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.render_reference()


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python tools/generate_cli_reference.py"


@pytest.mark.parametrize("name", list(ENTRIES))
def test_every_command_and_option_is_on_it(name: str):
    page = PAGE.read_text(encoding="utf-8")
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    commands = {name: command}
    if isinstance(command, click.Group):
        commands |= {f"{name} {sub}": inner for sub, inner in command.commands.items()}
    for path, found in commands.items():
        section = page.partition(f"# gangline {path}\n")[2].partition("\n#")[0]
        assert section
        missing = [
            flag for param in found.params for flag in param.opts if flag.startswith("-") and flag not in section
        ]
        assert missing == []
