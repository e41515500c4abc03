"""The clients of a client map as FedScale writes it: line n of the table names the client of training row n."""

from pathlib import Path

import numpy as np

from fedskew.core.errors import FedskewError
from fedskew.core.streams import Ints, Stream
from fedskew.data.dataset import Rows
from fedskew.data.partition import Partition
from fedskew.data.readers.fedscale import read_map
from fedskew.skew.skews import skews


@skews.register("fedscale")
def client_map(rows: Rows, clients: int, stream: Stream, /, *, path: str) -> Partition:
    """The clients of a FedScale client map: line n of the CSV file names the client of training row n.

    Clients are in the order in which the file names them first, as in FedScale.

    Args:
        path: the file, with the columns client_id, sample_path, label_name, label_id
    """
    file = Path(path).expanduser()
    samples = read_map(file)
    if len(samples) != len(rows):
        raise FedskewError(
            f"{file} maps {len(samples)} rows, and the data has {len(rows)} training rows: give the map of these data"
        )
    _check_labels(file, np.array([sample.label_id for sample in samples]), rows)
    names: dict[str, int] = {}
    owner = np.empty(len(samples), dtype=np.int64)
    for place, sample in enumerate(samples):
        owner[place] = names.setdefault(sample.client, len(names))
    if clients not in (0, len(names)):
        raise FedskewError(
            f"skew fedscale: {file} names {len(names)} clients, and {clients} are asked for: leave clients out"
        )
    return Partition.from_owner(owner, len(names))


def _check_labels(file: Path, labels: Ints, rows: Rows) -> None:
    """Refuse a map whose classes are not those of the rows, which is that of other data or of another order."""
    if rows.target != "class":
        return
    wrong = np.flatnonzero(labels != rows.y)
    if len(wrong):
        first = int(wrong[0])
        raise FedskewError(
            f"{file}: line {first + 2} has label_id {labels[first]}, and training row {first} has class number "
            f"{rows.y[first]}: the map is that of other data, or of another order"
        )
