"""Reducers behind a DNS name, whose addresses may change while the job runs."""

from reduction.errors import ReducerUnavailable, WorkerFailed
from reduction.model import Welcome
from support.scenes.rank_scene import CREDIT, Scene, incarnation, peers

from worker_plugin.core.actions import Log, LookUp, Open, Send, Shut
from worker_plugin.core.events import Broke, Found, Received, StreamLost
from worker_plugin.core.link import PATIENCE_S, LinkPhase
from worker_plugin.core.membership import roster

UNAVAILABLE = ReducerUnavailable("no answer")


def named(reducers="ab", fixed="", **changes):
    looked_up = [f"{reducer}:1" for reducer in reducers if reducer not in fixed]
    return Scene(reducers=reducers, looked_up=looked_up, stall_warn_s=1e6, **changes)


def found(scene, *addresses, now=0.0):
    return [action for action in scene.handle(Found(addresses), now) if not isinstance(action, Log)]


def dialled(actions):
    return [action.address for action in actions if isinstance(action, Open)]


def test_a_name_is_looked_up_while_one_of_its_reducers_is_away():
    scene = named().run()
    assert LookUp() not in scene.tick(10.0)
    scene.lose("a", UNAVAILABLE, 20.0)
    times = [now for now in range(20, 30) if LookUp() in scene.tick(float(now))]
    assert times == [22, 24, 26, 28]
    scene.welcome("a", now=30.0)
    assert not any(LookUp() in scene.tick(float(now)) for now in range(31, 40))


def test_names_are_looked_up_when_all_reducers_that_rank_0_found_are_away():
    """Rank 0 found each moved reducer first. Then all of them move, and no reducer is left to report that."""
    scene = named("a", rank=1).run()
    scene.core.roster.on_added(("c:1",), 1.0)
    scene.lose("a", UNAVAILABLE, 1.0)
    found(scene, "c:1", now=3.0)
    scene.tick(3.0)
    scene.handle(Received(1, Welcome(incarnation("c"), CREDIT)), 3.1)
    scene.handle(Received(1, peers("PP")), 3.2)
    assert not any(LookUp() in scene.tick(float(now)) for now in range(4, 10))
    scene.handle(StreamLost(1, UNAVAILABLE), 10.0)
    assert any(LookUp() in scene.tick(float(now)) for now in range(10, 14))


def test_names_are_looked_up_by_a_rank_that_shares_no_reducer_with_rank_0():
    """All reducers behind the name have moved, and the two ranks found different ones in their places."""
    scene = named("a", rank=1)
    scene.tick(0.0)
    scene.handle(Received(0, Welcome(incarnation("a"), CREDIT)), 0.1)
    times = [now for now in range(1, 7) if LookUp() in scene.tick(float(now))]
    assert times == [2, 4, 6]
    scene.peers("a", "PP", now=7.0)
    scene.tick(7.0)
    assert not any(LookUp() in scene.tick(float(now)) for now in range(8, 14))


def test_rank_0_looks_up_names_while_it_waits_for_as_many_reducers_as_before():
    """The name had no other address at the first lookup, and no longer resolves to the lost one."""
    for policy, times in {"reshard": [], "wait": [5, 7, 9]}.items():
        scene = named(on_reducer_loss=policy).run()
        scene.lose("b", UNAVAILABLE, 1.0)
        found(scene, "a:1", now=4.0)
        assert [now for now in range(5, 10) if LookUp() in scene.tick(float(now))] == times


def test_addresses_that_the_user_wrote_are_not_looked_up():
    scene = named("a", fixed="a").run()
    scene.lose("a", UNAVAILABLE, 0.0)
    assert not any(LookUp() in scene.tick(float(now)) for now in range(20))
    found(scene, "b:1")
    assert scene.core.roster[0].phase is not LinkPhase.RETIRED


def test_a_reducer_that_came_back_at_another_address_is_dialed_there():
    scene = named().run()
    scene.lose("a", UNAVAILABLE, 1.0)
    found(scene, "a:1", "b:1", now=1.0)
    assert [link.phase for link in scene.core.roster] == [LinkPhase.DOWN, LinkPhase.UP], "nothing is new"
    scene.tick(1.1)
    scene.lose("a", UNAVAILABLE, 1.1)
    found(scene, "b:1", "c:1", now=3.0)
    assert dialled(scene.tick(3.0)) == ["c:1"]
    assert [link.address for link in scene.core.roster] == ["c:1", "b:1"]
    assert dialled(scene.tick(9.0)) == []
    scene.receive("a", Welcome(incarnation("c"), CREDIT), 10.0)  # link 0
    assert scene.core.roster[0].is_up


