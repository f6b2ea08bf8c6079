"""A flow that knows nothing of gangs."""

from metaflow import FlowSpec, step


class PlainFlow(FlowSpec):
    @step
    def start(self):
        print("at the start")
        self.next(self.end)

    @step
    def end(self):
        print("at the end")


if __name__ == "__main__":
    PlainFlow()
