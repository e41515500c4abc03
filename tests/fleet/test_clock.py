"""The virtual clock by hand: seconds, drop-outs, deadlines and partial work."""

import numpy as np
import pytest

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream
from fedskew.fleet.clock import (
    DropOuts,
    Meeting,
    Outcome,
    Work,
    computing_seconds,
    simulate_round,
    transfer_seconds,
)
from fedskew.fleet.machines import Fleet, Machines
from fedskew.fleet.presets import mixed, phones, uniform

NOBODY = np.zeros(0, dtype=np.int64)


def table(*lines: tuple[float, ...]) -> Machines:
    return Machines(*np.array(lines, dtype=np.float64).T)


def fleet_of(machines: Machines, **rules) -> Fleet:
    columns = vars(machines)
    return Fleet(
        len(machines.latency),
        lambda some: Machines(**{name: values[some] for name, values in columns.items()}),
        **rules,
    )


# Rows a second, seconds a step, Mbit/s down and up, latency, chance to drop out.
THREE = table((10, 0, 8, 4, 0.5, 0), (2, 0, 16, 8, 0.25, 0), (1, 0, 80, 80, 0, 0))


def simulated(
    fleet: Fleet,
    clients,
    rows,
    epochs,
    down=10**6,
    up=10**6,
    steps=0,
    once=0,
    seed=0,
    round=0,
    **more,
) -> Outcome:
    """Return the outcome for these rows and steps in an epoch and these rows once."""
    each = np.ones(len(clients))
    work = Work(each * rows, each * steps, each * once, 0 * each)
    machines = fleet.machines(np.asarray(clients))
    transfer = transfer_seconds(machines, down, up)
    drop_outs = DropOuts.draw(machines, np.asarray(clients), seed, round)
    return simulate_round(fleet, machines, work, np.asarray(epochs), transfer, drop_outs, **more)


def play_three(
    rows=(10, 10, 10), epochs=(1, 1, 1), waited: float = 0.0, steps=0, once=0, **rules
) -> Outcome:
    return simulated(
        fleet_of(THREE, **rules), np.arange(3), rows, epochs, waited=waited, steps=steps, once=once
    )


def test_seconds_by_hand():
    # The rows, and so many steps of a tenth of a second; two messages, 8 Mbit down, 4 Mbit up.
    machines = table((10, 0.1, 8, 4, 0.5, 0), (2, 0.1, 16, 8, 0.25, 0), (1, 0.1, 80, 80, 0, 0))
    found = computing_seconds(machines, np.array([100, 10, 0]), np.array([4, 40, 0]))
    assert found.tolist() == pytest.approx([10 + 0.4, 5 + 4, 0])
    assert transfer_seconds(machines, 1_000_000, 500_000).tolist() == pytest.approx(
        [1 + 1 + 1, 0.5 + 0.5 + 0.5, 0.1 + 0.05]
    )


def test_seconds_of_the_uniform_fleet():
    fleet = uniform(
        3, 0, rows_per_second=250.0, seconds_per_step=0.5, mbit_per_second=16.0, latency=0.25
    )
    machines = fleet.machines(np.arange(3))
    assert transfer_seconds(machines, 3_000_000, 1_000_000).tolist() == pytest.approx(
        [0.5 + 2.0] * 3
    )
    assert computing_seconds(
        machines, np.array([0, 500, 2000]), np.array([0, 1, 4])
    ).tolist() == pytest.approx([0, 2.5, 10])


def test_what_is_done_once_comes_on_top_of_the_epochs():
    outcome = play_three(epochs=(1, 2, 3), once=20)
    plain = play_three(epochs=(1, 2, 3))
    assert (outcome.seconds - plain.seconds).tolist() == pytest.approx([2.0, 10.0, 20.0])
    assert outcome.training.tolist() == pytest.approx([1 + 2, 10 + 10, 30 + 20])


