"""The alarms of groups."""

from topics_service.engine.membership.timers import Alarm, Timers


def test_alarms_ring_in_the_order_of_their_times() -> None:
    timers, rung = Timers(), []
    for due in (30, 10, 20):
        Alarm(timers, lambda due=due: rung.append(due)).set(due)
    assert timers.next_due() == 10
    timers.tick(25)
    assert rung == [10, 20]
    timers.tick(30)
    assert rung == [10, 20, 30]
    assert timers.next_due() is None


def test_an_alarm_rings_once_at_the_last_time_that_was_set() -> None:
    timers, rung = Timers(), []
    alarm = Alarm(timers, lambda: rung.append(True))
    for due in (50, 20, 90, 40):
        alarm.set(due)
    assert timers.next_due() == 40
    timers.tick(39)
    assert not rung
    timers.tick(100)
    assert len(rung) == 1


def test_an_alarm_that_is_set_earlier_overtakes_others() -> None:
    timers = Timers()
    Alarm(timers, lambda: None).set(30)
    alarm = Alarm(timers, lambda: None)
    alarm.set(50)
    alarm.set(10)
    assert timers.next_due() == 10


def test_a_cancelled_alarm_does_not_ring_but_can_be_set_again() -> None:
    timers, rung = Timers(), []
    alarm = Alarm(timers, lambda: rung.append(True))
    alarm.set(10)
    alarm.cancel()
    alarm.cancel()
    assert timers.next_due() is None
    alarm.set(15)
    timers.tick(15)
    assert len(rung) == 1
    assert timers.alive == 0


def test_an_alarm_may_be_set_while_it_rings() -> None:
    timers, rung = Timers(), []

    def ring() -> None:
        rung.append(True)
        if len(rung) < 3:
            alarm.set(10 * len(rung))

    alarm = Alarm(timers, ring)
    alarm.set(0)
    timers.tick(15)
    assert len(rung) == 2
    assert timers.next_due() == 20


def test_what_is_not_set_any_more_takes_no_room() -> None:
    timers = Timers()
    for i in range(1_000):
        alarm = Alarm(timers, lambda: None)
        alarm.set(1_000 + i)
        alarm.cancel()
    kept = Alarm(timers, lambda: None)
    kept.set(5)
    for i in range(1_000):  # each time an earlier one
        kept.set(2_000 - i)
    assert len(timers) < 200
    assert timers.next_due() == 1_001
