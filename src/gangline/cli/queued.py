"""What follows once a command has queued a run: its id, then return, wait, or follow to its end."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gangline.cli.failure import EXIT_INTERRUPTED
from gangline.cli.options import echo_json, echo_lines
from gangline.cli.terminal import Terminal, say
from gangline.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from gangline.client.client import Client
    from gangline.wire.views import RunDetail

__all__ = ["After", "check_after", "finish"]

_MOST_FOLLOWED = 16
"""A larger gang is followed by its rank 0 alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """What happens once the run is queued."""

    follow: bool
    wait: bool
    as_json: bool


def check_after(*, follow: bool, wait: bool, detach: bool, as_json: bool) -> After:
    """The three options as one.

    Raises:
        InvalidRequest: they contradict one another.
    """
    if detach and (follow or wait):
        raise InvalidRequest("--detach contradicts --follow and --wait", fix="Keep one of them.")
    return After(follow=follow, wait=wait, as_json=as_json)


def finish(client: Client, run: RunDetail, after: After) -> int:
    """Say what was queued, then return, wait or follow."""
    if after.follow:
        return _follow(client, run, as_json=after.as_json)
    if not after.as_json:
        from gangline.cli.submitted import render_submitted  # noqa: PLC0415 - imported while the run starts

        echo_lines(render_submitted(run, Terminal.from_stream()))
    if after.wait:
        return _wait(client, run, as_json=after.as_json)
    if after.as_json:
        echo_json(run)
    return 0


def _follow(client: Client, run: RunDetail, *, as_json: bool) -> int:
    """Follow from the first attempt on; what was queued is said on stderr, so that stdout is the ranks' alone."""
    from gangline.cli.describe import num_ranks  # noqa: PLC0415 - imported while the run starts
    from gangline.cli.follow import Following, follow_run  # noqa: PLC0415 - as above
    from gangline.cli.submitted import render_submitted  # noqa: PLC0415 - as above

    if as_json:
        say(json.dumps({"run": run}))
    else:
        say("\n".join(render_submitted(run, Terminal.from_stream(sys.stderr))), err=True)
    ranks = [0] if num_ranks(run) > _MOST_FOLLOWED else None
    if ranks and not as_json:
        say(f"Following rank 0 of {num_ranks(run)}; gangline logs {run['id']} --all-ranks has all.", err=True)
    seen = max((event["seq"] for event in run["events"]), default=-1)
    return follow_run(client, run["id"], Following(ranks=ranks, attempt=0, after=seen, as_json=as_json))


def _wait(client: Client, run: RunDetail, *, as_json: bool) -> int:
    from gangline.cli.describe import exit_code_of  # noqa: PLC0415 - imported while the run starts
    from gangline.cli.follow import say_detached, say_end  # noqa: PLC0415 - as above
    from gangline.cli.wait import wait_until_over  # noqa: PLC0415 - as above

    try:
        ended = wait_until_over(client, run["id"])
    except KeyboardInterrupt:
        say_detached(run["id"])
        return EXIT_INTERRUPTED
    assert ended is not None  # noqa: S101 - without a deadline it only returns at the end
    if as_json:
        echo_json(client.run(run["id"]))
    else:
        echo_lines([say_end(ended, Terminal.from_stream())])
    return exit_code_of(ended)