def test_what_went_before_counts_towards_the_deadline():
    outcome = play_three(epochs=(1, 2, 1), waited=1.5, deadline=11.0)
    assert outcome.seconds.tolist() == pytest.approx([6.5, 13.5, 11.7])
    assert outcome.late.tolist() == [False, True, True]
    assert outcome.duration == 11.0
    fitted = play_three(epochs=(20, 20, 20), waited=1.5, deadline=12.5, partial=True)
    assert fitted.epochs.tolist() == [7, 1, 1]


def test_a_meeting_waits_for_the_slowest_line():
    meeting = Meeting(steps=np.array([2, 1, 0]), trips=3, bytes=1_000_000)
    slowest = max(6 * 0.5 + 1 + 2, 6 * 0.25 + 0.5 + 1, 0.1 + 0.1)
    assert meeting.seconds(THREE).tolist() == pytest.approx([2 * slowest, slowest, 0])


def test_without_a_deadline_the_round_lasts_until_the_last_answer():
    outcome = play_three(epochs=(1, 2, 1))
    # 1 + 1 + 1 + 2; 0.5 + 10 + 0.5 + 1; 10 + 0.1 + 0.1
    assert outcome.seconds.tolist() == pytest.approx([5.0, 12.0, 10.2])
    assert outcome.duration == pytest.approx(12.0)
    assert outcome.arrived.tolist() == [True, True, True]
    assert outcome.epochs.tolist() == [1, 2, 1]


def test_who_needs_longer_than_the_deadline_is_late_and_the_round_lasts_exactly_so_long():
    outcome = play_three(epochs=(1, 2, 1), deadline=11.0)
    assert outcome.late.tolist() == [False, True, False]
    assert outcome.arrived.tolist() == [True, False, True]
    assert outcome.seconds.tolist() == pytest.approx([5.0, 12.0, 10.2])
    assert outcome.duration == 11.0
    assert outcome.epochs.tolist() == [1, 2, 1]


def test_a_deadline_that_nobody_misses_does_not_lengthen_the_round():
    outcome = play_three(epochs=(1, 2, 1), deadline=100.0)
    assert outcome.duration == pytest.approx(12.0)
    assert not outcome.late.any()


def test_who_answers_exactly_at_the_deadline_is_in_time():
    outcome = play_three(deadline=5.0)
    assert outcome.late.tolist() == [False, True, True]


def test_with_partial_as_many_whole_epochs_are_done_as_fit():
    # Without rows: 4, 2 and 0.2 s. An epoch: 1, 5 and 10 s.
    outcome = play_three(epochs=(20, 20, 20), deadline=12.5, partial=True)
    assert outcome.epochs.tolist() == [8, 2, 1]
    assert outcome.seconds.tolist() == pytest.approx([12.0, 12.0, 10.2])
    assert outcome.duration == pytest.approx(12.0)
    assert outcome.arrived.all()


def test_with_partial_who_has_time_for_all_does_no_more_than_asked():
    assert play_three(epochs=(3, 2, 1), deadline=1e6, partial=True).epochs.tolist() == [3, 2, 1]


def test_with_partial_who_has_no_time_for_one_epoch_is_late():
    outcome = play_three(epochs=(2, 2, 2), deadline=6.0, partial=True)
    assert outcome.epochs.tolist() == [2, 0, 0]
    assert outcome.late.tolist() == [False, True, True]
    assert outcome.seconds.tolist() == pytest.approx([6.0, 7.0, 10.2])  # with the one epoch
    assert outcome.duration == 6.0


def test_with_partial_a_line_that_is_too_slow_alone_is_late():
    outcome = play_three(epochs=(5, 5, 5), deadline=3.0, partial=True)
    assert outcome.epochs.tolist() == [0, 0, 0]
    assert outcome.late.all()


@pytest.mark.parametrize("deadline", [0.6, 0.7])
def test_as_many_epochs_as_fit_to_the_last_bit(deadline: float):
    # Speeds of 1 to 300 rows a second, 1 row an epoch: (deadline - 0.2) * speed is often whole but for rounding, and
    # a quotient is then one too many (0.6) or one too few (0.7).
    speeds = np.arange(1, 301)
    fleet = fleet_of(
        table(*((speed, 0, 1, 1, 0.1, 0) for speed in speeds)), deadline=deadline, partial=True
    )
    outcome = simulated(fleet, np.arange(300), 1, np.full(300, 200), 0, 0)
    wanted = [
        max(tried for tried in range(201) if 2 * 0.1 + tried / speed <= deadline)
        for speed in speeds
    ]
    assert outcome.epochs.tolist() == wanted
    assert outcome.late.tolist() == [epochs == 0 for epochs in wanted]


