"""The modules that are mutated, and the tests that their mutants are given."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Room:
    """Modules, or folders with modules, and the tests that mutants of these are given."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


ROOMS = (
    Room(
        ("aggregation",),
        (
            "tests/algorithms/test_robust.py",
            "tests/algorithms/test_privacy.py",
            "tests/topology/test_collector.py",
        ),
    ),
    Room(("algorithms",), ("tests/algorithms", "tests/engine/test_probe.py")),
    Room(
        ("deploy/checks.py",),
        (
            "tests/deploy/test_checked_answers.py",
            "tests/deploy/test_checks.py",
            "tests/deploy/test_lies.py",
        ),
    ),
    Room(("engine/plan.py",), ("tests/engine/test_plan.py", "tests/engine/test_probe.py")),
    Room(
        ("runs/checkpoint.py", "runs/intact_checkpoints.py"),
        (
            "tests/runs/test_checkpoint.py",
            "tests/runs/test_damage.py",
            "tests/runs/test_client_model.py",
            "tests/runs/test_resume.py",
            "tests/inference/test_prediction.py",
            "tests/study/test_side_by_side.py",
        ),
    ),
    Room(
        ("server/evaluated_rows.py", "server/evaluation.py", "server/scorer.py"),
        (
            "tests/server",
            "tests/runs/test_client_model.py",
            "tests/topology/test_participation.py",
            "tests/algorithms/test_attack.py",
            "tests/algorithms/test_stratify.py",
            "tests/algorithms/test_afl_cp.py",
        ),
    ),
    Room(("study/judge.py",), ("tests/study/test_judge.py", "tests/study/test_claims.py")),
    Room(
        ("topology",),
        (
            "tests/topology",
            "tests/server",
            "tests/fleet",
            "tests/algorithms/test_asynchronous.py",
            "tests/algorithms/test_stratify.py",
            "tests/algorithms/test_afl_cp.py",
            "tests/algorithms/test_robust.py",
            "tests/algorithms/test_fedtan.py",
            "tests/engine/test_scheduled.py",
        ),
    ),
)
