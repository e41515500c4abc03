"""The trees of the two-sample test are those of scikit-learn's forest."""

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesClassifier

from fedskew.heterogeneity.two_sample import TREES, _scored


@pytest.mark.parametrize("seed", [0, 7, 2**31 - 2])
def test_scores_have_the_bits_of_the_forest(seed):
    stream = np.random.default_rng(seed)
    x = stream.normal(size=(80, 9)).astype(np.float32)
    x[:, 3] = np.round(x[:, 3])  # a column of few values
    positive = x[:, 0] + stream.normal(size=80) > 0.5
    left = stream.normal(size=(33, 9)).astype(np.float32)
    forest = ExtraTreesClassifier(TREES, min_samples_leaf=3, random_state=seed, n_jobs=1)
    expected = forest.fit(x, positive).predict_proba(left)[:, 1]
    scores = _scored(x, positive, left, seed)
    assert scores.tobytes() == expected.tobytes()
    assert len(np.unique(scores)) > 10
