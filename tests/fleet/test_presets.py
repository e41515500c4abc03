"""The presets: their machines, and their options."""

import numpy as np
import pytest

from fedskew.core.errors import FedskewError
from fedskew.fleet.clock import DropOuts, Work, simulate_round, transfer_seconds
from fedskew.fleet.machines import Fleet, fleets
from fedskew.fleet.presets import mixed, phones, silos, uniform
from fedskew.models.build import build

RULES = {"dropout", "deadline", "partial", "enough"}
MACHINE = ["rows_per_second", "seconds_per_step", "down", "up", "latency", "dropout"]
NOBODY = np.zeros(0, dtype=np.int64)


def there(fleet: Fleet, clock: float) -> np.ndarray:
    """Return which clients are available."""
    mask = np.zeros(fleet.clients, dtype=bool)
    mask[fleet.available(clock, NOBODY).numbers()] = True
    return mask


def built(spec: str, clients: int = 4, seed: int = 0) -> Fleet:
    choice = fleets.choose(spec)
    return fleets.get(choice.name)(clients, seed, **choice.options)


def columns(fleet: Fleet, clients=None) -> dict:
    machines = fleet.machines(np.arange(fleet.clients) if clients is None else np.asarray(clients))
    return {name: getattr(machines, name) for name in MACHINE}


def test_all_of_them():
    assert list(fleets) == ["edge", "mixed", "phones", "silos", "trace", "uniform"]


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("uniform", {"rows_per_second", "seconds_per_step", "mbit_per_second", "latency"}),
        ("silos", {"rows_per_second", "seconds_per_step", "mbit_per_second", "latency"}),
        ("mixed", {"slow", "rows_per_second", "seconds_per_step", "mbit_per_second", "latency"}),
        ("edge", {"slow", "rows_per_second", "seconds_per_step", "mbit_per_second", "latency"}),
        (
            "phones",
            {
                "source",
                "zones",
                "share",
                "slow",
                "rows_per_second",
                "seconds_per_step",
                "down_mbit",
                "up_mbit",
                "latency",
            },
        ),
        ("trace", {"file"}),
    ],
)
def test_options_with_help(name: str, own: set):
    options = fleets.options(name)
    assert options.keys() == own | RULES
    assert all(option.help for option in options.values())
    assert options["deadline"].default is None
    assert options["partial"].default is False
    assert options["deadline"].help.startswith("most seconds that the server waits")


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("uniform", (1000, 0.002, 20, 20, 0.05, 0)),
        (
            "uniform:rows_per_second=7,seconds_per_step=3,mbit_per_second=8,latency=0,dropout=0.25",
            (7, 3, 8, 8, 0, 0.25),
        ),
        ("silos", (10_000, 0.001, 1000, 1000, 0.01, 0)),
        ("silos:mbit_per_second=100,dropout=0.5", (10_000, 0.001, 100, 100, 0.01, 0.5)),
        ("mixed:slow=1", (1000, 0.002, 20, 20, 0.05, 0)),
        ("edge:slow=1,dropout=0", (1000, 0.002, 500, 500, 0.02, 0)),
    ],
)
def test_alike(spec: str, wanted: tuple):
    fleet = built(spec)
    assert {name: values.tolist() for name, values in columns(fleet, [2, 0]).items()} == {
        name: [value, value] for name, value in zip(MACHINE, wanted, strict=True)
    }
    assert fleet.capacity(np.array([0, 3])).tolist() == [1.0, 1.0]
    assert fleet.windows is None
    assert there(fleet, 123.0).all()
    assert fleet.next_available(123.0) == 123.0


def test_the_rules_reach_the_fleet():
    for name in ("uniform", "silos", "mixed", "phones"):
        fleet = built(f"{name}:deadline=30,partial=true")
        assert (fleet.deadline, fleet.partial) == (30.0, True)
        fleet = built(name)
        assert (fleet.deadline, fleet.partial) == (None, False)
    assert built("mixed:slow=10,dropout=0.1,deadline=30").deadline == 30.0


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("mixed:slow=0.5", "fleet mixed: slow=0.5 is out of range, it must be >= 1"),
        ("mixed:dropout=1", "dropout=1 is out of range, it must be >= 0 and < 1"),
        ("uniform:deadline=0", "deadline=0 is out of range, it must be > 0"),
        ("uniform:deadline=soon", "deadline=soon is not a number or none"),
        ("uniform:partial=2", "partial=2 is not true or false"),
        ("phones:share=0", "share=0 is out of range, it must be > 0 and <= 1"),
        ("phones:up_mbit=-1", "up_mbit=-1 is out of range, it must be > 0"),
        ("silos:rules=1", "unknown option of fleet silos 'rules'"),
        ("uniform:clients=3", "unknown option of fleet uniform 'clients'"),
        ("trace", "fleet trace needs file=: the CSV file"),
    ],
)
def test_refusals(spec: str, says: str):
    with pytest.raises(FedskewError, match=says):
        built(spec)


def test_partial_needs_a_deadline_in_every_one():
    for name in ("uniform", "silos", "mixed", "phones"):
        with pytest.raises(FedskewError, match="partial=true needs a deadline"):
            built(f"{name}:partial=true")


def in_tenths(values: np.ndarray, low: float, high: float) -> float:
    """Return the chi-square of uniformity in [low, high], with 9 degrees of freedom; P(> 27.9) is 0.001."""
    assert values.min() >= low
    assert values.max() <= high
    counts = np.histogram(values, bins=10, range=(low, high))[0]
    expected = len(values) / 10
    return float(((counts - expected) ** 2 / expected).sum())