def test_partial_without_a_deadline_is_refused():
    with pytest.raises(
        FedskewError, match="partial=true needs a deadline to fit epochs into: add deadline=SECONDS"
    ):
        uniform(3, 0, partial=True)


def test_nobody():
    outcome = simulated(uniform(3, 0), NOBODY, 1, NOBODY, 10, 10)
    assert outcome.duration == 0.0
    assert outcome.arrived.shape == (0,)


# -- drop-outs ---------------------------------------------------------------------------------------------------------


def simulate_many(fleet: Fleet, clients, round: int = 0, seed: int = 0) -> Outcome:
    return simulated(
        fleet, clients, 100, np.ones(len(clients), dtype=np.int64), seed=seed, round=round
    )


def test_no_chance_no_drop_out():
    assert not simulate_many(uniform(10_000, 0), np.arange(10_000)).dropped.any()


@pytest.mark.parametrize("chance", [0.02, 0.5, 0.9])
def test_as_many_drop_out_as_the_chance_says(chance: float):
    clients, rounds = 2000, 10
    fleet = uniform(clients, 0, dropout=chance)
    dropped = np.array(
        [simulate_many(fleet, np.arange(clients), round).dropped for round in range(rounds)]
    )
    # Squared deviations in units of the binomial variance: their sum over rounds is chi-square with 10 degrees of
    # freedom, under 29.6 in 999 of 1000 seeds. Over clients, each with 10 draws, it is near their number.
    per_round = (dropped.sum(axis=1) - clients * chance) ** 2 / (clients * chance * (1 - chance))
    assert per_round.sum() < 29.6
    per_client = (dropped.sum(axis=0) - rounds * chance) ** 2 / (rounds * chance * (1 - chance))
    assert abs(per_client.mean() - 1) < 0.25


def test_each_machine_drops_out_with_its_own_chance():
    count = 4000
    fleet = fleet_of(table(*((1, 0, 1, 1, 0, i % 2) for i in range(count))))
    assert simulate_many(fleet, np.arange(count)).dropped.tolist() == [
        bool(i % 2) for i in range(count)
    ]


def test_a_drop_out_is_the_clients_own_whoever_else_is_chosen():
    fleet = phones(500, 3, dropout=0.4, deadline=40.0)
    whole = simulate_many(fleet, np.arange(500), round=2)
    some = np.array([401, 7, 33, 8])
    part = simulate_many(fleet, some, round=2)
    assert part.dropped.tolist() == whole.dropped[some].tolist()
    assert part.seconds.tolist() == whole.seconds[some].tolist()
    for i, client in enumerate(some):
        alone = simulate_many(fleet, [client], round=2)
        assert alone.dropped[0] == part.dropped[i]
        assert alone.seconds[0] == part.seconds[i]


def test_drop_outs_are_the_stream_of_the_round_and_the_client():
    fleet = uniform(50, 9, dropout=0.5)
    outcome = simulate_many(fleet, np.arange(50), round=4, seed=6)
    drawn = np.array([Stream(6, "dropout", 4, client).uniform(2) for client in range(50)])
    assert outcome.dropped.tolist() == (drawn[:, 0] < 0.5).tolist()
    full = 0.1 + 0.1 + 0.4 + 0.4
    assert outcome.seconds.tolist() == pytest.approx(
        np.where(drawn[:, 0] < 0.5, full * drawn[:, 1], full).tolist()
    )


def test_drop_outs_change_with_the_round_and_the_seed():
    fleet = uniform(300, 0, dropout=0.5)
    drawn = [
        tuple(simulate_many(fleet, np.arange(300), round, seed).dropped)
        for round, seed in ((0, 0), (1, 0), (0, 1))
    ]
    assert len(set(drawn)) == 3


