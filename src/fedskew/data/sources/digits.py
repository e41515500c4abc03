"""scikit-learn's small digits, which need no download."""

import numpy as np

from fedskew.data.dataset import Rows, Split
from fedskew.data.readers.arrays import Arrays, PixelScale, scaled_pixels
from fedskew.data.source import Source, TestShare, register
from fedskew.data.sources.bundled_table import bundled_table


@register("digits", Source("CC BY 4.0 (UCI 80), part of scikit-learn; Alpaydin, Kaynak 1998"))
def digits(*, test: TestShare = 0.2, split_seed: int = 0, scale: PixelScale = "standard") -> Arrays:
    """Handwritten digits, 8x8 grey, 1,797 rows, built in (from scikit-learn).

    Args:
        test: share of the rows held out for test, in proportion within every class
        split_seed: seed of the split
        scale: pixels of mean 0 and deviation 1 over the training rows (standard), or from 0 to 1 (unit)
    """
    table = bundled_table("digits.csv.gz", ",")
    train = Rows(table[:, :-1].reshape(-1, 1, 8, 8), table[:, -1].astype(np.int64))
    return Arrays(
        train=train,
        test=Split("test", test, split_seed),
        classes=tuple("0123456789"),
        scaled=scaled_pixels(train.x, scale),
        full_scale=16,
    )
