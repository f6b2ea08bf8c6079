"""What counts as proof from afar: a mirror that is not complete, and a job that may exist, decide nothing."""

from gangline.domain.errors import NoCapacity


def test_nothing_is_closed_before_the_mirror_is_complete_after_the_sign(site):
    run = site.running(max_restarts=3)
    leader = site.leader(run)
    leader.end("failed", next_step="restart", budget="user")
    leader.begin_anew()
    result = leader.run_dir.attempt(0).result
    hidden = result.rename(result.with_name("hidden"))
    site.see()
    hidden.rename(result)
    site.tick(5, after_s=10)
    assert [one.outcome for one in site.store.attempts(run)] == [None, None], "the result is on its way"
    site.see(2)
    assert [one.outcome for one in site.store.attempts(run)] == ["failed", None]
    assert site.row(run).launch_restarts == {}


def test_a_launch_that_may_exist_is_asked_for_although_one_before_it_is_turned_away(site):
    first, second = site.submit("first"), site.submit("second")
    site.tick()
    while site.works:
        site.works.pop(0)()  # both jobs are made, and nobody hears of it
    site.start_server()
    site.home.run(first).launch(0).spec.unlink()
    del site.cluster.launches[f"{first}/0"]  # the first was not made after all
    site.cluster.refuse(NoCapacity("full"))
    site.tick()
    site.deliver()
    assert site.row(first).handle is None
    assert site.row(second).handle is not None
