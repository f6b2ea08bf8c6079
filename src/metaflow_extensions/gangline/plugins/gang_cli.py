"""`python flow.py gang step`: what Metaflow's runtime starts for a step with @gang, with the arguments of `step`."""

from __future__ import annotations

from typing import Any

from .compat import click, step_params


@click.group()
def cli() -> None:
    """Hold the group below; Metaflow merges it into its own."""


@cli.group(help="Commands of Gangline.", hidden=True)
def gang() -> None:
    """Hold the commands."""


@click.pass_context
def _step(ctx: Any, **params: Any) -> None:
    from .trampoline import run_gang  # noqa: PLC0415 - loads the client, which only this process needs

    run_gang(ctx.obj, params)


gang.add_command(
    click.Command("step", params=step_params(), callback=_step, help="Run a step as a gang and wait for it.")
)
