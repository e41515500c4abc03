"""``make bench``: the usual benchmarks, or those named, such as ``python -m benchmarks engines growth``."""

import sys

from benchmarks import (
    chunks,
    compositions,
    engines,
    entropy_privacy,
    evaluation,
    fuzz_readers,
    generators,
    growth,
    label_recovery,
    methods,
    nodes,
    rounds,
    rule,
    scale,
    secret_labels,
    single,
    sweeps,
    workers,
)

BENCHMARKS = {
    "engines": engines.main,
    "methods": methods.main,
    "compositions": compositions.main,
    "evaluation": evaluation.main,
    "scale": scale.main,
    "rounds": rounds.main,
    "workers": workers.main,
    "nodes": nodes.main,
    "rule": rule.main,
    "generators": generators.main,
    "growth": growth.main,
    "entropy_privacy": entropy_privacy.main,
    "secret_labels": secret_labels.main,
    "label_recovery": label_recovery.main,
    "single": single.main,
    "sweeps": sweeps.main,
    "chunks": chunks.main,
    "fuzz_readers": fuzz_readers.main,
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
