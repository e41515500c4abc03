"""The summary against numbers computed by hand."""

import statistics
from typing import Any

import pytest

from fedskew.runs.summary import summarise

Row = dict[str, Any]


def round_of(number: int, accuracy: float | None, **more: Any) -> Row:
    known = accuracy is not None
    scores = {"test_accuracy": accuracy, "test_loss": 1 - accuracy if known else None}
    scores["test_balanced_accuracy"] = accuracy / 2 if known else None
    counted = {
        "clients": 4,
        "excluded": 0,
        "dropped": 0,
        "late": 0,
        "bytes_down": 10,
        "bytes_up": 1,
        "clock": 0.5 * number,
    }
    return {"round": number, **scores, **counted, **more}


def weights(*by_round: dict[int, float]) -> list[Row]:
    return [{"client": client, "weight": w} for chosen in by_round for client, w in chosen.items()]


def final(*accuracies: float, **more: float) -> list[Row]:
    return [
        {"client": client, "accuracy": accuracy, **more}
        for client, accuracy in enumerate(accuracies)
    ]


def test_last_and_best_are_named_as_such() -> None:
    rounds = [
        round_of(1, 0.5),
        round_of(2, 0.9),
        round_of(3, 0.8),
        round_of(4, None),
        round_of(5, 0.85),
    ]
    found = summarise(rounds, weights({0: 1.0}), final(1.0), 1, False)
    assert found["rounds"] == 5
    assert (
        found["test_accuracy_last"],
        found["test_accuracy_best"],
        found["test_accuracy_best_round"],
    ) == (
        0.85,
        0.9,
        2,
    )
    assert found["test_balanced_accuracy_last"] == 0.425
    assert found["test_loss_last"] == pytest.approx(0.15)
    bare = {"test_accuracy", "train_accuracy", "accuracy"}
    assert not bare & set(found)
    assert "validation_accuracy_last" not in found


def test_rounds_to_90_percent_counts_rounds_and_not_evaluations() -> None:
    # 90 % of the last, 0.8, is 0.72: reached for the first time in round 6, the third evaluation.
    rounds = [round_of(n, a) for n, a in ((2, 0.1), (4, 0.71), (6, 0.72), (8, 0.5), (9, 0.8))]
    found = summarise(rounds, weights({0: 1.0}), final(1.0), 1, False)
    assert found["rounds_to_90_percent_of_last_test_accuracy"] == 6


def test_rounds_to_90_percent_of_the_best_are_others() -> None:
    # 90 % of the best, 1.0, is 0.9: round 4; 90 % of the last, 0.5, was there in round 2.
    rounds = [
        round_of(n, a) for n, a in ((1, 0.4), (2, 0.6), (3, 0.85), (4, 0.95), (5, 1.0), (6, 0.5))
    ]
    found = summarise(rounds, weights({0: 1.0}), final(1.0), 1, False)
    assert found["rounds_to_90_percent_of_last_test_accuracy"] == 2
    assert found["rounds_to_90_percent_of_best_test_accuracy"] == 4
    assert found["simulated_seconds_to_90_percent_of_best_test_accuracy"] == 2.0


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_rounds_to_90_percent_of_the_best_pass_over_nan_wherever_it_stands(place: int) -> None:
    scores = [0.4, 0.95, 1.0]
    scores.insert(place, float("nan"))
    rounds = [round_of(number, score) for number, score in enumerate(scores, 1)]
    found = summarise(rounds, weights({0: 1.0}), final(1.0), 1, False)
    assert found["rounds_to_90_percent_of_best_test_accuracy"] == scores.index(0.95) + 1


def test_the_slowest_third_and_who_has_no_weight() -> None:
    times = {0: 1.0, 1: 9.0, 2: 2.0, 3: 3.0, 4: 8.0, 5: 1.0}
    shares = {0: 0.4, 1: 0.1, 2: 0.2, 3: 0.3, 4: 0.0, 5: 0.0}
    lines = []
    for client, weight in shares.items():
        line = {"client": client, "weight": weight, "training_seconds": times[client]}
        lines += [line, {**line, "weight": weight / 2, "training_seconds": 0.5}]
    found = summarise([round_of(1, 0.5)], lines, final(1.0), 6, False)
    assert found["weight_share_of_slowest_third"] == pytest.approx(0.1)  # clients 1 and 4
    assert found["clients_without_weight"] == 2
    assert found["training_seconds_of_a_client"] == pytest.approx((24 + 6 * 0.5) / 6)


def test_late_oscillation_is_over_the_last_15_rounds() -> None:
    late = [0.8 + 0.01 * (n % 4) for n in range(15)]
    rounds = [round_of(n + 1, a) for n, a in enumerate([0.1, 0.2, 0.3, *late])]
    found = summarise(rounds, weights({0: 1.0}), final(1.0), 1, False)
    assert found["test_accuracy_std_of_last_15_rounds"] == pytest.approx(
        statistics.stdev(late), abs=1e-15
    )
    assert found["test_loss_std_of_last_15_rounds"] == pytest.approx(
        statistics.stdev(late), abs=1e-15
    )
    assert "train_loss_std_of_last_15_rounds" not in found
    short = summarise(rounds[:2], weights({0: 1.0}), final(1.0), 1, False)
    assert short["test_accuracy_std_of_last_15_rounds"] is None


