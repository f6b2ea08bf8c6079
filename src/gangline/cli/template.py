"""`gangline template`: the ready projects that come with Gangline."""

from __future__ import annotations

import click

from gangline.cli.options import echo_json, echo_lines, json_option
from gangline.cli.templates import list_templates

__all__ = ["command"]


@click.command("template")
@json_option()
def command(*, as_json: bool) -> None:
    """List the ready training scripts that come with Gangline.

    `gangline submit --template NAME` runs one as it is; `gangline init --template NAME FOLDER` writes it out, to
    change it.
    """
    found = list_templates()
    if as_json:
        echo_json([{"name": item.name, "summary": item.summary, "files": list(item.names)} for item in found])
        return
    width = max(len(item.name) for item in found)
    echo_lines([f"{item.name:{width}}  {item.summary}" for item in found])
