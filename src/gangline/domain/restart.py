"""Whether a failed attempt is followed by another, and when. Used by the leader on its node and by the server alike.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gangline.domain.phase import BUDGET_OF, Budget, Reason
from gangline.domain.spec import RestartPolicy

__all__ = ["Repeated", "RestartDecision", "decide_restart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """How often attempts have failed in the same way, one after the other."""

    count: int = 0
    what: str = ""
    """The exception, signal or exit code."""
    step: int | None = None
    """At which training stood each time; None: it reports no steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartDecision:
    """What follows an attempt that did not succeed."""

    restart: bool
    delay_s: float
    budget: Budget | None
    message: str
    """For people: `restart 1 of 3 (infrastructure)`, or why there is none."""


def decide_restart(
    policy: RestartPolicy,
    used: Mapping[Budget, int],
    reason: Reason,
    *,
    repeated: Repeated | None = None,
    budget: Budget | None = None,
) -> RestartDecision:
    """Decide from the budgets, and from whether another attempt could end in another way.

    Args:
        used: restarts that each budget has paid for so far.
        reason: why the attempt ended.
        repeated: counts this end, too; None: nothing is known of earlier ones.
        budget: who pays, where it is known better than by the reason alone.
    """
    budget = budget or BUDGET_OF[reason]
    if budget is None:
        return RestartDecision(restart=False, delay_s=0.0, budget=None, message=f"no restart follows {reason}")
    limit = _limit_of(policy, budget)
    spent = used.get(budget, 0)
    if limit is not None and spent >= limit:
        return RestartDecision(restart=False, delay_s=0.0, budget=budget, message=_refusal(budget, limit))
    if budget is Budget.USER and repeated is not None and 0 < policy.same_failure_limit <= repeated.count:
        return RestartDecision(restart=False, delay_s=0.0, budget=budget, message=_each_time(repeated))
    of = "no limit" if limit is None else f"of {limit}"
    return RestartDecision(
        restart=True,
        delay_s=_delay_s(policy, sum(count for one, count in used.items() if one is not Budget.CONTINUATION)),
        budget=budget,
        message=f"restart {spent + 1} {of} ({budget})",
    )


def _refusal(budget: Budget, limit: int) -> str:
    flag = {
        Budget.USER: "--max-restarts",
        Budget.INFRASTRUCTURE: "--max-infra-restarts",
        Budget.PREEMPTION: "--max-preemptions",
    }[budget]
    if limit == 0:
        return f"no restart: {flag} is 0"
    return f"no restart is left: all {limit} of {flag} were used" if limit > 1 else f"no restart is left of {flag} 1"


def _each_time(repeated: Repeated) -> str:
    where = "" if repeated.step is None else f" at step {repeated.step}"
    return f"no restart: it fails the same way each time ({repeated.count} times{where}; --same-failure-limit)"


def _limit_of(policy: RestartPolicy, budget: Budget) -> int | None:
    return {
        Budget.USER: policy.max_restarts,
        Budget.INFRASTRUCTURE: policy.max_infrastructure_restarts,
        Budget.PREEMPTION: policy.max_preemptions,
    }[budget]


def _delay_s(policy: RestartPolicy, restarts_so_far: int) -> float:
    """0 for the first restart of a run, then `backoff_s` doubling up to `max_backoff_s`."""
    if restarts_so_far == 0:
        return 0.0
    doublings = min(restarts_so_far - 1, 32)
    return float(min(policy.backoff_s * 2**doublings, policy.max_backoff_s))
