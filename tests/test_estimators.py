"""The estimators of scikit-learn: its own checks, groups as clients, pipelines, searches, models of groups."""

import pickle
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, GroupKFold, LeaveOneGroupOut, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedskew as fs
from fedskew.core.errors import FedskewError


@parametrize_with_checks([fs.FederatedClassifier(rounds=30), fs.FederatedRegressor(rounds=30)])
@pytest.mark.filterwarnings("ignore")
def test_what_scikit_learn_expects(estimator, check):
    check(estimator)


@pytest.fixture(autouse=True)
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return digits of six sites, one of which writes its labels upside down: 9 for 0, 8 for 1, …"""
    X, y = load_digits(return_X_y=True)
    sites = np.array(["a", "b", "c", "d", "e", "f"])[np.arange(len(y)) % 6]
    y = np.where(sites == "f", 9 - y, y)
    return X / 16, y, sites


def test_groups_are_clients(digits):
    X, y, sites = digits
    model = fs.FederatedClassifier(model="logreg", rounds=20, lr=0.5).fit(X, y, groups=sites)
    assert model.groups_.tolist() == ["a", "b", "c", "d", "e", "f"]
    assert model.client_models_ == {}
    same = fs.split(fs_dataset(X, y, sites), "natural", seed=0)
    run = fs.train(same, "logreg", rounds=20, lr=0.5, folder=False, eval_every=20)
    probability = model.predict_proba(X[:50])
    found = run.predict(X[:50].astype(np.float32), proba=True)
    np.testing.assert_array_equal(model.predict(X[:50]), found["prediction"].astype(int))
    np.testing.assert_allclose(probability.sum(1), 1.0)


def fs_dataset(X: np.ndarray, y: np.ndarray, sites: np.ndarray) -> fs.Dataset:
    from fedskew.data.dataset import Dataset, Rows

    rows = Rows(X.astype(np.float32), y, np.unique(sites, return_inverse=True)[1])
    names = tuple(map(str, range(10)))
    return Dataset("arrays", rows, rows.take(np.arange(1)), names, groups=tuple("abcdef"))


def test_groups_use_their_own_models(digits):
    X, y, sites = digits
    ditto = fs.FederatedClassifier("ditto:lam=0.1", rounds=40, epochs=3, lr=0.2).fit(
        X, y, groups=sites
    )
    own = (ditto.predict(X, groups=sites) == y)[sites == "f"].mean()
    shared = (ditto.predict(X) == y)[sites == "f"].mean()
    assert own > 0.9
    assert shared < 0.5
    order = np.random.default_rng(0).permutation(len(y))
    np.testing.assert_array_equal(
        ditto.predict(X[order], groups=sites[order]), ditto.predict(X, groups=sites)[order]
    )
    newcomer = ditto.predict(X[:5], groups=["new"] * 5)
    np.testing.assert_array_equal(newcomer, ditto.predict(X[:5]))


def test_rows_of_others_need_a_shared_model(digits):
    X, y, sites = digits
    fedper = fs.FederatedClassifier("fedper", rounds=2).fit(X, y, groups=sites)
    fedper.predict(X[:5], groups=sites[:5])
    for groups in (None, ["new"] * 5):
        with pytest.raises(FedskewError, match="give predict the groups= of fit"):
            fedper.predict(X[:5], groups=groups)


def test_a_search_over_folds_of_whole_clients(digits):
    X, y, sites = digits
    model = fs.FederatedClassifier("fedprox", "logreg", rounds=5).set_fit_request(groups=True)
    grid = {"lr": [0.001, 0.5], "algorithm": ["fedprox:mu=0", "fedprox:mu=1"]}
    search = GridSearchCV(model, grid, cv=GroupKFold(3)).fit(X, y, groups=sites)
    assert search.best_params_["lr"] == 0.5
    assert search.best_estimator_.groups_.tolist() == ["a", "b", "c", "d", "e", "f"]


def test_new_clients_in_a_pipeline(digits):
    X, y, sites = digits
    model = fs.FederatedClassifier(model="logreg", rounds=10).set_fit_request(groups=True)
    pipeline = make_pipeline(StandardScaler(), model)
    scores = cross_val_score(
        pipeline, X, y, cv=LeaveOneGroupOut(), params={"groups": sites}, error_score="raise"
    )
    assert len(scores) == 6
    assert scores[:5].min() > 0.7
    assert scores[5] < 0.3, "the site with other labels is not like the others"


def test_frames_copies_and_pickles(digits):
    X, y, sites = digits
    frame = pd.DataFrame(X).add_prefix("pixel ")
    model = fs.FederatedClassifier("apfl", rounds=3).fit(frame, y, groups=pd.Series(sites))
    assert model.feature_names_in_[3] == "pixel 3"
    back = pickle.loads(pickle.dumps(model))  # noqa: S301 - made here
    np.testing.assert_array_equal(
        back.predict_proba(frame, groups=sites), model.predict_proba(frame, groups=sites)
    )
    assert clone(model).get_params() == model.get_params()
    assert not hasattr(clone(model), "classes_")


def test_numbers(digits):
    X, _, sites = digits
    y = 1e4 + 300 * (X @ np.linspace(0, 1, 64))
    model = fs.FederatedRegressor(model="logreg", rounds=100, lr=0.05).fit(X, y, groups=sites)
    assert model.score(X, y) > 0.9


def test_what_is_refused(digits):
    X, y, sites = digits
    with pytest.raises(ValueError, match="at least two classes, and y has 1 class"):
        fs.FederatedClassifier().fit(X, np.zeros(len(y)))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fs.FederatedClassifier().fit(X, y, groups=sites[:-1])
    with pytest.raises(FedskewError, match="settings has rounds, which the estimator sets itself"):
        fs.FederatedClassifier(settings={"rounds": 3}).fit(X, y)
    with pytest.raises(FedskewError, match="unknown setting 'momentom'"):
        fs.FederatedClassifier(settings={"momentom": 0.9}).fit(X, y)


def test_nothing_of_it_is_imported_before_it_is_used():
    code = (
        "import sys, fedskew; print('sklearn' in sys.modules, 'fedskew.estimators' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
