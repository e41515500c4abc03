"""scikit-learn's diabetes table: the regression data set that is always there."""

import numpy as np

from fedskew.data.dataset import Rows, Split
from fedskew.data.readers.arrays import Arrays, everything
from fedskew.data.source import Source, TestShare, register
from fedskew.data.sources.bundled_table import bundled_table

_COLUMNS = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")


@register(
    "diabetes", Source("states no licence of its own, part of scikit-learn; Efron et al. 2004")
)
def diabetes(*, test: TestShare = 0.2, split_seed: int = 0, standardize: bool = True) -> Arrays:
    """Progression of diabetes after a year, a number from 25 to 346; 442 patients, 10 columns, built in (scikit-learn).

    The target is a number, for task=regression, and stays in its own units.

    Args:
        test: share of the rows held out for test, in proportion within ten bins of the target
        split_seed: seed of the split
        standardize: bring every column to mean 0 and deviation 1
    """
    columns = bundled_table("diabetes_data_raw.csv.gz")
    progression = bundled_table("diabetes_target.csv.gz")
    scaled = None
    if standardize:
        scaled = everything(columns)
    return Arrays(
        train=Rows(columns, progression.astype(np.float32)),
        test=Split("test", test, split_seed),
        classes=(),
        features=_COLUMNS,
        scaled=scaled,
    )
