"""AFL-CP by hand: entropies, their privacy noise, profiles over rounds with drop-outs, draws and weights."""

import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedskew as fs
from fedskew.algorithms.afl_cp import AFLCP
from fedskew.algorithms.contract import Algorithm, Report, resolve
from fedskew.algorithms.profiles import laplace
from fedskew.algorithms.selection import ClientPool
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Stream
from fedskew.data.dataset import Dataset, Rows
from fedskew.engine.job import Updates
from fedskew.runs.execute import prepare


def entropy(counts: list[int]) -> float:
    shares = [count / sum(counts) for count in counts if count]
    return -sum(share * math.log(share) for share in shares) / math.log(len(counts))


def pool(**given) -> ClientPool:
    """Return a pool of five clients; the last was never selected, the one before never completed a round."""
    seen = ClientPool(
        round=5,
        sizes=np.array([10, 20, 30, 40, 50]),
        profile={"entropy": np.array([0.9, 0.1, 0.5, 0.3, 0.7])},
        selected=np.array([4, 2, 5, 3, 0]),
        completed=np.array([4, 1, 4, 0, 0]),
        seconds=np.array([8.0, 6.0, 12.0, 0.0, 0.0]),
    )
    return replace(seen, **given)


# -- what clients tell -------------------------------------------------------------------------------------------------


def test_entropy_is_that_of_the_labels():
    counts = [[3, 3, 3], [1, 2, 7], [0, 5, 5], [12, 0, 0], [0, 1, 0], [1000, 1, 0]]
    told = AFLCP().client_selection.client_profile(lambda: np.array(counts), Stream(0, "disclose"))
    assert list(told) == ["entropy"]
    np.testing.assert_allclose(
        told["entropy"], [entropy(line) for line in counts], rtol=0, atol=1e-13
    )
    assert told["entropy"].min() == 0.0  # one label only, one row only: not a little below
    assert told["entropy"].max() <= 1.0


def test_a_single_class_of_all_has_no_entropy():
    assert AFLCP().client_selection.client_profile(
        lambda: np.array([[4], [9]]), Stream(0, "disclose")
    )["entropy"].tolist() == [0.0, 0.0]


def test_noise_is_laplacian_of_scale_one():
    noise = laplace(Stream(3, "noise").bits(200_000))
    # Standard error of the variance of a Laplacian: sqrt((24 - 4) / n) = 0.01.
    assert abs(noise.var() - 2) < 0.04
    assert abs(noise.mean()) < 4 * math.sqrt(2 / 200_000)
    levels = np.linspace(0, 1, 41)[1:-1]
    quantiles = np.where(levels < 0.5, np.log(2 * levels), -np.log(2 - 2 * levels))
    counts = np.bincount(np.searchsorted(quantiles, noise), minlength=40)
    expected = 200_000 / 40
    assert ((counts - expected) ** 2 / expected).sum() < 39 + 4 * math.sqrt(
        2 * 39
    )  # chi-square with 39 degrees of freedom


def told_by(counts: list[int], epsilon: float, clients: int = 100_000, seed: int = 0) -> np.ndarray:
    return AFLCP(epsilon=epsilon).client_selection.client_profile(
        lambda: np.tile(counts, (clients, 1)), Stream(seed, "disclose")
    )["entropy"]


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_what_is_told_is_the_entropy_with_noise_of_scale_one_over_epsilon_and_clipped(
    epsilon: float,
):
    true = entropy([1, 1, 2])
    told = told_by([1, 1, 2], epsilon)
    assert told.min() == 0.0
    assert told.max() == 1.0
    share = 0.5 * math.exp(-epsilon * true)  # of noise below -true
    assert abs((told == 0).mean() - share) < 5 * math.sqrt(share / len(told))
    share = 0.5 * math.exp(-epsilon * (1 - true))
    assert abs((told == 1).mean() - share) < 5 * math.sqrt(share / len(told))
    inside = np.abs(told[(told > 0) & (told < 1)] - true)
    # Of noise no larger than the way to the nearer end
    within = 1 - math.exp(-epsilon * min(true, 1 - true))
    assert abs((inside < min(true, 1 - true)).sum() / len(told) - within) < 0.01