def test_who_drops_out_is_lost_after_an_evenly_drawn_part_of_its_time():
    outcome = simulate_many(uniform(20_000, 0, dropout=0.5), np.arange(20_000))
    part = outcome.seconds[outcome.dropped] / outcome.seconds[~outcome.dropped].max()
    counts = np.histogram(part, bins=10, range=(0, 1))[0]
    assert counts.sum() == outcome.dropped.sum()
    expected = counts.sum() / 10
    # Chi-square with 9 degrees of freedom, 999 of 1000
    assert ((counts - expected) ** 2 / expected).sum() < 27.9
    # Whether and when are drawn independently: a small probability does not mean an early drop-out.
    rare = simulate_many(uniform(20_000, 0, dropout=0.05), np.arange(20_000))
    assert rare.seconds[rare.dropped].max() > 0.9 * rare.seconds[~rare.dropped].max()


def test_the_server_does_not_wait_for_who_is_lost():
    # The slow one dropped out, so the round ends with the last update or that drop-out, whichever is later.
    machines = table((10, 0, 8, 4, 0.5, 0), (0.01, 0, 8, 4, 0.5, 1))
    for round in range(20):
        outcome = simulated(fleet_of(machines), np.arange(2), 10, np.array([1, 1]), round=round)
        part = Stream(0, "dropout", round, 1).uniform(2)[1]
        assert outcome.seconds.tolist() == pytest.approx([5.0, part * 1004])
        assert outcome.duration == pytest.approx(max(5.0, part * 1004))
        assert outcome.arrived.tolist() == [True, False]


def test_who_vanishes_after_the_deadline_is_late_and_before_it_is_lost():
    count = 2000
    fleet = uniform(
        count, 0, dropout=0.9, rows_per_second=1.0, mbit_per_second=8e6, latency=0.0, deadline=25.0
    )  # all take 100 s
    outcome = simulate_many(fleet, np.arange(count))
    assert not (outcome.dropped & outcome.late).any()
    assert (outcome.seconds[outcome.dropped] <= 25).all()
    assert (outcome.seconds[outcome.late] > 25).all()
    assert abs(outcome.dropped.mean() - 0.9 * 0.25) < 0.03
    assert not outcome.arrived.any()
    assert outcome.duration == 25.0


def test_every_client_is_in_exactly_one_state():
    outcome = simulate_many(mixed(3000, 0, dropout=0.2, deadline=1.5), np.arange(3000))
    assert (outcome.arrived.astype(int) + outcome.dropped + outcome.late == 1).all()
    assert min(outcome.arrived.sum(), outcome.dropped.sum(), outcome.late.sum()) > 100


def test_a_server_that_waits_for_enough_gives_the_others_up():
    """Of five invited clients, one of which drops out, three are enough: the round ends with the third answer."""
    time = np.array([4.0, 1.0, 9.0, 2.0, 3.0])
    machines = Machines(*(np.ones(5) for _ in range(6)))
    dropped = np.array([False, True, False, False, False])
    drops = DropOuts(dropped, np.where(dropped, 0.5, 1.0))
    work = Work(np.zeros(5), np.zeros(5))
    one = np.ones(5, dtype=np.int64)

    def outcome(**rules):
        fleet = Fleet(5, lambda some: machines, **rules)
        return simulate_round(fleet, machines, work, one, time, drops)

    found = outcome(enough=0.6)
    assert found.duration == 4.0
    assert found.late.tolist() == [False, False, True, False, False]
    assert found.arrived.tolist() == [True, False, False, True, True]
    assert outcome(enough=0.59).duration == 4.0  # rounded up
    assert outcome(enough=0.4).duration == 3.0
    assert outcome(enough=1.0).duration == 9.0
    assert outcome(enough=0.9).duration == 9.0  # five are needed, and only four answer
    assert outcome(enough=0.6, deadline=2.5).duration == 2.5
    assert outcome(enough=0.2, deadline=100.0).late.tolist() == [True, False, True, False, True]
