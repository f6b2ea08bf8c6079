"""A flow of a laptop: a foreach of two gangs on a pool, whose artifacts meet in a join."""

import os

from metaflow import FlowSpec, current, gang, step

OPTIONS = {}
FAILS = os.environ.get("FAILS", "")


class AwayFlow(FlowSpec):
    @step
    def start(self):
        self.shards = ["dogs"] if FAILS else ["cats", "dogs"]
        self.next(self.look, foreach="shards")

    @gang(pool="lab", nodes=2, max_infra_restarts=0, label=f"fails={FAILS or 0}", **OPTIONS)
    @step
    def look(self):
        one = current.gang
        print(f"rank {one.rank} of {one.world_size} on node {one.node} with {self.input}", flush=True)
        if one.rank == 1 and "fails" in current.tags:
            raise ValueError("nothing to see")
        self.told = (self.input, one.rank, one.world_size)
        self.next(self.join)

    @step
    def join(self, inputs):
        self.seen = sorted(one.told for one in inputs)
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    AwayFlow()
