"""Profiles that clients tell in rounds, by hand: noise and its budget, moments, learnt weights, bytes, resumed runs."""

import math
from typing import Any

import numpy as np
import pytest

import fedskew as fs
from fedskew.algorithms.afl_cp import AFLCP
from fedskew.algorithms.contract import resolve
from fedskew.algorithms.profiles import Noise, from_records, parts_of, ridge
from fedskew.algorithms.selection import ClientPool
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream, bits
from fedskew.data.drawn_partition import DrawnPartition
from fedskew.data.federation import Federation
from fedskew.deploy.deployment import _refuse_telling
from fedskew.runs.execute import prepare

CLIENTS = 9
SETTINGS: dict[str, Any] = {
    "rounds": 8,
    "per_round": 4,
    "fleet": "mixed:dropout=0.3,slow=10,deadline=20",
    "seed": 1,
    "threads": 1,
    "device": "cpu",
}


def federation() -> fs.Federation:
    return fs.split(fs.load("digits"), "dirichlet:alpha=0.3,min_size=5", clients=CLIENTS, seed=1)


def run(method: str, **settings: Any) -> fs.Run:
    return fs.train(federation(), "logreg", method, folder=False, **{**SETTINGS, **settings})


def server_of(method: str) -> Any:
    server, _ = prepare(federation(), "logreg", resolve(method), fs.Settings(**SETTINGS))
    return server


def entropies() -> np.ndarray:
    fed = federation()
    found = []
    for client in range(CLIENTS):
        counts = np.bincount(fed.train.y[fed.partition.of(client)], minlength=10)
        shares = counts[counts > 0] / counts.sum()
        found.append(-(shares * np.log(shares)).sum() / math.log(10))
    return np.array(found)


def laplace_of(seed: int, *path: int) -> float:
    """Return Laplace noise of scale 1 from the word at an address, by its two halves."""
    uniform = int(bits(seed, *path)[0] >> np.uint64(11)) / 2**53
    if uniform < 0.5:
        return math.log(2 * uniform)
    return -math.log(2 * (1 - uniform))


