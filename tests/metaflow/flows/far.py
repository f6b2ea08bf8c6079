"""A step whose gang runs on a pool, wherever the step itself runs."""

from metaflow import FlowSpec, current, gang, step

OPTIONS = {}


class FarFlow(FlowSpec):
    @gang(pool="lab", nodes=2, procs_per_node=2, **OPTIONS)
    @step
    def start(self):
        one = current.gang
        print(f"rank {one.rank} of {one.world_size} on {one.pool}")
        self.shards, self.world = ["cats", "dogs"], one.world_size
        self.next(self.look, foreach="shards")

    @step
    def look(self):
        print(f"looks at {self.input} of {self.world}")
        self.next(self.join)

    @step
    def join(self, inputs):
        self.seen = [one.input for one in inputs]
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    FarFlow()
