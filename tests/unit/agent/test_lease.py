from gangline.agent.lease import Lease
from gangline.testing import FakeClock


class Case:
    def __init__(self, length_s):
        self.clock, self.ended = FakeClock(), []
        self.lease = Lease(
            length_s, on_ended=lambda: self.ended.append(1), clock=self.clock.monotonic, wall=self.clock.now
        )

    def let_pass(self, seconds, step_s=1.0):
        for _ in range(int(seconds / step_s)):
            self.clock.advance(step_s)
            self.lease.look()


def test_it_ends_once_when_nobody_renews():
    case = Case(10.0)
    case.let_pass(9.0)
    assert case.ended == []
    case.let_pass(20.0)
    assert case.ended == [1]


def test_each_renewal_gives_the_whole_length_again():
    case = Case(10.0)
    for _ in range(5):
        case.let_pass(9.0)
        case.lease.renew()
    assert case.ended == []


def test_without_a_length_nothing_ends():
    case = Case(None)
    case.let_pass(10_000.0)
    assert case.ended == []


def test_a_machine_that_slept_gives_whoever_renews_the_whole_lease_again():
    case = Case(10.0)
    case.let_pass(9.0)
    case.clock.advance(3600.0)  # where the monotonic clock goes on while a machine sleeps
    case.lease.look()
    case.let_pass(9.0)
    case.clock.set_wall(case.clock.now() + 3600.0)  # where it stands still
    case.let_pass(9.0)
    assert case.ended == []
    case.let_pass(2.0)
    assert case.ended == [1]
