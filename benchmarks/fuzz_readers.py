"""10,000 damaged files for all readers, each read or rejected in one line: time, findings and memory per reader."""

import importlib.util
import multiprocessing
import os
import random
import signal
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from fedskew.core.errors import FedskewError

FILES, SLOWEST = 10_000, 20  # in all; seconds for one of them


def load_mutants() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "mutants", Path(__file__).parents[1] / "tests/data/mutants.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def most_memory() -> float:
    """Return the peak memory of this process in megabytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def hang(*_: object) -> None:
    raise BaseException(f"more than {SLOWEST} s")


def fuzz(name: str, first: int, count: int, results: Any) -> None:
    """Send (files, rejected, seconds, additional megabytes, findings) of one reader."""
    mutants = load_mutants()
    warnings.simplefilter("error")
    signal.signal(signal.SIGALRM, hang)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "files")
        os.environ["FEDSKEW_DATA"] = str(place)
        read = mutants.prepare(name, place)
        read()
        began, base = time.monotonic(), most_memory()
        refused, findings = 0, []
        for number in range(first, first + count):
            with mutants.damaged(place, random.Random(number)) as file:
                signal.alarm(SLOWEST)
                try:
                    read()
                except FedskewError as error:
                    refused += 1
                    if "\n" in str(error) or len(str(error)) > 2_000:
                        findings.append(f"{number} {file}: a message of {len(str(error))} signs")
                except BaseException as error:
                    where = traceback.extract_tb(error.__traceback__)
                    own = [frame for frame in where if "fedskew" in frame.filename] or list(where)
                    at = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
                    findings.append(
                        f"{number} {file}: {type(error).__name__} {str(error)[:150]!r} at {at}"
                    )
                finally:
                    signal.alarm(0)
        peak = most_memory() - base
        results.send((count, refused, time.monotonic() - began, peak, findings))


def main() -> None:
    names = list(load_mutants().READERS)
    share = FILES // len(names)
    print(f"{'reader':16}{'files':>8}{'refused':>9}{'seconds':>9}{'MB more':>9}  findings")
    context, total = multiprocessing.get_context("spawn"), 0
    for position, name in enumerate(names):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=fuzz, args=(name, position * share, share, theirs))
        process.start()
        theirs.close()
        try:
            files, refused, seconds, peak, findings = mine.recv()
        except EOFError:
            files, refused, seconds, peak, findings = share, 0, 0.0, 0.0, ["the process died"]
        process.join()
        total += files
        print(
            f"{name:16}{files:8}{refused:9}{seconds:9.1f}{peak:9.1f}  {len(findings)}", flush=True
        )
        for finding in findings[:10]:
            print(f"    {finding}")
    print(f"{total} files in all")
