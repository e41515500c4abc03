"""What every topology returns for a round."""

from dataclasses import dataclass, field

from fedskew.core.streams import Ints
from fedskew.topology.client_table import ClientTable, Row


@dataclass(frozen=True)
class RoundOutcome:
    """The outcome of a round, for every topology.

    Args:
        client_rows: one row for the table of clients for each client that did something
        invited: the clients that were invited to train
        began: simulated second at which the round began, and likewise when it ended
        clients: how many clients were invited, or would have been had they not measured too late
        excluded: how many updates were not valid
        bytes_down: bytes received by clients that are not in the client rows; bytes_up likewise for bytes sent
        metrics: columns that the topology adds to the table of rounds
    """

    client_rows: ClientTable
    invited: Ints
    began: float
    ended: float
    clients: int
    excluded: int
    dropped: int
    late: int
    bytes_down: int = 0
    bytes_up: int = 0
    metrics: Row = field(default_factory=dict)
