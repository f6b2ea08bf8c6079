"""What a strategy may add to the common contract. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gangline.agent.launchspec import LaunchSpec
from gangline.agent.starter import RankStart

if TYPE_CHECKING:
    from gangline.agent.environ import AttemptTerms
    from gangline.agent.site import Site
    from gangline.agent.strategies.company import Company

__all__ = ["Rules"]


class Rules:
    """The strategy that adds nothing; others override what they need."""

    lost_code: int | None = None
    """What its runtime ends a rank with, without a word, when the job, or a daemon of it, is gone; None: nothing."""

    def num_ports(self, launch: LaunchSpec) -> int:  # noqa: ARG002
        """How many ports each node sets aside before the ranks start; all ranks are told of them (`terms.cluster`)."""
        return 0

    def find_refusal(self, launch: LaunchSpec) -> str:  # noqa: ARG002
        """Why this node cannot take part: what is not installed here; "": it can."""
        return ""

    def environment(self, launch: LaunchSpec, terms: AttemptTerms, rank: int) -> Mapping[str, str]:  # noqa: ARG002
        """Variables of a rank beyond the common contract. Pure; asked with terms that hold no addresses yet, too."""
        return {}

    def files(self, launch: LaunchSpec, terms: AttemptTerms) -> Mapping[str, str]:  # noqa: ARG002
        """Text files that ranks find in the folder of their attempt, by name. Pure."""
        return {}

    def supports(self, rank: int) -> bool:  # noqa: ARG002
        """Whether this rank only serves the others: it never ends by itself, and they decide how the attempt ends."""
        return False

    def company(self, site: Site, terms: AttemptTerms) -> Company | None:  # noqa: ARG002
        """Processes that are to stand beside the ranks of this node before those start; None: none."""
        return None

    def program(self, start: RankStart, site: Site, terms: AttemptTerms) -> RankStart:  # noqa: ARG002
        """What the agent starts as a rank."""
        return start