def test_mixed_is_log_uniform_between_the_best_and_slow_times_worse():
    found = columns(
        mixed(
            20_000,
            5,
            slow=8.0,
            rows_per_second=400.0,
            mbit_per_second=16.0,
            latency=0.1,
            dropout=0.2,
        )
    )
    assert in_tenths(np.log2(found["rows_per_second"]), np.log2(50), np.log2(400)) < 27.9
    assert in_tenths(np.log2(found["down"]), 1, 4) < 27.9
    assert found["up"].tolist() == found["down"].tolist()
    # 0.1 s on the best connection
    assert found["latency"] == pytest.approx(0.1 * 16 / found["down"])
    assert in_tenths(found["dropout"], 0, 0.4) < 27.9


@pytest.mark.parametrize(
    ("dropout", "low", "high"), [(0.0, 0, 0), (0.1, 0, 0.2), (0.5, 0, 1), (0.9, 0.8, 1)]
)
def test_chances_to_drop_out_have_the_given_mean(dropout: float, low: float, high: float):
    found = columns(mixed(20_000, 0, dropout=dropout))["dropout"]
    assert found.mean() == pytest.approx(dropout, abs=0.01)
    assert (found >= low - 1e-12).all()
    assert (found <= high + 1e-12).all()


def test_computers_lines_and_chances_are_drawn_apart():
    found = columns(mixed(20_000, 0, dropout=0.2))
    apart = np.corrcoef([np.log(found["rows_per_second"]), np.log(found["down"]), found["dropout"]])
    assert np.abs(apart[np.triu_indices(3, 1)]).max() < 0.03


def test_phones_are_slow_unlike_and_asymmetric():
    found = columns(phones(5000, 0))
    assert 20 <= found["rows_per_second"].min() < 25
    assert 190 < found["rows_per_second"].max() <= 200
    assert found["down"] == pytest.approx(5 * found["up"])
    assert 45 < found["down"].max() <= 50
    assert found["dropout"].mean() == pytest.approx(0.1, abs=0.005)


@pytest.mark.parametrize("preset", [mixed, phones])
def test_a_machine_depends_on_its_client_and_the_seed_alone(preset):
    some = [77, 3, 12]
    for name, values in columns(preset(100, 1), some).items():
        assert values.tolist() == columns(preset(1000, 1))[name][some].tolist(), name
    assert columns(preset(100, 1))["down"].tolist() != columns(preset(100, 2))["down"].tolist()


@pytest.mark.parametrize("preset", [uniform, silos, mixed, phones])
def test_capacity_is_a_part_of_the_fastest(preset):
    fleet = preset(300, 0)
    capacity = fleet.capacity(np.arange(300))
    assert capacity.min() > 0
    assert capacity.max() == 1.0
    speed = columns(fleet)["rows_per_second"]
    assert fleet.capacity(np.array([5, 200])) == pytest.approx(speed[[5, 200]] / speed.max())


def test_phones_are_there_for_their_share_of_every_day():
    fleet = phones(400, 0, share=0.25)
    half_hours = np.array([there(fleet, 1800.0 * i + 900) for i in range(48)])
    # 6 hours each, of which one may run past midnight
    assert half_hours.sum(axis=0).tolist() == [12] * 400
    assert (half_hours[0] & half_hours[-1]).any()
    # At any time of the day
    assert half_hours.mean(axis=1) == pytest.approx(np.full(48, 0.25), abs=0.1)
    assert there(fleet, 86_400 * 7 + 5000).tolist() == there(fleet, 5000).tolist()


def test_phones_that_are_always_there():
    assert there(phones(10, 0, share=1.0), 0.0).all()
    assert phones(10, 0, share=1.0).next_available(7.5) == 7.5


def test_somebody_comes_at_last():
    fleet = phones(2, 0, share=1e-9)
    then = fleet.next_available(0.0)
    assert 0 < then < 86_400
    assert there(fleet, then).any()
    assert not there(fleet, then - 1).any()


def test_a_million_phones():
    fleet = phones(1_000_000, 0)
    some = fleet.available(1e6, NOBODY)
    assert len(some) == there(fleet, 1e6).sum() == pytest.approx(300_000, abs=2000)
    assert fleet.next_available(1e6) == 1e6


def test_a_network_of_26_mb_is_in_time_on_the_edge_and_late_on_mixed_lines():
    """Check the LEAF network of 6.6 million weights, with 30 writers of 111 digits: AFL-CP's second experiment."""
    size, rows, clients = 4 * 6_603_710, np.full(30, 111.0), np.arange(30)
    assert (
        sum(value.numel() for value in build("leaf-cnn", (1, 28, 28), 62, seed=0).parameters()) * 4
        == size
    )

    def late(spec: str) -> float:
        found = 0
        for seed in range(20):
            choice = fleets.choose(spec)
            fleet = fleets.get(choice.name)(30, seed, **choice.options)
            work = Work(rows, np.ceil(rows / 32), 0 * rows, 0 * rows)
            machines = fleet.machines(clients)
            transfer = transfer_seconds(machines, size, size)
            epochs = np.ones(30, dtype=np.int64)
            drop_outs = DropOuts.draw(machines, clients, seed, 0)
            outcome = simulate_round(fleet, machines, work, epochs, transfer, drop_outs)
            found += outcome.late.sum()
        return found / 600

    assert late("mixed:slow=10,dropout=0.1,deadline=30") > 0.8
    assert 0.02 < late("edge:deadline=8") < 0.1