def test_the_most_unlike_clients_look_alike_to_within_epsilon():
    epsilon = 1.0
    edges = np.linspace(0, 1, 9)[1:-1]
    shares = [
        np.bincount(np.searchsorted(edges, told_by(counts, epsilon, seed=seed)), minlength=8)
        / 100_000
        for seed, counts in enumerate(([7, 0], [5, 5]))
    ]
    ratios = np.abs(np.log(shares[0] / shares[1]))
    assert ratios.max() < epsilon + 0.08  # sampling error of the rarest bin
    assert ratios.max() > 0.9 * epsilon  # and the budget is used


def test_every_client_has_noise_of_its_own_and_the_seed_decides():
    one, same, other = (told_by([1, 3], 5.0, clients=50, seed=seed) for seed in (0, 0, 1))
    assert len(np.unique(one[(one > 0) & (one < 1)])) > 30
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


# -- profiles ----------------------------------------------------------------------------------------------------------


def test_profile_by_hand():
    found = AFLCP(entropy=2, reliability=1, speed=1).client_selection.scores(pool())
    # Reliability: 1, 1/2, 4/5, 0 and their mean. Times 2, 6, 3: speeds 1, 0, 3/4; without a completed round 0; and
    # the mean.
    reliability, speed = [1, 0.5, 0.8, 0, 0.575], [1, 0, 0.75, 0, 1.75 / 4]
    score = [
        (2 * e + r + s) / 4
        for e, r, s in zip([0.9, 0.1, 0.5, 0.3, 0.7], reliability, speed, strict=True)
    ]
    np.testing.assert_allclose(found["reliability"], reliability, atol=1e-15)
    np.testing.assert_allclose(found["speed"], speed, atol=1e-15)
    np.testing.assert_allclose(found["score"], score, atol=1e-15)


def test_consistency_is_the_mean_over_completed_rounds():
    alike = pool(agreement=np.array([3.0, 0.25, 2.0, 0.0, 0.0]))
    found = AFLCP(consistency=3).client_selection.scores(alike)
    # 3 of 4 rounds, 0.25 of the one that it completed of two, 2 of 4; the others have the mean of these three
    consistency = [0.75, 0.25, 0.5, 0.5, 0.5]
    np.testing.assert_allclose(found["consistency"], consistency, atol=1e-15)
    parts = found["entropy"] + found["reliability"] + found["speed"] + 3 * found["consistency"]
    np.testing.assert_allclose(found["score"], parts / 6, atol=1e-15)
    assert "consistency" not in AFLCP().client_selection.scores(alike)


def test_while_nobody_was_seen_all_are_reliable_and_quick():
    none = np.zeros(5, dtype=np.int64)
    found = AFLCP().client_selection.scores(
        pool(selected=none, completed=none, seconds=np.zeros(5))
    )
    assert found["reliability"].tolist() == found["speed"].tolist() == [1.0] * 5


def test_equal_profiles_have_equal_scores():
    # Sums of the same seconds differ in their last bits, and must count as equal.
    completed = np.array([1, 3, 10, 2, 0])
    spent = np.array([0.1, 0.1 + 0.1 + 0.1, sum([0.1] * 10), 0.2, 0.0])
    assert len({spent[0], spent[1] / 3, spent[2] / 10}) > 1
    alike = pool(
        profile={"entropy": np.full(5, 0.4)}, selected=completed, completed=completed, seconds=spent
    )
    found = AFLCP().client_selection.scores(alike)
    assert found["speed"].tolist() == [1.0] * 5
    assert np.ptp(found["score"]) == 0


