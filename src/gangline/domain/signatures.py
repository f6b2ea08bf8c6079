"""What the end of a rank looks like, what it means, and what to do about it: the matching. Pure.

The rows are in `signature_table.py`. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gangline.domain.errors import SpecInvalid
from gangline.domain.phase import BUDGET_OF, Budget, Reason

__all__ = ["OWN_REASONS", "Evidence", "Match", "Pattern", "Signature", "find_signature", "parse_own"]

_LAST_LINES = 25
"""Where no exception is known, only this much of the log's end may say why: what stands above, the rank got over."""
_MOST_CHARS = 20_000
_MOST_LINE_CHARS = 1_000
"""Of one line: a pattern with `.*` in it may take time by the square of a line's length, and the agent's loop waits."""
_MOST_OWN = 100
_MOST_OWN_CHARS = 1_000
OWN_REASONS: Sequence[Reason] = tuple(
    reason
    for reason, budget in BUDGET_OF.items()
    if budget in {Budget.USER, Budget.INFRASTRUCTURE}
    and reason not in {Reason.NODE_LOST, Reason.START_TIMEOUT, Reason.PLATFORM}
)
"""Reasons that the signatures of a spec may give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a rank's end."""

    error_type: str = ""
    """As Python prints it, or a C++ type; "" where no exception is known."""
    message: str = ""
    causes: Sequence[tuple[str, str]] = ()
    """Type and message of what the exception came from, or holds, nearest first."""
    trace: str = ""
    """The traceback of the exception."""
    child: str = ""
    """How a process that the rank had started ended, where its exception comes from that: `process 4711 SIGSEGV`,
    `data loader worker 4711 exit code 3`."""
    log: str = ""
    """The end of the rank's log."""
    exit_code: int | None = None
    signal: int | None = None
    killed_for_memory: bool = False
    """The kernel has counted a kill for memory where the rank ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One way in which a signature shows. All that is given has to hold; regular expressions are searched for."""

    error: str = ""
    """In the type of the exception. With only this, the type is enough. Where no exception is known, it is passed over
    unless there is nothing else to go by."""
    text: str = ""
    """In the message of the exception; where none is known, in the last lines of the log."""
    log: str = ""
    """In the last lines of the log, also where an exception is known."""
    trace: str = ""
    """In the traceback of the exception."""
    child: str = ""
    exit_codes: frozenset[int] = frozenset()
    signals: frozenset[int] = frozenset()
    killed_for_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One row of the table. `sentence`, `detail` and `hint` may use the named groups of the pattern: `{module}`."""

    id: str
    reason: Reason
    sentence: str
    """After "Rank 2 on node 1 (host)": `ran out of memory`."""
    hint: str
    """What to do next."""
    patterns: Sequence[Pattern]
    """Any one of them is enough."""
    examples: Sequence[Evidence] = ()
    """Real ones, which the tests look up."""
    detail: str = ""
    """Numbers worth repeating; left out unless each of its groups was found."""
    consequence: bool = False
    """The rank says that another one is gone, or late: it is not to blame where another one failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A signature that was found, and the words that it took from the evidence."""

    signature: Signature
    words: Mapping[str, str] = field(default_factory=dict)
    error: tuple[str, str] | None = None
    """The exception that it was found in, where that is a cause of the one that ended the rank."""

    def sentence(self, facts: Mapping[str, str] | None = None) -> str:
        """What happened to the rank.

        Args:
            facts: as for `hint`.
        """
        signature, words = self.signature, {**(facts or {}), **self.words}
        filled = _fill(signature.sentence, words)
        needed = re.findall(r"\{(\w+)\}", signature.detail)
        return f"{filled} ({_fill(signature.detail, words)})" if needed and words.keys() >= set(needed) else filled

    def hint(self, facts: Mapping[str, str] | None = None) -> str:
        """What to do next.

        Args:
            facts: words that do not come from the evidence, as `python`, the interpreter.
        """
        return _fill(self.signature.hint, {**(facts or {}), **self.words})


def find_signature(evidence: Evidence, table: Iterable[Signature]) -> Match | None:
    """The first row that fits: the exception itself before what it came from, that before the log."""
    rows = tuple(table)
    evidence = replace(evidence, log=_bound(_last_lines(evidence.log)))
    errors = [(kind, _bound(text)) for kind, text in ((evidence.error_type, evidence.message), *evidence.causes)]
    for index, error in enumerate(errors):
        for row in rows:
            words = _match_row(row, evidence, error)
            if words is not None:
                return Match(signature=row, words=words, error=error if index else None)
    return None


def parse_own(own: Mapping[str, str]) -> list[Signature]:
    """The signatures of a spec: regular expression → `reason: hint`.

    Raises:
        SpecInvalid: no such reason, no hint, or no regular expression.
    """
    if len(own) > _MOST_OWN:
        raise SpecInvalid(f"`signatures` has {len(own)} entries", fix=f"At most {_MOST_OWN} are looked for.")
    return [_parse_one(number, text, meaning) for number, (text, meaning) in enumerate(own.items(), start=1)]


def _parse_one(number: int, text: str, meaning: str) -> Signature:
    word, _, hint = meaning.partition(":")
    reasons = {reason.value: reason for reason in OWN_REASONS}
    if word.strip() not in reasons or not hint.strip():
        raise SpecInvalid(
            f"`signatures` says `{_short(meaning)}` of `{_short(text)}`",
            fix=f"Write `reason: what to do`; the reason is one of: {', '.join(reasons)}.",
        )
    try:
        if not text or len(text) > _MOST_OWN_CHARS or re.compile(text).search("") is not None:
            raise SpecInvalid(
                f"`signatures` looks for `{_short(text)}`",
                why="It is too long, or is found in an empty text.",
                fix="Write a regular expression for the words that the failure prints.",
            )
    except re.error as error:
        raise SpecInvalid(
            f"`signatures` has `{_short(text)}`, which is no regular expression",
            why=str(error),
            fix="Put a backslash before . ( [ * + ? where they stand for themselves.",
        ) from error
    return Signature(
        id=f"own_{number}",
        reason=reasons[word.strip()],
        sentence="failed",
        hint=hint.strip().replace("{", "{{").replace("}", "}}"),
        patterns=(Pattern(text=text), Pattern(log=text)),
    )


def _match_row(row: Signature, evidence: Evidence, error: tuple[str, str]) -> dict[str, str] | None:
    for pattern in row.patterns:
        words = _match(pattern, evidence, error)
        if words is not None:
            return words
    return None


def _match(pattern: Pattern, evidence: Evidence, error: tuple[str, str]) -> dict[str, str] | None:
    if pattern.exit_codes and evidence.exit_code not in pattern.exit_codes:
        return None
    if pattern.signals and evidence.signal not in pattern.signals:
        return None
    if pattern.killed_for_memory and not evidence.killed_for_memory:
        return None
    kind, message = error
    if pattern.error and not (re.search(pattern.error, kind) if kind else pattern.text):
        return None
    words: dict[str, str] = {}
    said = message or kind if kind or message else evidence.log
    looked_for = (
        (pattern.text, said),
        (pattern.log, evidence.log),
        (pattern.trace, evidence.trace),
        (pattern.child, evidence.child),
    )
    for wanted, where in looked_for:
        if not wanted:
            continue
        found = re.search(wanted, where, re.MULTILINE)
        if found is None:
            return None
        words |= {name: value.strip() for name, value in found.groupdict().items() if value}
    return words


def _last_lines(log: str) -> str:
    return "\n".join(log.rstrip().splitlines()[-_LAST_LINES:])


def _bound(text: str) -> str:
    """What patterns are searched in: the end of a text, and of each long line its two ends."""
    half = _MOST_LINE_CHARS // 2
    lines = text[-_MOST_CHARS:].split("\n")
    return "\n".join(line if len(line) <= _MOST_LINE_CHARS else f"{line[:half]} … {line[-half:]}" for line in lines)


def _fill(template: str, words: Mapping[str, str]) -> str:
    return template.format_map(_Lenient(words))


class _Lenient(dict[str, str]):
    """A word that is not known is said so: a hint must never be the thing that fails."""

    def __missing__(self, key: str) -> str:
        return f"the {key}"


def _short(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
