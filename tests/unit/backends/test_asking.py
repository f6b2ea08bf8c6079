"""Whoever asks what a cluster has waits for the first answer alone, and not for long."""

from __future__ import annotations

import threading

from gangline.backends.asking import Asked


def test_the_first_answer_is_waited_for_and_asked_again_only_when_old() -> None:
    now, given = [0.0], iter([1, 2])
    asked = Asked(lambda: next(given), name="t", monotonic=lambda: now[0], first_patience_s=10.0)
    assert (asked.answer(), asked.answer(), asked.is_fresh()) == (1, 1, True)
    now[0] = 29.0
    assert asked.answer() == 1
    now[0] = 121.0
    assert not asked.is_fresh()


def test_a_cluster_that_does_not_answer_holds_nobody_up() -> None:
    answers, now = threading.Event(), [0.0]

    def ask() -> int:
        answers.wait()
        return 7

    asked = Asked(ask, name="t", monotonic=lambda: now[0], first_patience_s=0.0)
    assert (asked.answer(), asked.answer(), asked.is_fresh()) == (None, None, False)
    answers.set()
    assert asked._first.wait(10.0)
    assert asked.answer() == 7


def test_without_an_answer_the_last_one_stays() -> None:
    now, given, said = [0.0], iter([3, None]), threading.Semaphore(0)

    def ask() -> int | None:
        said.release()
        return next(given)

    asked = Asked(ask, name="t", monotonic=lambda: now[0], first_patience_s=10.0)
    assert asked.answer() == 3
    assert said.acquire(timeout=10.0)
    now[0] = 31.0
    assert asked.answer() == 3
    assert said.acquire(timeout=10.0)
    assert asked.answer() == 3