def test_a_connected_reducer_stays_although_its_name_no_longer_lists_it():
    scene = named().run()
    assert found(scene, "c:1") == []
    assert [link.address for link in scene.core.roster] == ["a:1", "b:1", "c:1"]
    assert [link.phase for link in scene.core.roster] == [LinkPhase.UP, LinkPhase.UP, LinkPhase.DOWN]


def test_a_pending_dial_is_ended_when_its_address_is_given_up():
    scene = named()
    scene.tick(0.0)
    assert found(scene, "b:1", now=1.0) == [Shut(0)]
    assert scene.welcome("a", now=1.0) == [], "its answer may be on its way"
    assert scene.handle(StreamLost(0, None), 1.0) == []
    assert dialled(scene.tick(5.0)) == []


def without_the_first_of_three():
    """A host of three processes: the named one is gone, its first sibling is there, and the other is being dialled."""
    scene = named("a")
    scene.tick(0.0)
    scene.receive("a", Welcome(incarnation("a"), CREDIT, siblings=(7, 8)))
    scene.tick(0.1)
    scene.handle(Received(1, Welcome(incarnation("x"), CREDIT)), 0.2)
    scene.lose("a", UNAVAILABLE, 1.0)
    return scene


def test_unconnected_siblings_are_given_up_with_their_address():
    scene = without_the_first_of_three()
    assert found(scene, "c:1", now=3.0) == [Shut(2)]
    assert [(link.address, link.phase) for link in scene.core.roster] == [
        ("c:1", LinkPhase.DOWN),
        ("a:7", LinkPhase.UP),
        ("a:8", LinkPhase.RETIRED),
    ]


def test_siblings_come_back_when_their_address_is_listed_again():
    """A DNS name may omit a host for a while. Otherwise only one of its processes would be used from then on."""
    scene = without_the_first_of_three()
    scene.handle(StreamLost(1, UNAVAILABLE), 1.0)
    found(scene, "c:1", now=3.0)
    found(scene, "c:1", "a:1", now=4.0)
    assert dialled(scene.tick(4.0)) == ["c:1", "a:1"]
    again = next(
        link for link in scene.core.roster if link.address == "a:1" and link.phase is LinkPhase.OPENING
    )
    scene.handle(Received(again.id, Welcome(incarnation("a"), CREDIT, siblings=(7, 8))), 4.1)
    assert dialled(scene.tick(4.2)) == ["a:7", "a:8"]


def with_two_addresses():
    """A reducer has an IPv4 and an IPv6 address, so a Join to the second one would end the stream."""
    scene = named("ab")
    scene.tick(0.0)
    scene.welcome("a")
    scene.receive("b", Welcome(incarnation("a"), CREDIT))
    assert scene.core.roster[0].phase is LinkPhase.RETIRED
    return scene


def test_a_second_address_of_a_reducer_is_redialed_only_once_the_other_one_is_given_up():
    """Found by dense simulation, seed 40000414: no rank dialled a reducer that was there."""
    scene = with_two_addresses()
    found(scene, "a:1", "b:1", "c:1", now=3.0)
    assert dialled(scene.tick(3.0)) == ["c:1"]
    scene = with_two_addresses()
    scene.lose("b", UNAVAILABLE, 1.0)
    found(scene, "a:1", now=3.0)
    assert dialled(scene.tick(3.0)) == ["a:1"]
    found(scene, "a:1", now=6.0)
    assert dialled(scene.tick(6.0)) == []


def test_a_retired_address_stays_so_while_the_rank_fails():
    scene = with_two_addresses()
    scene.handle(Broke(WorkerFailed("an error of its own")), 0.5)
    scene.handle(StreamLost(0, None), 1.0)
    assert scene.core.roster[0].phase is LinkPhase.RETIRED
    assert dialled(scene.tick(1.1)) == []


def test_links_are_bounded(monkeypatch):
    monkeypatch.setattr(roster, "LINKS_MAX", 3)
    scene = named().run()
    logs = [action.text for action in scene.handle(Found(("a:1", "b:1", "c:1", "d:1", "e:1")), 0.0)]
    assert logs == ["dialling c:1, which is named now", "a rank may have 3 links: d:1 is left out"]
    assert len(scene.core.roster.links) == 3