def test_what_90_percent_took_on_the_clock_and_on_the_lines() -> None:
    # Reached in round 4, where the clock shows 70 s; rounds 1 to 4 sent 11, 0, 100 + 11 and 11 bytes.
    rounds = [
        round_of(1, None),
        round_of(2, 0.3, bytes_down=0, bytes_up=0, clock=9.0),
        round_of(3, None, bytes_down=100, bytes_up=11, clock=60.0),
        round_of(4, 0.8, clock=70.0),
        round_of(5, 0.8, clock=1000.0),
    ]
    found = summarise(rounds, weights({0: 1.0}), final(1.0), 1, False)
    assert found["rounds_to_90_percent_of_last_test_accuracy"] == 4
    assert found["simulated_seconds_to_90_percent_of_last_test_accuracy"] == 70.0
    assert found["bytes_to_90_percent_of_last_test_accuracy"] == 11 + 0 + 111 + 11
    assert found["simulated_seconds"] == 1000.0


def test_without_test_rows_there_is_no_test_accuracy() -> None:
    rounds = [{key: value for key, value in round_of(1, 0.5).items() if not key.startswith("test")}]
    found = summarise(rounds, weights({0: 1.0}), final(1.0), 1, False)
    for what in ("rounds", "simulated_seconds", "bytes"):
        assert found[f"{what}_to_90_percent_of_last_test_accuracy"] is None
    assert not [
        key for key, value in found.items() if key.startswith("test_") and value is not None
    ]


def test_gini_of_accumulated_weights() -> None:
    # Two rounds: client 0 gathers 0.25 + 0.5, client 1 0.75, client 2 0.5, client 3 is never chosen: 0, 0.5, 0.75,
    # 0.75.
    chosen = weights({0: 0.25, 1: 0.75}, {0: 0.5, 2: 0.5})
    found = summarise([round_of(1, 0.5), round_of(2, 0.5)], chosen, final(1.0), 4, False)
    # sum_i (2i - n - 1) x_i / (n sum x) = (-3*0 - 1*0.5 + 1*0.75 + 3*0.75) / (4 * 2)
    assert found["gini_of_client_weights"] == pytest.approx(2.5 / 8)


@pytest.mark.parametrize(
    ("accuracies", "worst"),
    [
        ((0.5, 0.25, 0.75), 0.25),  # a tenth of three clients is one client
        (tuple(n / 20 for n in range(20, 0, -1)), (0.05 + 0.10) / 2),  # of twenty, two
        (tuple(n / 21 for n in range(21)), (0 + 1 / 21 + 2 / 21) / 3),  # of twenty-one, three
    ],
)
def test_worst_ten_percent_of_clients(accuracies: tuple[float, ...], worst: float) -> None:
    found = summarise([round_of(1, 0.5)], weights({0: 1.0}), final(*accuracies), 1, False)
    assert found["client_accuracy_worst_10_percent"] == pytest.approx(worst)
    assert found["client_accuracy_mean"] == pytest.approx(sum(accuracies) / len(accuracies))


def test_clients_with_nothing_to_measure_on_are_left_out() -> None:
    found = summarise([round_of(1, 0.5)], weights({0: 1.0}), final(0.5, float("nan"), 1.0), 1, True)
    assert found["client_accuracy_mean"] == pytest.approx(0.75)
    assert found["client_accuracy_worst_10_percent"] == pytest.approx(0.5)
    assert found["client_accuracy_rows"] == "held-out rows of each client"


def test_sums_over_rounds() -> None:
    rounds = [
        round_of(1, 0.5, excluded=2, late=1),
        round_of(2, 0.5, clients=7, excluded=1, dropped=4, late=2),
    ]
    found = summarise(rounds, weights({0: 1.0}), final(1.0), 1, False)
    assert found["updates"] == 11
    assert (found["excluded_updates"], found["dropped_updates"], found["late_updates"]) == (3, 4, 3)
    assert (found["bytes_down"], found["bytes_up"], found["simulated_seconds"]) == (20, 2, 1.0)
    assert found["client_accuracy_rows"] == "training rows of each client"


def test_own_models_of_those_that_were_tested() -> None:
    lines = [*final(0.5, 0.5, own_test_accuracy=0.25), {"client": 2, "accuracy": 0.5}]
    assert (
        summarise([round_of(1, 0.5)], weights({0: 1.0}), lines, 1, False)["own_test_accuracy_mean"]
        == 0.25
    )


def test_the_global_model_beside_own_models() -> None:
    lines = final(0.5, 1.0)
    found = summarise([round_of(1, 0.5)], weights({0: 1.0}), lines, 1, True)
    assert "client_accuracy_of_global_model_mean" not in found
    # The second holds nothing out
    for line, accuracy in zip(lines, (0.25, float("nan")), strict=True):
        line["global_accuracy"] = accuracy
    found = summarise([round_of(1, 0.5)], weights({0: 1.0}), lines, 1, True)
    assert found["client_accuracy_of_global_model_mean"] == 0.25
    assert found["client_accuracy_mean"] == 0.75


def test_when_every_update_was_lost() -> None:
    lost = [{"client": client, "weight": 0.0, "local_loss": None} for client in range(4)]
    rounds = [round_of(1, 0.1, local_loss=None, local_accuracy=None, dropped=3, late=1)]
    found = summarise(rounds, lost, final(0.1, 0.1, 0.1, 0.1), 4, False)
    assert found["gini_of_client_weights"] == 0
    assert (found["updates"], found["dropped_updates"], found["late_updates"]) == (4, 3, 1)
    assert found["test_accuracy_last"] == 0.1
