"""Tables that are part of scikit-learn, read from its files: importing it would take longer than a first training."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import FedskewError
from fedskew.core.files import open_unpacked, reading


def bundled_table(name: str, delimiter: str | None = None) -> NDArray[Any]:
    """Return the numbers of a file in scikit-learn's folder of data; by default spaces are between them."""
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise FedskewError(f"{name} is part of scikit-learn: pip install scikit-learn")
    path = Path(found.submodule_search_locations[0], "datasets", "data", name)
    with reading(path), open_unpacked(path) as file:
        return np.loadtxt(file, delimiter=delimiter)
