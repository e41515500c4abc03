"""The events of a run on nodes, read from the log in its folder."""

import json
from contextlib import suppress
from pathlib import Path

from fedskew.runs.folder import EVENTS, Row


def read_events(folder: Path) -> list[Row]:
    """Return the events of a run, the first one first; a line that is not there to its end is left out."""
    path = folder / EVENTS
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    events: list[Row] = []
    for line in lines:
        with suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and "event" in event:
                events.append(event)
    return events