def fleet_that_loses_clients() -> fs.Run:
    fed = fs.split(fs.load("digits"), "dirichlet:alpha=0.3,min_size=5", clients=9, seed=1)
    fleet = "mixed:dropout=0.4,slow=20,deadline=2"
    return fs.train(
        fed,
        "logreg",
        "afl-cp:speed=2",
        rounds=12,
        per_round=4,
        fleet=fleet,
        seed=1,
        folder=False,
        threads=1,
    )


def test_scores_and_weights_by_hand_over_rounds_in_which_clients_are_lost():
    run = fleet_that_loses_clients()
    fed, lines = run.server.fed, run.clients
    assert lines["dropped"].sum() > 3
    assert lines["late"].sum() > 3
    told = [
        entropy([int((fed.train.y[fed.partition.of(k)] == c).sum()) for c in range(10)])
        for k in range(9)
    ]
    machines = run.server.participation.fleet.machines(np.arange(9))
    selected, times = [0] * 9, [[] for _ in range(9)]
    for number in range(1, 13):
        rates = {k: len(times[k]) / selected[k] for k in range(9) if selected[k]}
        means = {k: sum(times[k]) / len(times[k]) for k in range(9) if times[k]}
        longest, shortest = max(means.values(), default=0), min(means.values(), default=0)
        speeds = {
            k: (longest - mean) / (longest - shortest) if len(means) > 1 else 1.0
            for k, mean in means.items()
        }
        # Chosen, and never made it
        speeds |= {k: 0.0 for k in range(9) if selected[k] and k not in means}
        worth = {}
        for line in lines[lines["round"] == number].to_dict("records"):
            k = line["client"]
            reliability = rates.get(k, sum(rates.values()) / len(rates) if rates else 1.0)
            speed = speeds.get(k, sum(speeds.values()) / len(speeds) if speeds else 1.0)
            score = max((told[k] + reliability + 2 * speed) / 4, 0.1)
            due = {"entropy": told[k], "reliability": reliability, "speed": speed, "score": score}
            assert {name: line[name] for name in due} == pytest.approx(due, abs=1e-12), (number, k)
            selected[k] += 1
            if not line["dropped"] and not line["late"]:
                training = (
                    line["rows"] / machines.rows_per_second[k]
                    + line["steps"] * machines.seconds_per_step[k]
                )
                assert line["training_seconds"] == pytest.approx(training, rel=1e-12)
                # Transfers take time too, which is not that of the computer
                assert line["seconds"] > training
                times[k].append(training)
                worth[k] = line["rows"] * score
            worth.setdefault(k, 0.0)
        found = dict(lines[lines["round"] == number].set_index("client")["weight"])
        assert found == pytest.approx(
            {k: value / (sum(worth.values()) or 1) for k, value in worth.items()}, abs=1e-12
        )


def test_the_line_says_nothing_about_speed():
    """Check that a fast computer with a slow connection has a high speed, although the network dominates its time."""
    fed = fs.split(fs.load("digits"), "iid", clients=2)
    run = fs.train(
        fed,
        "logreg",
        "afl-cp",
        rounds=2,
        fleet="trace:file=" + str(_two_machines()),
        folder=False,
        threads=1,
    )
    second = run.clients[run.clients["round"] == 2].set_index("client")
    # The quick one answers last
    assert run.clients["seconds"].groupby(run.clients["client"]).mean().idxmax() == 0
    assert second["speed"].tolist() == [1.0, 0.0]


def _two_machines() -> Path:
    path = Path(tempfile.mkdtemp()) / "machines.csv"
    path.write_text(
        "client,rows_per_second,down_mbit,up_mbit,latency,dropout\n0,1000,0.05,0.05,9,0\n1,100,1000,1000,0,0\n"
    )
    return path


def by_direction(mine: np.ndarray, moved: np.ndarray) -> float:
    return (1 + mine @ moved / np.linalg.norm(mine) / np.linalg.norm(moved)) / 2