def test_the_first_epoch_does_not_wait_for_an_address_that_was_given_up():
    scene = named()
    scene.tick(0.0)
    scene.welcome("b")
    found(scene, "b:1", now=1.0)
    scene.peers("b", "PP", now=2.0)
    assert [member.address for member in scene.core.epochs.configuration.members] == ["b:1"]


# ---- more reducers while a job runs ----


def refreshes(scene, times):
    return [now for now in times if LookUp(everything=True) in scene.tick(float(now))]


def test_rank_0_asks_all_sources_again_from_time_to_time():
    assert refreshes(named().run(), range(1, 100)) == [31, 61, 91]
    assert refreshes(named(rank=1).run(), range(1, 100)) == []
    assert refreshes(named("ab", fixed="ab").run(), range(1, 100)) == []
    before_the_first_epoch = named()
    before_the_first_epoch.meet()
    assert refreshes(before_the_first_epoch, range(1, 60)) == []


def configured(actions):
    [configuration] = {action.frame.configuration for action in actions if isinstance(action, Send)}
    return configuration


def with_c():
    """Return rank 0 of a running job that has found a third reducer at 31 s, and dialled it at 31.1 s."""
    scene = named().run()
    found(scene, "a:1", "b:1", "c:1", now=31.0)
    assert dialled(scene.tick(31.1)) == ["c:1"]
    return scene


def test_a_found_reducer_is_announced_once_it_is_up_and_taken_in_once_all_ranks_reach_it():
    scene = with_c()
    assert not any(isinstance(action, Send) for action in scene.tick(31.2)), "nobody may be there"
    scene.welcome("c", now=31.3)
    scene.peers("c", "P-", now=31.3)
    told = configured(scene.tick(31.4))
    assert (told.epoch, told.added) == (2, ("c:1",))
    assert [member.address for member in told.members] == ["a:1", "b:1"]
    for reducer in "ab":
        scene.start(reducer, 2, now=31.5)
    assert not any(isinstance(action, Send) for action in scene.tick(31.6)), "it is told once"
    taken = configured(scene.peers("c", "PP", now=32.0))
    assert (taken.epoch, taken.added) == (3, ("c:1",))
    assert [member.address for member in taken.members] == ["a:1", "b:1", "c:1"]


def test_a_collective_delays_an_announcement_for_a_while():
    scene = with_c()
    scene.welcome("c", now=31.2)
    scene.issue(now=31.3)
    assert not any(isinstance(action, Send) for action in scene.tick(31.4))
    assert not any(isinstance(action, Send) for action in scene.tick(31.1 + PATIENCE_S))
    assert configured(scene.tick(31.2 + PATIENCE_S)).added == ("c:1",)


def test_other_ranks_dial_and_give_up_the_reducers_that_rank_0_announces():
    scene = named(rank=1, fixed="ab").run()
    scene.enter(2, added=("c:1", "d:1"))
    assert dialled(scene.tick(1.0)) == ["c:1", "d:1"]
    scene.welcome("c", now=1.1)
    scene.enter(3, added=())
    assert [link.phase for link in scene.core.roster] == [LinkPhase.UP] * 3 + [LinkPhase.RETIRED]
    scene.enter(4, added=("b:1", "e:1"))
    assert dialled(scene.tick(2.0)) == ["e:1"]
    assert [link.address for link in scene.core.roster] == ["a:1", "b:1", "c:1", "e:1"]


def test_a_single_rank_skips_the_announcement():
    scene = named("a", world_size=1).run()
    found(scene, "a:1", "b:1", now=31.0)
    scene.tick(31.1)
    scene.welcome("b", now=31.2)
    taken = configured(scene.peers("b", "P", now=31.3))
    assert [member.address for member in taken.members] == ["a:1", "b:1"]


def test_the_removal_of_a_lost_reducer_is_announced_too():
    scene = with_c()
    scene.welcome("c", now=31.2)
    scene.tick(31.3)
    for reducer in "ab":
        scene.start(reducer, 2, now=31.4)
    found(scene, "a:1", "b:1", now=61.0)
    assert scene.core.roster.added == ("c:1",), "it is there"
    scene.lose("c", UNAVAILABLE, 62.0)
    found(scene, "a:1", "b:1", now=91.0)
    assert configured(scene.tick(91.1)).added == ()
