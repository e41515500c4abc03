"""The settings of a cell of a table, and the fingerprint by which its results are known."""

import hashlib
import json
from typing import Any

from fedskew.papers.paper_tables import Entry, PaperTable

Row = dict[str, Any]


def values_of(table: PaperTable, case: Entry, method: Entry) -> Row:
    """Return the settings of a cell: those of the table, then of the case, then of the method."""
    return {**table.settings, **case.settings, **method.settings}


def configuration(table: PaperTable, case: Entry, method: Entry) -> str:
    """Return a fingerprint of the settings of a cell, beside its seed."""
    values = {"kind": table.kind, **values_of(table, case, method)}
    if case.budgets:
        values["budgets"] = dict(case.budgets)
    content = json.dumps(values, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:10]
