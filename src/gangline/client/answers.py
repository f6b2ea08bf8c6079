"""What an answer means: a success of a server that we understand, or the error that it stands for. Pure."""

from __future__ import annotations

from gangline.client.http import httpx
from gangline.domain.errors import GanglineError, ServerUnreachable, VersionMismatch, error_from_code
from gangline.domain.version import VERSION, speaks_same

__all__ = ["VERSION_HEADER", "check_answer", "unreachable"]

VERSION_HEADER = "X-Gangline-Version"


def check_answer(answer: httpx.Response, *, any_version: bool = False) -> httpx.Response:
    """The answer, if it is a success.

    Args:
        any_version: talk to a server of any version.
    Raises:
        VersionMismatch: the server is of another version.
        ServerUnreachable: it is no Gangline server.
        GanglineError: what the server answered with.
    """
    theirs = answer.headers.get(VERSION_HEADER)
    if theirs is None:
        raise ServerUnreachable(
            f"What answers at {_origin(answer)} is no Gangline server", fix="Check GANGLINE_SERVER, or unset it."
        )
    if not (any_version or speaks_same(theirs, VERSION)):
        raise VersionMismatch(
            f"The server that runs is Gangline {theirs}, this command is {VERSION}",
            why="They do not speak the same version.",
            fix="`gangline server stop` ends that server, the next command starts a new one, and runs go on meanwhile.",
        )
    if answer.is_error:
        raise _error_of(answer)
    return answer


def unreachable(url: str, error: Exception) -> ServerUnreachable:
    """The error for a server that did not answer."""
    return ServerUnreachable(
        f"The server at {url} does not answer",
        why=str(error) or type(error).__name__,
        fix="`gangline server status` says whether one runs; GANGLINE_SERVER names another one.",
    )


def _error_of(answer: httpx.Response) -> GanglineError:
    try:
        body = answer.json()["error"]
        return error_from_code(body["code"], what=body["what"], why=body["why"], fix=body["fix"])
    except (ValueError, KeyError, TypeError):
        return GanglineError(f"The server answered with status {answer.status_code}", why=answer.text[:200])


def _origin(answer: httpx.Response) -> str:
    return str(answer.url.copy_with(path="/", query=None)).rstrip("/")