class Experience:
    """What each client has seen of a run so far: rounds, completed ones and their seconds."""

    def __init__(self) -> None:
        self.selected = np.zeros(CLIENTS)
        self.times: list[list[float]] = [[] for _ in range(CLIENTS)]

    def add(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            self.selected[line["client"]] += 1
            if not line["dropped"] and not line["late"]:
                self.times[line["client"]].append(line["training_seconds"])

    def reliability(self, client: int) -> float:
        if not self.selected[client]:
            return math.nan
        return len(self.times[client]) / self.selected[client]

    def seconds(self, client: int) -> float:
        if self.times[client]:
            return float(np.mean(self.times[client]))
        return math.inf if self.selected[client] else math.nan


# -- what clients tell, with noise -------------------------------------------------------------------------------------


def test_what_is_told_is_clipped_to_its_range_with_noise_of_the_client_and_the_telling():
    server = server_of("afl-cp:refresh=3,tellings=2,epsilon=12,longest=0.3,consistency=0")
    seen = Experience()
    share = 12 / (2 * 3)  # two tellings of three parts
    for number in range(8):
        asked = number in (0, 3)  # and not in round 6: only two tellings are allowed
        before = server.participation.told.of(np.arange(CLIENTS))
        due = {"entropy": [], "reliability": [], "seconds": []}
        for client in range(CLIENTS):
            known = [entropies()[client], seen.reliability(client), seen.seconds(client)]
            for place, (name, highest) in enumerate(
                zip(due, (1.0, 1.0, 0.3), strict=True),
            ):
                value = known[place]
                if math.isfinite(value):
                    noise = laplace_of(1, "profile", place, number // 3, client)
                    value = min(value, highest) + highest * noise / share
                    value = min(max(value, 0.0), highest)
                due[name].append(value)
        seen.add(list(server.advance().clients))
        told = server.participation.told.of(np.arange(CLIENTS))
        for name in due:
            np.testing.assert_allclose(
                told[name], due[name] if asked else before[name], atol=1e-12, err_msg=name
            )
    assert server.participation.told.times(np.arange(CLIENTS)).tolist() == [2] * CLIENTS


def test_shares_of_the_budget_add_up_to_it():
    for parts in (1, 3, 4):
        for tellings in (1, 2, 7):
            noise = Noise(2.5, tellings, parts)
            assert noise.share * parts * tellings == pytest.approx(2.5)
    # The mean of |Laplace| is its scale: the range over the share of the budget.
    words = Stream(0, "words").bits(100_000)
    told = Noise(300.0, 3, 2).added(np.full(100_000, 4.0), 2.0, 7.0, words)
    assert np.abs(told - 4.0).mean() == pytest.approx(5.0 / 50, rel=0.02)


@pytest.mark.parametrize(
    ("options", "spent", "composition"),
    [
        ("epsilon=3", 3.0, "basic: 1 tellings x 1 parts (entropy) x 3"),
        (
            "epsilon=3,refresh=5,tellings=4,longest=1,reliability=0,consistency=1",
            1.5,
            "basic: 4 tellings x 3 parts (entropy, seconds, consistency) x 0.25",
        ),
        (
            "epsilon=3,refresh=1,tellings=3,normalise=moments",
            3.0,
            "basic: 3 tellings x 1 parts (score) x 1",
        ),
    ],
)
def test_the_summary_says_what_was_spent(options: str, spent: float, composition: str):
    summary = run(f"afl-cp:{options}").summary
    assert summary["profile_epsilon_budget"] == 3.0
    assert summary["profile_epsilon_spent_most"] == pytest.approx(spent)
    assert summary["profile_epsilon_spent_mean"] == pytest.approx(spent)
    assert summary["profile_epsilon_composition"] == composition


def test_candidates_alone_spend_something():
    server = server_of("afl-cp:epsilon=4,refresh=2,tellings=5,longest=1,candidates=4")
    told = np.zeros(CLIENTS)
    last = np.full(CLIENTS, -9)
    for number in range(6):
        drawn = Stream(1, "candidates", number).sample(CLIENTS, 4)
        due = drawn[number - last[drawn] >= 2]
        told[due] += 1
        last[due] = number
        server.advance()
    found = server.participation.profile_privacy()
    assert told.min() < told.max()
    assert found["profile_epsilon_spent_most"] == pytest.approx(told.max() * 4 / 5)
    assert found["profile_epsilon_spent_mean"] == pytest.approx(told[told > 0].mean() * 4 / 5)


def test_nothing_is_spent_without_noise():
    assert not [name for name in run("afl-cp:refresh=2").summary if "epsilon" in name]


# -- identities --------------------------------------------------------------------------------------------------------


def alike(one: fs.Run, other: fs.Run, tolerance: float) -> None:
    assert one.clients["client"].tolist() == other.clients["client"].tolist()
    for name in ("weight", "score"):
        np.testing.assert_allclose(one.clients[name], other.clients[name], atol=tolerance)
    for name, value in one.server.state.params.items():
        np.testing.assert_allclose(value, other.server.state.params[name], atol=tolerance)


@pytest.mark.parametrize("options", ["speed=2", "consistency=1,speed=3"])
def test_told_every_round_without_noise_is_what_the_server_measures(options: str):
    alike(run(f"afl-cp:{options}"), run(f"afl-cp:{options},refresh=1"), 1e-5)


def test_a_score_that_clients_compute_is_that_of_the_server():
    alike(run("afl-cp:normalise=moments"), run("afl-cp:normalise=moments,refresh=1"), 1e-5)


@pytest.mark.parametrize("options", ["speed=1", "epsilon=2"])
def test_all_as_candidates_are_no_candidates(options: str):
    alike(run(f"afl-cp:{options}"), run(f"afl-cp:{options},candidates={CLIENTS}"), 0.0)


@pytest.mark.parametrize(
    "options",
    [
        "refresh=2,tellings=3,epsilon=5,longest=1,candidates=6",
        "refresh=3,normalise=moments,epsilon=5,tellings=2",
        "score=learnt,consistency=1",
    ],
)
def test_engines_agree_and_a_resumed_run_has_the_same_bits(options: str):
    first, second, third = (server_of(f"afl-cp:{options}") for _ in range(3))
    for _ in range(4):
        first.advance()
        second.advance()
    third.restore(second.checkpoint())
    for _ in range(4):
        first.advance()
        third.advance()
    for name, value in first.checkpoint().items():
        assert (value == third.checkpoint()[name]).all() or value.isnan().any(), name
    loop, stacked = (
        run(f"afl-cp:{options}", engine=engine, dtype="float64") for engine in ("loop", "stacked")
    )
    alike(loop, stacked, 1e-9)


def filled(values: np.ndarray) -> np.ndarray:
    known = values[~np.isnan(values)]
    return np.where(np.isnan(values), known.mean() if len(known) else 1.0, values)


def test_candidates_are_compared_with_each_other_by_what_they_told_last():
    server = server_of("afl-cp:refresh=2,candidates=6")
    seen = Experience()
    told = np.full((3, CLIENTS), np.nan)
    last = np.full(CLIENTS, -9)
    compared = 0
    for number in range(8):
        drawn = np.sort(Stream(1, "candidates", number).sample(CLIENTS, 6))
        for client in drawn[number - last[drawn] >= 2]:
            last[client] = number
            parts = (entropies()[client], seen.reliability(client), seen.seconds(client))
            told[:, client] = parts
        entropy, reliability, seconds = told[:, drawn]
        times = seconds[np.isfinite(seconds)]
        speed = np.where(np.isnan(seconds), np.nan, 0.0)
        if len(times):
            spread = np.ptp(times)
            quick = np.isfinite(seconds)
            speed[quick] = (times.max() - times) / spread if spread else 1.0
            compared += spread > 0
        score = (entropy + filled(reliability) + filled(speed)) / 3
        due = dict(zip(drawn.tolist(), np.maximum(score, 0.1), strict=True))
        lines = list(server.advance().clients)
        for line in lines:
            assert line["score"] == pytest.approx(due[line["client"]], abs=1e-12), number
        seen.add(lines)
    assert compared > 3


def test_sums_are_those_of_the_candidates_of_the_round():
    server = server_of("afl-cp:refresh=2,candidates=6,normalise=moments")
    seen = Experience()
    score = np.full(CLIENTS, np.nan)
    last = np.full(CLIENTS, -9)
    for number in range(8):
        drawn = np.sort(Stream(1, "candidates", number).sample(CLIENTS, 6))
        seconds = np.array([seen.seconds(client) for client in drawn])
        reliability = filled(np.array([seen.reliability(client) for client in drawn]))
        times = seconds[np.isfinite(seconds)]
        speed = np.ones(6)
        if len(times):
            quick = np.isfinite(seconds)
            mean = 1.0
            if times.std() > 1e-6 * times.mean():
                speed[quick] = np.clip(0.5 + (times.mean() - times) / (4 * times.std()), 0, 1)
                mean = 0.5
            speed[np.isinf(seconds)] = 0.0
            speed[np.isnan(seconds)] = mean * len(times) / (~np.isnan(seconds)).sum()
        elif np.isinf(seconds).any():
            speed[:] = 0.0
        now = np.maximum((entropies()[drawn] + reliability + speed) / 3, 0.1)
        due = number - last[drawn] >= 2
        score[drawn[due]] = now[due]
        last[drawn[due]] = number
        lines = list(server.advance().clients)
        for line in lines:
            assert line["score"] == pytest.approx(score[line["client"]], abs=1e-7), number
        seen.add(lines)


# -- totals ------------------------------------------------------------------------------------------------------------


def test_speed_by_moments_by_hand():
    pool = ClientPool(
        round=4,
        sizes=np.full(6, 10),
        profile={"entropy": np.full(6, 0.5)},
        selected=np.array([2, 2, 2, 2, 1, 0]),
        completed=np.array([2, 1, 2, 2, 0, 0]),
        seconds=np.array([2.0, 3.0, 4.0, 40.0, 0.0, 0.0]),
    )
    times = np.array([1.0, 3.0, 2.0, 20.0])
    speeds = 0.5 - (times - times.mean()) / (4 * times.std())
    found = AFLCP(normalise="moments").client_selection.scores(pool)
    # Who never completed a round has 0, and who was never selected the mean of all others
    due = [*speeds, 0.0, 4 * 0.5 / 5]
    np.testing.assert_allclose(found["speed"], due, atol=1e-12)
    np.testing.assert_allclose(
        found["score"], (0.5 + found["reliability"] + np.array(due)) / 3, atol=1e-12
    )


def test_times_that_are_far_from_the_mean_are_clipped_and_equal_ones_are_all_quick():
    far = np.array([1.0] * 30 + [100.0])
    pool = ClientPool(
        round=4,
        sizes=np.full(31, 10),
        profile={"entropy": np.ones(31)},
        selected=np.ones(31, dtype=int),
        completed=np.ones(31, dtype=int),
        seconds=far,
    )
    speed = AFLCP(normalise="moments").client_selection.scores(pool)["speed"]
    assert speed[-1] == 0.0
    assert 0.5 < speed[0] < 0.6
    known = from_records(pool) | {"seconds": np.full(31, 0.1 + 0.2)}
    totals = pool.standing.of(
        np.ones(31, dtype=int), np.ones(31, dtype=int), known["seconds"], np.zeros(31)
    )
    assert parts_of(known, totals, moments=True)["speed"].tolist() == [1.0] * 31


def test_a_told_score_has_the_noise_of_one_number():
    plain = server_of("afl-cp:refresh=9,normalise=moments")
    noisy = server_of("afl-cp:refresh=9,normalise=moments,epsilon=4,tellings=2,floor=0.2")
    plain.advance()
    noisy.advance()
    everyone = np.arange(CLIENTS)
    score = plain.participation.told.of(everyone)["score"]
    np.testing.assert_allclose(score, (entropies() + 1 + 1) / 3, atol=1e-12)
    noise = np.array([laplace_of(1, "profile", 0, 0, client) for client in everyone])
    due = np.clip(score + 0.8 * noise / (4 / 2), 0.2, 1.0)
    np.testing.assert_allclose(noisy.participation.told.of(everyone)["score"], due, atol=1e-12)


# -- learnt weights ----------------------------------------------------------------------------------------------------


def test_ridge_is_least_squares_with_a_row_for_each_fixed_weight():
    draw = np.random.default_rng(0)
    rows = np.column_stack([np.ones(20), draw.random((20, 3))])
    useful = draw.random(20)
    fixed = np.array([0.0, 0.5, 0.25, 0.25])
    due = np.linalg.lstsq(np.vstack([rows, np.eye(4)]), np.append(useful, fixed), rcond=None)[0]
    lessons = np.column_stack([rows.T @ rows, rows.T @ useful])
    np.testing.assert_allclose(ridge(lessons, fixed), due, atol=1e-12)
    assert ridge(np.zeros((4, 5)), fixed).tolist() == fixed.tolist()
    assert ridge(np.zeros((0, 0)), fixed) is fixed


def test_weights_are_learnt_from_how_well_updates_agreed():
    server = server_of("afl-cp:score=learnt,entropy=2")
    rows, useful = [np.zeros(4)], [0.0]
    agreement = np.zeros(CLIENTS)
    for _ in range(6):
        fixed = np.array([0.0, 0.5, 0.25, 0.25])
        stacked = np.vstack([*rows, np.eye(4)])
        weights = np.linalg.lstsq(stacked, np.append(useful, fixed), rcond=None)[0]
        lines = list(server.advance().clients)
        now = server.participation.records.arrays["agreement"].copy()
        for line in lines:
            parts = np.array([1.0, line["entropy"], line["reliability"], line["speed"]])
            due = min(max(weights @ parts, 0.1), 1.0)
            assert line["score"] == pytest.approx(due, abs=1e-10)
            if not line["dropped"] and not line["late"]:
                rows.append(parts)
                useful.append(now[line["client"]] - agreement[line["client"]])
        agreement = now
    assert len(useful) > 10
    assert not np.allclose(weights, fixed, atol=0.05)


# -- what it costs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told", "totals"),
    [
        ("refresh=3", 3, 0),
        ("refresh=3,speed=0", 2, 0),
        ("refresh=3,normalise=moments", 1, 5),
        ("refresh=3,normalise=moments,consistency=1", 1, 6),
    ],
)
def test_bytes_are_counted_where_profiles_are_told(options: str, told: int, totals: int):
    still = {"per_round": CLIENTS, "fleet": "uniform"}
    usual = run("fedavg", **still)
    found = run(f"afl-cp:{options}", **still)
    asked = np.isin(np.arange(8), (0, 3, 6))
    up = found.rounds["bytes_up"] - usual.rounds["bytes_up"]
    assert up.tolist() == (asked * 8 * CLIENTS * (told + totals)).tolist()
    # Each client gets the totals, and the server tells the clients of a round the numbers of their configuration.
    numbers = len({"entropy", "reliability", "speed", "consistency", "score"} & {*found.clients})
    down = found.rounds["bytes_down"] - usual.rounds["bytes_down"]
    assert down.tolist() == (8 * CLIENTS * (asked * totals + numbers)).tolist()


def test_candidates_tell_once_and_the_clock_waits_for_them_alone():
    server = server_of("afl-cp:candidates=5")
    told: set[int] = set()
    for number in range(5):
        drawn = set(Stream(1, "candidates", number).sample(CLIENTS, 5).tolist())
        result = server.advance()
        assert {line["client"] for line in result.clients} <= drawn
        sent = sum(line["bytes_up"] for line in result.clients)
        assert result.round["bytes_up"] - sent == 8 * len(drawn - told)
        told |= drawn
    assert server.participation.told.known().tolist() == sorted(told)


def test_a_round_of_candidates_looks_at_nobody_else():
    known = fs.split(fs.load("digits"), "iid", clients=3).partition
    crowd = Federation(fs.load("digits"), DrawnPartition.of_clients(known, 10**7, seed=0))
    settings = fs.Settings(**{**SETTINGS, "fleet": "mixed", "eval_every": 8})
    method = resolve("afl-cp:candidates=50,refresh=2,tellings=2,epsilon=1,longest=1")
    server, _ = prepare(crowd, "logreg", method, settings)
    for _ in range(3):
        assert server.advance().round["clients"] == 4
    known_to_server = server.participation.told.known()
    assert 100 < len(known_to_server) <= 150
    told = server.participation.told.of(known_to_server)["entropy"]
    assert len(np.unique(told[(told > 0) & (told < 1)])) > 3  # each has noise of its own


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("epsilon=-1", "epsilon=-1 is out of range"),
        ("refresh=0", "refresh=0 is out of range"),
        ("refresh=2,tellings=0", "tellings=0 is out of range"),
        ("candidates=0", "candidates=0 is out of range"),
        ("tellings=2", "tellings=2 is for refresh="),
        ("refresh=2,epsilon=1", "refresh=2 repeats it without end: add tellings="),
        (
            "refresh=2,tellings=2,epsilon=1",
            "noise on reported times needs their range: add longest=",
        ),
        ("longest=3", "longest=3 is for times that clients report with noise"),
        (
            "longest=3,refresh=2,tellings=2,epsilon=1,normalise=moments",
            "longest=3 is for times that clients report with noise",
        ),
        ("score=learnt,refresh=2,normalise=moments", "score=learnt needs the parts of profiles"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: str, reason: str):
    with pytest.raises(FedskewError, match=reason):
        resolve(f"afl-cp:{options}")


def test_fewer_candidates_than_clients_of_a_round_are_refused():
    with pytest.raises(FedskewError, match="candidates=3 is fewer than the 4 clients of a round"):
        server_of("afl-cp:candidates=3")


def test_nodes_have_nothing_to_tell_in_rounds():
    with pytest.raises(FedskewError, match="leave refresh and candidates out"):
        _refuse_telling(resolve("afl-cp:candidates=30"))
    _refuse_telling(resolve("afl-cp"))
