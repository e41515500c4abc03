"""Mutation testing: does a test fail when the code has a mistake?

    tools/mutate                        a sample of the mutants of every module
    tools/mutate algorithms/afl_cp.py   of these modules, or of every module of these rooms
    tools/mutate --all                  all mutants and not a sample
    tools/mutate --seed 3 --count 20    another sample, of up to 20 mutants of a module
    tools/mutate --again OUTPUT         the survivors that a file names, to which an earlier output was written

Every mutant is written into a copy of the repository, never into the tree itself. First the tests of a room run once
without a mistake, and it is recorded which test runs which line. Then a mutant is given the tests that run its line,
the quick ones first, then the tests that have its module as their subject, then the quickest of its room, until one
fails. Tests that take far longer than without the mistake fail as well, and are counted apart.

Mutants that no test can tell from the original are in ``equivalent.toml``, each with the reason; they do not count.
The command fails if fewer than 95 % of the others were killed.
"""

import argparse
import hashlib
import sys
import tempfile
import tomllib
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

from copies import PACKAGE, Baseline, Copy, file_of
from mutants import Mutant, mutants_of
from rooms import ROOMS, Room

GOAL = 0.95
OUTCOMES = ("killed", "timed out", "survived", "equivalent")
# Imported before processes are forked: slow to import, and without mutants
HEAVY = ("pandas", "scipy.stats", "sklearn", "torch")


def modules_of(package: Path, room: Room, wanted: list[str]) -> list[str]:
    """Return the modules of a room that are wanted, and have anything to mutate."""
    found = []
    for name in room.modules:
        names = [name]
        if (package / name).is_dir():
            names = [f"{name}/{path.name}" for path in sorted((package / name).glob("*.py"))]
        for module in names:
            is_wanted = not wanted or name in wanted or module in wanted
            if is_wanted and sample(package, module, 1, 0):
                found.append(module)
    return found


def sample(package: Path, module: str, count: int | None, seed: int) -> list[Mutant]:
    """Return some mutants of a module: always the same ones for a seed, wherever their lines move."""
    found = mutants_of((package / module).read_text(encoding="utf-8"))
    seen: Counter[tuple[str, str]] = Counter()
    ranked = []
    for mutant in found:
        key = (mutant.text, mutant.change)
        seen[key] += 1
        drawn = hashlib.sha256(f"{seed}/{module}/{key}/{seen[key]}".encode()).hexdigest()
        ranked.append((drawn, mutant))
    ranked.sort(key=lambda pair: pair[0])
    return [mutant for _, mutant in ranked[:count]]


def equivalent() -> dict[tuple[str, str, str], str]:
    """Return why mutants that cannot be told from the original are that, by module, line and change."""
    content = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text(encoding="utf-8"))
    reasons = {}
    for entry in content.get("mutant", []):
        reasons[entry["module"], entry["line"], entry["change"]] = entry["why"]
    return reasons


def subject_tests(module: str, baseline: Baseline) -> list[str]:
    """Return the tests whose file is named after a module, and its doctests."""
    stem = Path(module).stem
    named = []
    for name in baseline.seconds:
        file = Path(file_of(name))
        if file.stem == f"test_{stem}" or file == PACKAGE / module:
            named.append(name)
    return named


def line_of(module: str, tally: Counter[str]) -> str:
    """Return one line of the table."""
    caught = tally["killed"] + tally["timed out"]
    judged = caught + tally["survived"]
    rate = "-"
    if judged:
        rate = f"{100 * caught / judged:.0f} %"
    line = f"{module:32}{sum(tally.values()):>11}"
    for name in OUTCOMES:
        line += f"{tally[name]:>11}"
    return f"{line}{rate:>8}"


def survivors_in(output: str) -> set[tuple[str, str, str]]:
    """Return the survivors of an earlier output by module, line and change."""
    found = set()
    lines = Path(output).read_text(encoding="utf-8").splitlines()
    for place, line in enumerate(lines):
        if line.startswith("survived"):
            module = line.partition(": ")[2].partition(":")[0]
            found.add((module, lines[place + 1].strip(), lines[place + 2].strip()))
    return found


def judged(copy: Copy, room: Room, modules: list[str], given: Any) -> dict[str, Counter[str]]:
    """Return how the mutants of some modules of a room ended."""
    doctests = [str(PACKAGE / module) for module in modules]
    baseline = copy.baseline([*room.tests, *doctests])
    seconds = sum(baseline.seconds.values())
    print(f"{len(baseline.seconds)} tests in {seconds:.0f} s: {', '.join(modules)}", flush=True)
    reasons = equivalent()
    tallies = {}
    for module in modules:
        tally = tallies[module] = Counter()
        subject = subject_tests(module, baseline)
        for mutant in sample(copy.package, module, given.count, given.seed):
            name = (module, mutant.text, mutant.change)
            if given.again and name not in given.again:
                continue
            if name in reasons:
                tally["equivalent"] += 1
                continue
            found = copy.outcome(module, mutant, baseline, subject)
            tally[found] += 1
            if found != "killed" or given.verbose:
                print(f"{found}: {module}:{mutant.lines.start}", flush=True)
                print(f"    {mutant.text}\n    {mutant.change}", flush=True)
    return tallies


def main() -> int:
    """Run the tests on mutants; return the exit code."""
    parser = argparse.ArgumentParser(prog="tools/mutate", description="Mutation testing.")
    parser.add_argument("modules", nargs="*", help="modules or rooms, such as study/judge.py")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--count", type=int, default=8, help="mutants of a module, at most")
    parser.add_argument("--all", action="store_const", const=None, dest="count")
    parser.add_argument("--verbose", action="store_true", help="print killed mutants too")
    parser.add_argument("--again", type=survivors_in, metavar="OUTPUT", help="survivors alone")
    given = parser.parse_args()
    if given.again:
        given.modules = sorted({module for module, _, _ in given.again})
    for name in HEAVY:
        import_module(name)
    tallies: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as place:
        copy = Copy(Path(place) / "copy")
        for room in ROOMS:
            modules = modules_of(copy.package, room, given.modules)
            if modules:
                tallies |= judged(copy, room, modules, given)
    return told(tallies)


def told(tallies: dict[str, Counter[str]]) -> int:
    """Print the table; return 1 if too few mutants were killed."""
    heads = ("mutants", *OUTCOMES)
    print(f"\n{'':32}" + "".join(f"{head:>11}" for head in heads) + f"{'rate':>8}")
    total: Counter[str] = Counter()
    for module, tally in tallies.items():
        print(line_of(module, tally))
        total += tally
    print(line_of("all", total))
    caught = total["killed"] + total["timed out"]
    return int(caught < GOAL * (caught + total["survived"]))


if __name__ == "__main__":
    sys.exit(main())
