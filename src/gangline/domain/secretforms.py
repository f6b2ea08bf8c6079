"""Where secrets stand in a text, by their form or by the name before them. Pure; standard library only.

Anchors, which are short literals, are looked for first, in windows; from each, code looks left and right within bounds.
So the work grows with the length of the text, whatever is in it, and other threads get their turns between two windows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gangline.domain.secretnames import looks_secret

__all__ = ["REMOVED", "find_secrets", "strip_codes"]

REMOVED = "[removed]"
_WINDOW = 1 << 15
_LONGEST_ANCHOR = 40
_LONGEST_NAME = 128
_LONGEST_QUOTED = 8192

_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_KEY_CUT = re.compile(r"[A-Za-z0-9+/=\s\\]*-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----")
"""The rest of a key whose beginning was cut off."""
_TOKENS = {
    "eyj": r"eyJ(?=(?P<head>[\w-]{6,1024}))(?P=head)\.[\w-]{6,}(?:\.[\w-]*)?",
    **dict.fromkeys(("akia", "asia", "agpa", "aida", "aroa"), r"(?:AKIA|ASIA|AGPA|AIDA|AROA)[0-9A-Z]{16}(?![0-9A-Z])"),
    **dict.fromkeys(("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"gh[pousr]_[A-Za-z0-9]{16,}"),
    "github_pat_": r"github_pat_\w{16,}",
    "glpat-": r"glpat-[\w-]{16,}",
    "hf_": r"hf_[A-Za-z0-9]{16,}",
    "npm_": r"npm_[A-Za-z0-9]{30,}",
    "pypi-": r"pypi-[\w-]{40,}",
    **dict.fromkeys((f"xox{kind}-" for kind in "abeoprs"), r"xox[abeoprs]-[\w-]{8,}"),
    "xapp-": r"xapp-[\w-]{16,}",
    "aiza": r"AIza[\w-]{30,}",
    "hooks.slack.com/": r"(?i:hooks\.slack\.com/)(?P<secret>[\w/+=-]{8,})",
    "/api/webhooks/": r"/api/webhooks/(?P<secret>[\w/-]{8,})",
    "://": r"""://(?P<secret>[^\s/"'<>]{1,1024})@""",
    "bearer": r"(?i:bearer)\s{1,8}(?P<secret>[\w.~+/=-]{8,})",
    "basic": r"(?i:basic)\s{1,8}(?P<secret>[\w.~+/=-]{8,})",
    **dict.fromkeys(
        (f"{kind}{by}" for kind in ("sk", "pk", "rk") for by in "-_"), r"(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}"
    ),
}
_FORMS = {anchor: re.compile(pattern) for anchor, pattern in _TOKENS.items()}
_ONLY_AT_STARTS = frozenset({"sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "bearer", "basic"})
"""Too common in the middle of words (`disk_`)."""
_STRONG = frozenset({"token", "secret", "password", "passwd", "passphrase", "credential", "credentials"})
_WEAK = frozenset({"key", "auth", "authorization", "pass", "pat", "pwd", "cookie", "sig", "signature"})
"""Secret only in some names."""
_TELLING = re.compile(
    r"(?i:(?:api|access|private|account|shared|secret|signing|encryption|storage|master|service)[_-]?key"
    r"|(?<!old)[_-]pwd|sharedaccesssignature|x-(?:amz|goog)-signature)\Z|\A(?:Pwd|sig)\Z"
)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_-]*\Z")
_ANCHOR = re.compile(
    "|".join(map(re.escape, sorted({"-----begin ", *_FORMS, *_STRONG, *_WEAK}, key=len, reverse=True)))
)
_ESCAPE = r"(?:[abefnrtv0]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})"
_ESCAPED = re.compile(rf"(?:\\{_ESCAPE}|%[0-9a-fA-F]{{2}})\Z")
"""Before a word: what looks like a part of it, and is the end of an escape."""
_FIRST_ESCAPE = re.compile(_ESCAPE)
_AFTER = re.compile(
    r"""(?:_?\d{1,3})?\\{0,4}(?:["'][\])]?)?"""
    r"""(?:(?P<given>[\s\0\ufffd]{0,8}(?:[=:]{1,2}>?|->|(?:%22)?%3[AaDd](?:%22)?)\s{0,8})"""
    r"""|(?P<cell>[ \t]{0,80}[|\u2502\u2503][ \t]{0,80})"""
    r"""|(?P<listed>\s{0,8},\s{0,80}(?=[bBuUrR]{0,2}\\{0,4}["']))|(?P<apart>(?:[\s\0\ufffd]|\\[nrt0]|\\x00){1,8}))"""
)
_NETRC = re.compile(r"(?:machine\s{1,8}\S{1,200}|default)(?:\s{1,8}(?:login|account)\s{1,8}\S{1,200}){0,3}\s{1,8}\Z")
_NETRC_CHARS = 600
_ESCAPED_SPACE = re.compile(r"\\{1,4}[nrt]")
_HEADER = re.compile(r"""(?:(?i:bearer|basic|token|digest|negotiate) {1,4})?(?P<secret>[^"'\r\n\\]{4,4096})""")
_HEADERS = frozenset({"authorization", "cookie"})
"""Their values may hold spaces."""
_QUOTE = re.compile(r"""[bBuUrR]{0,2}(\\{0,4})(["'])""")
_BARE = re.compile(r"""[^\s\0\ufffd,;"'}\])]{4,}""")
_CODES = re.compile(
    r"(?:[\x1b\ufffd]|\\x1[bB]|\\u001[bB]|\\033|\\e)"
    r"(?:\[[0-9;:?]{0,32}[ -/]{0,2}[@-~]|\][^\x07\x1b\\\n]{0,1024}(?:\x07|\x1b\\))"
    r"|\x9b[0-9;]{0,32}[@-~]"
)


def strip_codes(text: str) -> str:
    """The text without the codes for colours and the like, which may stand in the middle of a secret."""
    if any(mark in text for mark in ("\x1b", "\x9b", "\ufffd[", "1b", "1B", "\\033", "\\e")):
        return _CODES.sub("", text)
    return text


def find_secrets(text: str) -> Iterator[tuple[int, int]]:
    """Where secrets stand: begin and end of each, in order, none within another."""
    done = 0
    cut = _KEY_CUT.match(text)
    if cut is not None:
        done = cut.end()
        yield 0, done
    for at, anchor in _find_anchors(text):
        if at < done:
            continue
        found = _span(text, at, anchor)
        if found is not None and found[0] >= done:
            done = found[1]
            yield found


def _find_anchors(text: str) -> Iterator[tuple[int, str]]:
    for begin in range(0, len(text), _WINDOW):
        piece = _lower(text[begin : begin + _WINDOW + _LONGEST_ANCHOR])
        found = _ANCHOR.search(piece)
        while found is not None and found.start() < _WINDOW:
            yield begin + found.start(), found[0]
            found = _ANCHOR.search(piece, found.start() + 1)


def _lower(piece: str) -> str:
    lower = piece.lower()
    return lower if len(lower) == len(piece) else "".join(one.lower() if one.isascii() else one for one in piece)


def _span(text: str, at: int, anchor: str) -> tuple[int, int] | None:
    if anchor == "-----begin ":
        begun = _KEY_BEGIN.match(text, at)
        ended = _KEY_END.search(text, begun.end()) if begun is not None else None
        return (at, ended.end() if ended is not None else len(text)) if begun is not None else None
    if anchor not in _FORMS:
        return _named(text, at, anchor)
    if anchor in _ONLY_AT_STARTS and not _starts_word(text, at):
        return None
    found = _FORMS[anchor].match(text, at)
    if found is None:
        return None
    begin, end = found.span("secret" if "secret" in found.re.groupindex else 0)
    return None if text[begin:end] == REMOVED else (begin, end)


def _starts_word(text: str, at: int) -> bool:
    before = text[max(0, at - 6) : at]
    return not before or not (before[-1].isalnum() or before[-1] == "_") or _ESCAPED.search(before) is not None


def _named(text: str, at: int, word: str) -> tuple[int, int] | None:
    """The value behind a name that ends in a word, if the name is telling."""
    after = _AFTER.match(text, at + len(word))
    if after is None:
        return None
    if word in _HEADERS and after["given"] is not None:
        header = _HEADER.match(text, after.end())
        if header is not None:
            return None if text.startswith(REMOVED, header.start("secret")) else header.span("secret")
    value = _find_value(text, after.end())
    if value is None:
        return None
    name = _read_name(text, at, at + len(word))
    flag = name.startswith("-")
    if after["apart"] is not None and (not flag or text[value[0]] == "-") and not _is_of_netrc(text, at, name):
        return None
    if after["listed"] is not None and not flag and _VARIABLE.match(name) is None:
        return None
    return value if _is_telling(name, word) else None


def _is_of_netrc(text: str, at: int, name: str) -> bool:
    """`machine HOST login NAME password WORD`, in one line or over several."""
    if name != "password":
        return False
    before = _ESCAPED_SPACE.sub(" ", text[max(0, at - _NETRC_CHARS) : at])
    return _NETRC.search(before) is not None


def _read_name(text: str, at: int, end: int) -> str:
    """The whole name that ends there, without the letter of an escape before it."""
    begin, least = at, max(0, at - _LONGEST_NAME)
    while begin > least and (text[begin - 1].isalnum() or text[begin - 1] in "_-"):
        begin -= 1
    escape = _FIRST_ESCAPE.match(text, begin, at) if text[begin - 1 : begin] == "\\" else None
    return text[escape.end() if escape is not None else begin : end]


def _is_telling(name: str, word: str) -> bool:
    if word in _STRONG or _TELLING.search(name) is not None:
        return True
    if name.startswith("-"):
        return looks_secret(name)
    return len(name) > len(word) and _VARIABLE.match(name) is not None and looks_secret(name)


def _find_value(text: str, at: int) -> tuple[int, int] | None:
    quote = _QUOTE.match(text, at)
    if quote is None:
        bare = _BARE.match(text, at)
        return None if bare is None or text.startswith(REMOVED, at) else bare.span()
    begin = quote.end()
    end = _find_end(text, begin, quote[2], len(quote[1]))
    return None if begin == end or text[begin:end] == REMOVED else (begin, end)


def _find_end(text: str, begin: int, quote: str, depth: int) -> int:
    """Where a quoted value ends: at a quote that is not escaped more than the first; else with the line."""
    most = min(len(text), begin + _LONGEST_QUOTED)
    line = text.find("\n", begin, most)
    line = most if line < 0 else line
    at = text.find(quote, begin, line)
    while at >= 0:
        end = at
        while end > begin and text[end - 1] == "\\" and at - end <= depth:
            end -= 1
        if at - end <= depth:
            return end
        at = text.find(quote, at + 1, line)
    return line
