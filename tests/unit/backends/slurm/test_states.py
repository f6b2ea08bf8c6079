"""States as the manual pages of 20.11 to 25.05 list them, and as clusters were seen to print them."""

import pytest

from gangline.backends.slurm.states import STATES, Standing, parse_state
from gangline.domain.phase import Reason

P, R, G, E, U = Standing.PENDING, Standing.RUNNING, Standing.ENDING, Standing.ENDED, Standing.UNKNOWN

CASES = [
    ("PENDING", P), ("PD", P), ("CONFIGURING", P), ("CF", P), ("REQUEUED", P), ("RQ", P), ("REQUEUE_HOLD", P),
    ("RH", P), ("REQUEUE_FED", P), ("RF", P), ("SPECIAL_EXIT", P), ("SE", P), ("RESV_DEL_HOLD", P), ("RD", P),
    ("POWER_UP_NODE", P), ("EXPEDITING", P),
    ("RUNNING", R), ("R", R), ("SUSPENDED", R), ("S", R), ("STOPPED", R), ("ST", R), ("RESIZING", R), ("RS", R),
    ("SIGNALING", R), ("SI", R),
    ("COMPLETING", G), ("CG", G), ("STAGE_OUT", G), ("SO", G),
    ("COMPLETED", E), ("CD", E), ("FAILED", E), ("F", E), ("CANCELLED", E), ("CA", E), ("TIMEOUT", E), ("TO", E),
    ("NODE_FAIL", E), ("NF", E), ("PREEMPTED", E), ("PR", E), ("BOOT_FAIL", E), ("BF", E), ("DEADLINE", E), ("DL", E),
    ("OUT_OF_MEMORY", E), ("OOM", E), ("LAUNCH_FAILED", E), ("RECONFIG_FAIL", E),
    ("REVOKED", U), ("RV", U),
    # cut, decorated, in another case
    ("COMPLETIN", G), ("COMPLETI", G), ("COMPLET", U), ("COMP", U), ("OUT_OF_ME+", E), ("CANCELLED+", E),
    ("CANCELLED by 1000", E), ("CANCELLED+ by 1000", E), ("PENDI", P), ("RUNNI", R), ("NODE_F", E), ("running", R),
    ("CANCELLE", E), ("REQUEUE", P), (" FAILED ", E), ("RESV", P), ("REQ", U), ("RE", U),
    # several at once, as text and as the lists of JSON
    ("FAILED,COMPLETING", G), ("PENDING|REQUEUED", P),
    (["COMPLETED"], E), (["NODE_FAIL", "COMPLETING"], G), (["CANCELLED", "COMPLETING"], G),
    (["PENDING", "COMPLETING"], G), (["RUNNING", "CONFIGURING"], P), (["RUNNING", "POWER_UP_NODE"], P),
    (["PREEMPTED", "REQUEUED"], P), (["NODE_FAIL", "REQUEUED", "COMPLETING"], G), (["FAILED", "REQUEUE_HOLD"], P),
    (["FAILED", "LAUNCH_FAILED"], E), (["RUNNING", "SIGNALING"], R), (["PENDING", "LAUNCH_FAILED"], P),
    (["COMPLETED", "STAGE_OUT"], E), (["NODE_FAIL", "EXPEDITING"], P), (["RUNNING", "NOT_INVENTED_YET"], U),
    (["COMPLETED", "NOT_INVENTED_YET"], U),
    # nobody knows these
    ("", U), ("HIBERNATING", U), ("1000", U), ("CANCEL LED", U), ([], U),
]  # fmt: skip


@pytest.mark.parametrize(("said", "standing"), CASES, ids=str)
def test_what_a_state_means(said, standing):
    assert parse_state(said).standing is standing


def test_every_state_of_the_table_is_known_in_all_its_forms():
    for name, meaning in STATES.items():
        for form in (name, meaning.code or name, name.lower(), [name]):
            assert parse_state(form).name == name


def test_no_cut_form_turns_something_that_lives_into_an_end():
    for name, meaning in STATES.items():
        for length in range(1, len(name)):
            standing = parse_state(name[:length]).standing
            assert standing in {meaning.standing, Standing.UNKNOWN} or name[:length] in {
                row.code for row in STATES.values()
            }, name[:length]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("TIMEOUT", Reason.TIME_LIMIT),
        ("DEADLINE", Reason.TIME_LIMIT),
        ("OUT_OF_MEMORY", Reason.OUT_OF_MEMORY),
        ("NODE_FAIL", Reason.NODE_LOST),
        ("BOOT_FAIL", Reason.NODE_LOST),
        ("PREEMPTED", Reason.PREEMPTED),
        ("FAILED", None),
        ("COMPLETED", None),
    ],
)
def test_why(said, reason):
    assert parse_state(said).meaning.reason is reason


def test_who_cancelled_and_what_was_said_are_kept():
    state = parse_state("CANCELLED by 1000")
    assert (state.by, state.meaning.cancelled, state.name) == ("1000", True, "CANCELLED")
    assert parse_state("HIBERNATING").raw == parse_state("HIBERNATING").name == "HIBERNATING"


def test_how_it_got_there_stays_known_while_it_completes():
    state = parse_state(["PREEMPTED", "COMPLETING"])
    assert (state.name, state.standing, state.meaning.preempted) == ("PREEMPTED", Standing.ENDING, True)
    assert parse_state(["NODE_FAIL", "REQUEUED"]).meaning.is_requeue
