"""Agents are told when their machines are taken back, where their scheduler says so."""

import json
import math

from gangline.domain.gang import Liveness, Observation


def test_agents_are_told_once_when_their_machines_are_taken_back(site):
    run = site.queued()
    site.cluster.begin(run)
    site.leader(run).begin()

    def told(end):
        site.cluster.lie(run, Observation(liveness=Liveness.ALIVE, ends_at=end))
        site.tick(2)
        path = site.home.run(run).control
        return [json.loads(line)["end"] for line in path.read_text().splitlines()] if path.exists() else []

    assert told(None) == []
    assert told(5000.0) == [5000.0]
    site.start_server()
    assert told(5000.0) == [5000.0], "what another server has told is not told again"
    assert told(9000.0) == [5000.0, 9000.0]
    assert told(math.inf) == [5000.0, 9000.0, None]