def by_distance(mine: np.ndarray, moved: np.ndarray) -> float:
    return 1 / (1 + ((mine - moved) ** 2).sum() / (moved**2).sum())


@pytest.mark.parametrize(
    ("options", "alike"),
    [("consistency=3", by_direction), ("consistency=3,consistency_of=distance", by_distance)],
)
def test_consistency_by_hand(options: str, alike):
    fed = fs.split(fs.load("digits"), "dirichlet:alpha=0.1", clients=5, seed=3)
    settings = {"rounds": 3, "per_round": 4, "dtype": "float64", "threads": 1, "device": "cpu"}
    training, _ = prepare(fed, "logreg", resolve(f"afl-cp:{options}"), fs.Settings(**settings))
    heard: list[Updates] = []
    context = training.rounds.context
    training.rounds.context = replace(context, engine=listening(context.engine, heard))
    likeness, times = np.zeros(5), np.zeros(5)
    for number in (1, 2, 3):
        before = {name: value.clone() for name, value in training.state.params.items()}
        heard.clear()
        lines = training.advance().clients
        moved = np.concatenate(
            [
                (training.state.params[name] - value).numpy().ravel()
                for name, value in before.items()
            ]
        )
        known = times > 0
        mean = (likeness[known] / times[known]).mean() if known.any() else 1.0
        for line in lines:
            k = line["client"]
            due = likeness[k] / times[k] if times[k] else mean
            assert line["consistency"] == pytest.approx(due, abs=1e-12), (number, k)
            parts = line["entropy"] + line["reliability"] + line["speed"] + 3 * due
            assert line["score"] == pytest.approx(parts / 6, abs=1e-12)
        for update in heard:
            for i, k in enumerate(update.report.clients.tolist()):
                mine = np.concatenate(
                    [update.payload["delta"][name][i].numpy().ravel() for name in before]
                )
                likeness[k] += alike(mine, moved)
                times[k] += 1
    assert 0.1 < likeness.sum() / times.sum() < 0.99


def listening(engine, heard: list):
    """Return the engine with all of its results recorded."""

    class Listening(type(engine)):
        def train(self, job, start, plan):
            for updates in super().train(job, start, plan):
                heard.append(updates)
                yield updates

    return Listening(**vars(engine))


# -- who takes part, and for how much ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["uniform", "size"])
def test_chances_are_proportional_to_scores_and_nobody_is_left_out(sampling: str):
    method = AFLCP(entropy=1, reliability=0, speed=0, floor=0.2)
    score = np.array([0.9, 0.2, 0.5, 0.3, 0.7])  # the second reported 0.1
    chance = score * pool().sizes if sampling == "size" else score
    drawn = [
        int(method.client_selection.select(pool(sampling=sampling), 1, Stream(0, "select", i))[0])
        for i in range(20_000)
    ]
    expected = 20_000 * chance / chance.sum()
    # 0.1 % of chi-square with 4
    assert (((np.bincount(drawn, minlength=5) - expected) ** 2) / expected).sum() < 18.5


def test_few_of_many_are_drawn_as_if_everybody_had_been_looked_at():
    draw = np.random.default_rng(3)
    many = ClientPool(
        round=9,
        sizes=np.full(60, 10),
        profile={"entropy": draw.random(60)},
        selected=np.full(60, 4),
        completed=draw.integers(0, 5, 60),
        seconds=draw.random(60),
    )
    selection, hits = AFLCP().client_selection, np.zeros((2, 60))
    score = selection.scores(many)["score"]
    for i in range(4000):
        hits[0, selection.select(many, 5, Stream(0, "select", i))] += 1
        hits[1, Stream(1, "select", i).weighted_sample(score, 5)] += 1
    # Two samples of the same counts: chi-square with 59 degrees of freedom, 0.1 %.
    assert ((hits[0] - hits[1]) ** 2 / hits.sum(0)).sum() < 98.3


