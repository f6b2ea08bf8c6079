"""All that a step with @gang has to do with other parts of Metaflow, in one flow."""

import os

from metaflow import FlowSpec, Parameter, current, environment, gang, project, resources, step, timeout

LABEL = f"test.folder={os.environ.get('MARK')}"


@project(name="pets")
class WholeFlow(FlowSpec):
    size = Parameter("size", default=2)

    @step
    def start(self):
        self.shards = ["cats", "dogs"]
        self.next(self.train)

    @gang(nodes=2, procs_per_node=1, label=LABEL)
    @environment(vars={"COLOUR": "light blue"})
    @timeout(minutes=5)
    @resources(cpu=2)
    @step
    def train(self):
        one = current.gang
        print(f"rank {one.rank} of {one.world_size} in {one.run_id}, {os.environ['COLOUR']}, size {self.size}")
        self.rank, self.run_id, self.retry = one.rank, one.run_id, current.retry_count
        self.next(self.evaluate, foreach="shards")

    @gang(procs_per_node=2, label=LABEL)
    @step
    def evaluate(self):
        print(f"evaluates {self.input} on rank {current.gang.rank}")
        self.score = f"{self.input}-{current.gang.rank}"
        self.next(self.join)

    @step
    def join(self, inputs):
        self.scores = sorted(one.score for one in inputs)
        self.merge_artifacts(inputs, include=["rank", "run_id"])
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    WholeFlow()
