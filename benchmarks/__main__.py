"""``make bench``: the usual benchmarks, or those named, such as ``python -m benchmarks engines growth``."""

import sys

from benchmarks import (
    adapters,
    atlas_guards,
    atlas_pilot,
    chunks,
    client_numbers,
    clusters,
    compositions,
    engines,
    entropy_privacy,
    evaluation,
    first_answers,
    flamby_heart,
    fuzz_readers,
    generators,
    growth,
    hierarchies,
    label_recovery,
    layer_drift,
    layer_mu,
    methods,
    nodes,
    personalised,
    planet,
    private_profiles,
    rounds,
    rule,
    scale,
    secret_labels,
    server_rates,
    single,
    stratify_traffic,
    studies,
    sweeps,
    workers,
)

BENCHMARKS = {
    "engines": engines.main,
    "methods": methods.main,
    "personalised": personalised.main,
    "client_numbers": client_numbers.main,
    "clusters": clusters.main,
    "atlas_pilot": atlas_pilot.main,
    "atlas_guards": atlas_guards.main,
    "flamby_heart": flamby_heart.main,
    "layer_drift": layer_drift.main,
    "layer_mu": layer_mu.main,
    "planet": planet.main,
    "planet_costs": planet.costs,
    "planet_later": planet.later_shares,
    "private_profiles": private_profiles.main,
    "private_profiles_attack": private_profiles.attack,
    "private_profiles_costs": private_profiles.costs,
    "compositions": compositions.main,
    "evaluation": evaluation.main,
    "scale": scale.main,
    "rounds": rounds.main,
    "workers": workers.main,
    "nodes": nodes.main,
    "rule": rule.main,
    "generators": generators.main,
    "growth": growth.main,
    "hierarchies": hierarchies.main,
    "entropy_privacy": entropy_privacy.main,
    "secret_labels": secret_labels.main,
    "label_recovery": label_recovery.main,
    "server_rates": server_rates.main,
    "single": single.main,
    "stratify_traffic": stratify_traffic.main,
    "studies": studies.main,
    "sweeps": sweeps.main,
    "chunks": chunks.main,
    "fuzz_readers": fuzz_readers.main,
    "first_answers": first_answers.main,
    "adapters": adapters.main,
}
DEFAULT = ("engines", "methods", "evaluation", "scale", "generators")

if __name__ == "__main__":  # workers import this file, and must not start the benchmarks again
    for name in sys.argv[1:] or DEFAULT:
        if name not in BENCHMARKS:
            sys.exit(f"unknown benchmark {name!r}; known: {', '.join(BENCHMARKS)}")
        print(
            f"\n== {name}: {(sys.modules[BENCHMARKS[name].__module__].__doc__ or '').splitlines()[0]}",
            flush=True,
        )
        BENCHMARKS[name]()