def test_draws_are_different_clients_in_order():
    for i in range(50):
        chosen = AFLCP().client_selection.select(pool(), 3, Stream(0, "select", i))
        assert len(set(chosen.tolist())) == 3
        assert chosen.tolist() == sorted(chosen.tolist())
    assert AFLCP().client_selection.select(pool(), 5, Stream(0, "select")).tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]


@pytest.mark.parametrize("sampling", ["uniform", "size"])
def test_equal_scores_are_the_draws_of_fedavg(sampling: str):
    alike = pool(sampling=sampling, profile={"entropy": np.full(5, 0.4)})
    method = AFLCP(entropy=1, reliability=0, speed=0)
    for i in range(20):
        mine, usual = (
            one.client_selection.select(alike, 2, Stream(0, "select", i))
            for one in (method, Algorithm())
        )
        assert np.array_equal(mine, usual)


def test_equal_scores_are_fedavg():
    fed = fs.split(fs.load("digits"), "dirichlet:alpha=0.5", clients=6)
    settings = {
        "rounds": 3,
        "per_round": 3,
        "dtype": "float64",
        "folder": False,
        "threads": 1,
        "device": "cpu",
    }
    mine, usual = (
        fs.train(fed, "logreg", name, **settings) for name in ("afl-cp:entropy=0,speed=0", "fedavg")
    )
    for name, value in usual.server.state.params.items():
        np.testing.assert_allclose(mine.server.state.params[name], value, rtol=0, atol=1e-12)
    assert mine.clients["client"].tolist() == usual.clients["client"].tolist()
    other = fs.train(fed, "logreg", "afl-cp", **settings)
    assert other.clients["weight"].tolist() != pytest.approx(
        usual.clients["weight"].tolist(), abs=1e-3
    )


def test_weights_are_rows_times_score():
    none = np.zeros(3)
    numbers = {"score": np.array([1.0, 0.1, 0.5])}
    report = Report(
        np.arange(3), np.array([10, 20, 30]), np.ones(3, dtype=int), none, none, numbers
    )
    assert AFLCP().weight(report).tolist() == [10.0, 2.0, 15.0]


def test_one_class_clients_that_all_score_zero_still_train():
    rows = Rows(
        np.random.default_rng(0).normal(size=(13, 4)).astype(np.float32),
        np.repeat([0, 1, 2], [6, 6, 1]),
    )
    fed = fs.split(
        Dataset("one class each", rows, rows, ("a", "b", "c", "nobody's")), "classes:k=1", clients=3
    )
    run = fs.train(fed, "logreg", "afl-cp:reliability=0,speed=0", rounds=2, folder=False, threads=1)
    assert run.clients["entropy"].tolist() == [0.0] * 6
    assert run.clients["score"].tolist() == [0.1] * 6
    assert run.clients["weight"].tolist() == pytest.approx((run.clients["rows"] / 13).tolist())


def test_entropies_are_sent_once():
    fed = fs.split(fs.load("digits"), "iid", clients=7)
    bytes_up = [
        fs.train(fed, "logreg", name, rounds=2, folder=False, threads=1).rounds["bytes_up"]
        for name in ("fedavg", "afl-cp")
    ]
    assert (bytes_up[1] - bytes_up[0]).tolist() == [7 * 8, 0]


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_no_weight_at_all_is_refused():
    with pytest.raises(
        FedskewError, match="entropy=0, reliability=0 and speed=0 leave no score: raise one of them"
    ):
        fs.train(
            fs.split(fs.load("digits"), "iid", clients=2),
            "logreg",
            "afl-cp:entropy=0,reliability=0,speed=0",
            folder=False,
        )


@pytest.mark.parametrize("option", ["epsilon=0", "epsilon=-1", "floor=0", "floor=1.1", "speed=-1"])
def test_values_out_of_range_are_refused(option: str):
    with pytest.raises(FedskewError, match=f"{option} is out of range"):
        resolve(f"afl-cp:{option}")
