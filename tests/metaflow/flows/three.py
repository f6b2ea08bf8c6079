"""What is compiled for Argo Workflows and Step Functions: a foreach of gangs, whose artifacts meet in a join."""

from metaflow import FlowSpec, Parameter, current, gang, project, schedule, step


@schedule(daily=True)
@project(name="pets")
class ThreeFlow(FlowSpec):
    size = Parameter("size", default=2)

    @step
    def start(self):
        self.shards = ["cats", "dogs"]
        self.next(self.train, foreach="shards")

    @gang(procs_per_node=3)
    @step
    def train(self):
        one = current.gang
        print(f"rank {one.rank} of {one.world_size} on {one.pool} with {self.input}, size {self.size}")
        self.rank, self.run_id, self.what = one.rank, one.run_id, self.input
        self.next(self.join)

    @step
    def join(self, inputs):
        self.seen = sorted(one.what for one in inputs)
        self.ranks = [one.rank for one in inputs]
        print(f"seen {self.seen} by ranks {self.ranks}")
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    ThreeFlow()
