"""The table of signatures: what failures of distributed training look like, why they happen, what to do. Pure data.

The first row that fits counts, so the particular stands above the general, in this order: processes of a rank,
memory, accelerators, talk between ranks, storage, imports, the script itself, exit codes and signals. To add a row, write its
pattern, a hint that begins with a verb, and at least one real text as an example: the tests look each example up, and
see that no row above takes it. Rows of one user or team belong in the spec (`signatures`), not here.

Standard library only.
"""

from __future__ import annotations

from gangline.domain.phase import Reason
from gangline.domain.signature_children import CHILDREN
from gangline.domain.signature_code import IMPORTS, PROGRAMS, SCRIPT, STORAGE
from gangline.domain.signature_devices import DEVICES, MEMORY
from gangline.domain.signature_talk import TALK
from gangline.domain.signatures import Evidence, Pattern, Signature

__all__ = ["SIGNATURES"]

_BY_HAND = (
    "Ask who or what sent it: `kill`, a time limit of the machine, an operator, a wrapper that ends its children."
)
_CRASHED = (
    "Look at the line that called it: compiled code crashed below, an extension, a driver, a library that does not fit."
)

_ENDS = (
    Signature(
        id="kernel_memory_kill",
        reason=Reason.OUT_OF_MEMORY,
        sentence="was killed by SIGKILL (137) by the kernel because memory ran out",
        hint="Load less at once (memory-map, stream, fewer workers), ask for more with --memory, or use fewer ranks per node.",
        patterns=(
            Pattern(signals=frozenset({9}), killed_for_memory=True),
            Pattern(exit_codes=frozenset({137}), killed_for_memory=True),
        ),
        examples=(Evidence(signal=9, killed_for_memory=True),),
    ),
    Signature(
        id="killed",
        reason=Reason.KILLED,
        sentence="was killed by SIGKILL (137)",
        hint="See whether memory grew until then (`gangline show {run} --json`: `peak_rss_bytes`), and whether an operator or another "
        "program on that node kills processes; `dmesg` there tells of kills by the kernel.",
        patterns=(Pattern(signals=frozenset({9})), Pattern(exit_codes=frozenset({137}))),
        examples=(Evidence(signal=9), Evidence(exit_code=137)),
    ),
    Signature(
        id="segfault",
        reason=Reason.USER_ERROR,
        sentence="crashed (SIGSEGV)",
        hint=_CRASHED,
        patterns=(Pattern(signals=frozenset({11})), Pattern(exit_codes=frozenset({139}))),
        examples=(Evidence(signal=11, log="Fatal Python error: Segmentation fault"),),
    ),
    Signature(
        id="bus_error",
        reason=Reason.USER_ERROR,
        sentence="crashed (SIGBUS)",
        hint="Look for a mapped file that became shorter, or a full /dev/shm or disk behind mapped memory.",
        patterns=(Pattern(signals=frozenset({7})), Pattern(exit_codes=frozenset({135}))),
        examples=(Evidence(signal=7),),
    ),
    Signature(
        id="illegal_instruction",
        reason=Reason.USER_ERROR,
        sentence="crashed (SIGILL)",
        hint="Install a build for the processor of that node: the code uses instructions (AVX-512, ...) that it does not have.",
        patterns=(Pattern(signals=frozenset({4})), Pattern(exit_codes=frozenset({132}))),
        examples=(Evidence(signal=4),),
    ),
    Signature(
        id="aborted",
        reason=Reason.USER_ERROR,
        sentence="crashed (SIGABRT)",
        hint="Read the end of its log: a library gave up, and most often says why just before.",
        patterns=(Pattern(signals=frozenset({6})), Pattern(exit_codes=frozenset({134}))),
        examples=(Evidence(signal=6, log="malloc(): memory corruption"),),
    ),
    Signature(
        id="arithmetic",
        reason=Reason.USER_ERROR,
        sentence="crashed (SIGFPE)",
        hint="Look for a division by zero in compiled code, below the line that called it.",
        patterns=(Pattern(signals=frozenset({8})),),
        examples=(Evidence(signal=8),),
    ),
    Signature(
        id="limit_signal",
        reason=Reason.USER_ERROR,
        sentence="went over a limit that its shell or machine sets",
        hint="Look at `ulimit -a` on that node: SIGXCPU is its CPU time, SIGXFSZ the size of one file.",
        patterns=(Pattern(signals=frozenset({24, 25})),),
        examples=(Evidence(signal=24),),
    ),
    Signature(
        id="ended_by_hand",
        reason=Reason.KILLED,
        sentence="was ended by {signal}",
        hint=_BY_HAND,
        patterns=(Pattern(signals=frozenset({1, 2, 15})),),
        examples=(Evidence(signal=15),),
    ),
)

SIGNATURES: tuple[Signature, ...] = (
    *CHILDREN,
    *MEMORY,
    *DEVICES,
    *TALK,
    *PROGRAMS,
    *STORAGE,
    *IMPORTS,
    *SCRIPT,
    *_ENDS,
)
