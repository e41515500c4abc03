"""A copy of the repository, in which mutants are tested in processes of their own."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import coverage
import pytest
from mutants import Mutant, mutated

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("src/fedskew")
MOST_SECONDS = 30.0  # of tests without a mistake that a mutant is given, by line
PATIENCE = 5  # times as long as without a mistake
GRACE = 20.0  # seconds that any mutant may take longer
MEMORY = 8 * 2**30  # bytes that a mutant may use
FINE, BROKEN, NO_TEST = 0, 2, 5  # how pytest ends


@dataclass
class Baseline:
    """The tests of a room without a mistake: their seconds, and by file and line those that run it."""

    seconds: dict[str, float] = field(default_factory=dict)
    runs: dict[str, dict[str, list[str]]] = field(default_factory=dict)


class Recorder:
    """Records how long tests take, and which lines they run."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self.measured = measured
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """What is set up may be for other tests of the file as well."""
        self.measured.switch_context(file_of(item.nodeid))
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Lines that run now are run by this test."""
        self.measured.switch_context(item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the seconds of a part of a test."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


class Chosen:
    """Leaves some tests in, in their order."""

    def __init__(self, names: list[str]) -> None:
        self.places = {name: place for place, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out what was not chosen."""
        items[:] = [item for item in items if item.nodeid in self.places]
        items.sort(key=lambda item: self.places[item.nodeid])


def in_child(act: Callable[[], int], seconds: float | None, log: Path) -> int | None:
    """Return the exit code of what is done in a process of its own; None if it took too long."""
    child = os.fork()
    if child == 0:
        os.setsid()
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = BROKEN
        try:
            code = act()
        finally:
            os._exit(code)
    ended = time.monotonic() + (seconds or float("inf"))
    code = None
    while time.monotonic() < ended:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # with processes that its tests have left
    if code is None:
        os.waitpid(child, 0)
    return code


class Copy:
    """A copy of the repository, with at most one mutant in it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.package = place / PACKAGE
        self.log = place.with_suffix(".log")
        command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, place / name)

    def pytest(self, arguments: list[str], plugin: object) -> int:
        """Run tests of the copy, in this process."""
        os.chdir(self.place)
        sys.path.insert(0, str(self.place / "src"))
        os.environ["PYTHONPATH"] = str(self.place / "src")
        usual = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
        code = int(pytest.main([*usual, *arguments], plugins=[plugin]))
        assert sys.modules["fedskew"].__file__ == str(self.package / "__init__.py")
        return code

    def baseline(self, tests: list[str]) -> Baseline:
        """Run tests without a mistake."""
        written = self.place.with_suffix(".json")

        def act() -> int:
            measured = coverage.Coverage(data_file=None, source=[str(self.package)])
            recorder = Recorder(measured)
            measured.start()
            code = self.pytest(tests, recorder)
            measured.stop()
            found = Baseline(recorder.seconds)
            data = measured.get_data()
            for path in data.measured_files():
                by_line = data.contexts_by_lineno(path)
                found.runs[path] = {str(line): names for line, names in by_line.items()}
            written.write_text(json.dumps([found.seconds, found.runs]))
            return code

        if in_child(act, None, self.log) != FINE:
            sys.exit(f"tests fail without a mistake:\n{self.log.read_text()}")
        return Baseline(*json.loads(written.read_text()))

    def outcome(self, module: str, mutant: Mutant, baseline: Baseline, subject: list[str]) -> str:
        """Return whether a mutant was killed, timed out or survived."""
        path = self.package / module
        original = path.read_text(encoding="utf-8")
        path.write_text(mutated(original, mutant), encoding="utf-8")
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()
        try:
            for names in batches(str(path), mutant, baseline, subject):
                found = self._tested(names, baseline)
                if found != "survived":
                    return found
        finally:
            path.write_text(original, encoding="utf-8")
        return "survived"

    def _tested(self, names: list[str], baseline: Baseline) -> str:
        files = list(dict.fromkeys(file_of(name) for name in names))

        def act() -> int:
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            sys.dont_write_bytecode = True
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            return self.pytest(files, Chosen(names))

        expected = sum(baseline.seconds[name] for name in names)
        code = in_child(act, PATIENCE * expected + GRACE, self.log)
        if code is None:
            return "timed out"
        if code in (FINE, NO_TEST):
            return "survived"
        return "killed"


def file_of(test: str) -> str:
    """Return the file of a test."""
    return test.partition("::")[0]


def batches(
    path: str, mutant: Mutant, baseline: Baseline, subject: list[str]
) -> Iterator[list[str]]:
    """Return the tests that a mutant is given: those that run its line, those of its module, the quickest of all."""
    contexts = set()
    for line in mutant.lines:
        contexts.update(baseline.runs.get(path, {}).get(str(line), []))
    covering = []
    for name in baseline.seconds:
        if name in contexts or file_of(name) in contexts:
            covering.append(name)
    if not contexts:  # a line that nothing ever runs cannot fail a test
        return
    given: set[str] = set()
    # Lines of a class and what is cached run once, for whichever test: others may fail by them as well
    for candidates in (covering, subject, list(baseline.seconds)):
        names = [name for name in quickest(candidates, baseline.seconds) if name not in given]
        given.update(names)
        if names:
            yield names


def quickest(names: list[str], seconds: dict[str, float]) -> list[str]:
    """Return the quickest tests, as many as there is time for; by file, so that files set up once."""
    chosen = []
    total = 0.0
    for name in sorted(names, key=seconds.__getitem__):
        total += seconds[name]
        if total > MOST_SECONDS and chosen:
            break
        chosen.append(name)
    of_files: Counter[str] = Counter()
    for name in chosen:
        of_files[file_of(name)] += seconds[name]

    def rank(name: str) -> tuple[float, str, float]:
        return of_files[file_of(name)], file_of(name), seconds[name]

    return sorted(chosen, key=rank)
