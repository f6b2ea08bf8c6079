"""From what people type to the id of a run."""

from __future__ import annotations

from difflib import get_close_matches

from gangline.domain.errors import Conflict, NotFound
from gangline.store.store import Store

__all__ = ["find_run"]

_MOST_NAMED = 5


def find_run(store: Store, word: str) -> str:
    """The id that `word` stands for: `latest`, an id, a name, or a unique prefix of an id; in this order.

    A name that only one run has wins over ids that begin with it.

    Raises:
        NotFound: nothing of the kind; it names near ones.
        Conflict: it stands for several.
    """
    if word == "latest":
        newest = store.recent_ids(1)
        if not newest:
            raise NotFound("There are no runs yet", fix="Submit one: gangline submit train.py.")
        return newest[0]
    found = store.ids_like(word) if word else []
    if word in found:
        return word
    named = store.ids_named(word)
    if len(named) == 1:
        return named[0]
    found = found or named
    if len(found) == 1:
        return found[0]
    if found:
        raise Conflict(f"`{word}` begins, or names, several runs: {_several(found)}", fix="Type more of the id.")
    near = get_close_matches(word, ["latest", *store.recent_ids()], n=_MOST_NAMED, cutoff=0.5)
    raise NotFound(
        f"There is no run `{word}`",
        fix=f"Did you mean {' or '.join(near)}?" if near else "`gangline ps` lists the runs.",
    )


def _several(found: list[str]) -> str:
    more = len(found) - _MOST_NAMED
    return ", ".join(found[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
