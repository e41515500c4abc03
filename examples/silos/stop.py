"""Stop all that start.py has started in a folder, at whatever point it is: python stop.py [FOLDER]

Every process, also those that Flower starts by itself, has the folder in its environment, and is found by it (Linux).
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MARK = "FEDSKEW_EXAMPLE_SILOS"  # the variable that says to which folder a process belongs
PATIENCE = 10  # seconds for a process to end by itself


def folder_of(arguments: list[str]) -> Path:
    """Return the folder that a command is about."""
    return Path(arguments[1] if len(arguments) > 1 else "three_silos").absolute()


def processes(folder: Path) -> dict[int, str]:
    """Return the commands of all processes of a folder but this one, by number."""
    mark, found = f"{MARK}={folder}".encode(), {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is somebody else's
            around, command = (
                (process / part).read_bytes().split(b"\0") for part in ("environ", "cmdline")
            )
            if mark in around and int(process.name) != os.getpid():
                found[int(process.name)] = b" ".join(command).decode(errors="replace").strip()
    return found


def stop(folder: Path) -> int:
    """End all processes of a folder, nodes before their server; return how many there were."""
    ended = _end(folder, lambda command: "guarded_link" not in command, signal.SIGTERM)
    ended |= _end(folder, lambda command: True, signal.SIGTERM)
    return len(ended | _end(folder, lambda command: True, signal.SIGKILL))


def _end(folder: Path, chosen: Callable[[str], bool], how: signal.Signals) -> set[int]:
    """Send a signal to some processes, and wait until none of them is left; some start others until they end."""
    asked, end = set[int](), time.monotonic() + PATIENCE
    while (
        left := [pid for pid, command in processes(folder).items() if chosen(command)]
    ) and time.monotonic() < end:
        for pid in set(left) - asked:
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        asked.update(left)
        time.sleep(0.05)
    return asked


if __name__ == "__main__":
    where = folder_of(sys.argv)
    print(f"stopped {stop(where)} processes of {where}")
    if still := processes(where):
        sys.exit(f"still there: {still}")
