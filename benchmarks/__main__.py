"""``make bench``: every benchmark, or those named: ``python -m benchmarks engines scale rule generators tables004``."""

import sys

from benchmarks import engines, generators, rule, scale, tables004

BENCHMARKS = {
    "engines": engines.main,
    "scale": scale.main,
    "rule": rule.main,
    "generators": generators.main,
    "tables004": tables004.main,
}
DEFAULT = ("engines", "scale", "generators")

for name in sys.argv[1:] or DEFAULT:
    if name not in BENCHMARKS:
        sys.exit(f"unknown benchmark {name!r}; known: {', '.join(BENCHMARKS)}")
    print(f"\n== {name}: {(sys.modules[BENCHMARKS[name].__module__].__doc__ or '').splitlines()[0]}", flush=True)
    BENCHMARKS[name]()
