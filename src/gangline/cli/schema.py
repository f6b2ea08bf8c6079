"""`gangline schema`: the JSON Schema of run files."""

from __future__ import annotations

import click

from gangline.cli.options import echo_json, json_option

__all__ = ["command"]


@click.command("schema")
@json_option("Print JSON, as it does anyway; errors are JSON on stderr.")
def command(*, as_json: bool) -> None:  # noqa: ARG001 - there is no other form
    """Print the JSON Schema of run files, for editors.

    For example: `gangline schema > gangline.schema.json`, and as first line of a run file:
    `# yaml-language-server: $schema=gangline.schema.json`.
    """
    from gangline.wire.spec import json_schema  # noqa: PLC0415 - only here

    echo_json(json_schema())
