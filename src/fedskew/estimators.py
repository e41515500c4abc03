"""Estimators for scikit-learn: federated training behind ``fit`` and ``predict``."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)
from torch import nn

from fedskew.algorithms.contract import Algorithm
from fedskew.api import split, train
from fedskew.core.errors import FedskewError
from fedskew.core.streams import Floats
from fedskew.data.dataset import Dataset, Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.sharing import WHOLE
from fedskew.models.build import ModelSpec
from fedskew.runs.run import Run
from fedskew.skew.partitioning import SkewSpec

_AT_ONCE = 4096  # rows that go through a model together


class _FederatedEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share; ``_task`` is the task they train."""

    _task = ""

    def __init__(
        self,
        algorithm: "str | Mapping[str, Any] | Algorithm" = "fedavg",
        model: ModelSpec = "mlp",
        *,
        rounds: int = 50,
        epochs: int = 1,
        batch_size: int = 32,
        lr: float = 0.05,
        skew: SkewSpec = "iid",
        clients: int = 1,
        settings: "Mapping[str, Any] | None" = None,
        random_state: int = 0,
    ) -> None:
        self.algorithm = algorithm
        self.model = model
        self.rounds = rounds
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.skew = skew
        self.clients = clients
        self.settings = settings
        self.random_state = random_state

    def _train(self, data: Dataset, groups: Any) -> None:
        """Train on all rows, and keep the models that clients use."""
        own: dict[str, Any] = {}
        for name in ("rounds", "epochs", "batch_size", "lr"):
            own[name] = getattr(self, name)
        further = dict(self.settings or {})
        if twice := sorted({*own, "seed", "task", "folder"} & further.keys()):
            raise FedskewError(
                f"settings has {', '.join(twice)}, which the estimator sets itself: use its own parameters"
            )
        own |= {"task": self._task, "seed": self.random_state, "folder": False}
        quiet = {"eval_every": self.rounds, **further}  # nobody looks at scores on the way
        run = train(self._federation(data, groups), self.model, self.algorithm, **own, **quiet)
        self.shared_model_ = run.shared_model
        self.model_ = None
        if run.shared_model == WHOLE:
            self.model_ = _for_use(run.model)
        self.client_models_ = self._models_of(run)

    def _federation(self, data: Dataset, groups: Any) -> Federation:
        """Return one client per group, or those of the skew."""
        self.groups_: NDArray[Any] | None = None
        if groups is None:
            return split(data, self.skew, self.clients, seed=self.random_state)
        groups = column_or_1d(groups)
        check_consistent_length(data.train.x, groups)
        self.groups_, owner = np.unique(groups, return_inverse=True)
        return Federation(data, Partition.from_owner(owner, len(self.groups_)))

    def _models_of(self, run: Run) -> dict[int, nn.Module]:
        """Return the model that each group uses, where it is not the shared one."""
        models: dict[int, nn.Module] = {}
        if self.groups_ is None or not run.server.personalised:
            return models
        for client in range(len(self.groups_)):
            models[client] = _for_use(run.model_of(client))
        return models

    def _outputs(self, X: Any, groups: Any) -> Floats:
        """Return what the models answer to rows: those of their groups, where these have models of their own."""
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        if groups is None or not self.client_models_:
            return _answers(self._shared(), rows)
        groups = column_or_1d(groups)
        check_consistent_length(rows, groups)
        found: Floats | None = None
        for group in np.unique(groups):
            here = np.flatnonzero(groups == group)
            answers = _answers(self._model_of(group), rows[here])
            if found is None:
                found = np.empty((len(rows), *answers.shape[1:]))
            found[here] = answers
        assert found is not None
        return found

    def _model_of(self, group: Any) -> nn.Module:
        """Return the model of a group; the shared one for a group that was not there in ``fit``."""
        assert self.groups_ is not None
        known = np.flatnonzero(self.groups_ == group)
        if len(known):
            return self.client_models_[int(known[0])]
        return self._shared()

    def _shared(self) -> nn.Module:
        if self.model_ is None:
            raise FedskewError(
                f"{self.algorithm}: {self.shared_model_}, so that there is no model for rows of other clients: give "
                "predict the groups= of fit"
            )
        return self.model_


class FederatedClassifier(ClassifierMixin, _FederatedEstimator):  # type: ignore[misc]
    """A classifier that is trained by federated learning.

    ``fit(X, y, groups=sites)`` makes one client of each group; without groups, rows are divided by ``skew`` among
    ``clients``. ``predict(X, groups=sites)`` uses the model of each group, where the method gives clients models of
    their own, and the shared model otherwise. In a pipeline or a search over parameters, groups are routed as metadata:
    ``FederatedClassifier().set_fit_request(groups=True)``. Features are taken as they are: put a ``StandardScaler``
    before.

    Args:
        algorithm: a name with options, or an algorithm such as ``FedProx(mu=0.1)``
        model: a name with options, a function of (shape, classes), or any module
        rounds: how many rounds are trained
        epochs: local epochs per round
        batch_size: rows per local step
        lr: learning rate of the clients
        skew: how rows are divided where no groups are given
        clients: among how many clients they are divided
        settings: further settings of ``fedskew.train``, by name
        random_state: seed of partition, model and batches

    Attributes:
        classes_: the classes, sorted
        n_features_in_: how many features ``fit`` has seen
        feature_names_in_: their names, where X is a data frame
        groups_: the groups, one per client; None without
        model_: the shared model, None where clients share no whole one
        client_models_: the models that groups use, where the method gives them some

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> FederatedClassifier("fedprox:mu=0.1", "logreg", clients=3).fit(X, y).score(X, y) > 0.9
    True
    """

    _task = "classification"

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train on rows and their classes, with one client per group."""
        X, y = validate_data(self, X, y, dtype=np.float32, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"FederatedClassifier needs at least two classes, and y has 1 class: {self.classes_[0]!r}"
            )
        rows = Rows(X, labels.astype(np.int64))
        names = tuple(map(str, range(len(self.classes_))))
        self._train(Dataset("arrays", rows, rows.take(np.arange(1)), names), groups)
        return self

    def predict_proba(self, X: Any, groups: Any = None) -> Floats:
        """Return the probability of each class; it is not calibrated."""
        outputs = torch.from_numpy(self._outputs(X, groups))
        return np.asarray(torch.softmax(outputs, -1).numpy())

    def predict(self, X: Any, groups: Any = None) -> NDArray[Any]:
        """Return the class of each row."""
        best = self._outputs(X, groups).argmax(1)
        return np.asarray(self.classes_[best])


class FederatedRegressor(RegressorMixin, _FederatedEstimator):  # type: ignore[misc]
    """A regressor that is trained by federated learning, as ``FederatedClassifier`` is.

    The target is brought to mean 0 and deviation 1 over all rows for training.

    Args:
        algorithm: a name with options, or an algorithm such as ``FedProx(mu=0.1)``
        model: a name with options, a function of (shape, classes), or any module
        rounds: how many rounds are trained
        epochs: local epochs per round
        batch_size: rows per local step
        lr: learning rate of the clients
        skew: how rows are divided where no groups are given
        clients: among how many clients they are divided
        settings: further settings of ``fedskew.train``, by name
        random_state: seed of partition, model and batches

    Attributes:
        n_features_in_: how many features ``fit`` has seen
        feature_names_in_: their names, where X is a data frame
        groups_: the groups, one per client; None without
        model_: the shared model, None where clients share no whole one
        client_models_: the models that groups use, where the method gives them some

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> FederatedRegressor(clients=5, skew="quantity:alpha=1").fit(10 * X, y).score(10 * X, y) > 0.4
    True
    """

    _task = "regression"

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train on rows and their numbers, with one client per group."""
        X, y = validate_data(self, X, y, dtype=np.float32, ensure_min_samples=2, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        self._mean = float(y.mean())
        self._deviation = float(y.std()) or 1.0
        rows = Rows(X, ((y - self._mean) / self._deviation).astype(np.float32))
        self._train(Dataset("arrays", rows, rows.take(np.arange(1)), ()), groups)
        return self

    def predict(self, X: Any, groups: Any = None) -> Floats:
        """Return the number of each row."""
        outputs = self._outputs(X, groups).reshape(-1)
        return outputs * self._deviation + self._mean


def _for_use(model: nn.Module) -> nn.Module:
    """Return a model in double precision, so that an answer does not depend on the rows beside it."""
    return model.cpu().double().eval()


@torch.no_grad()
def _answers(model: nn.Module, rows: Floats) -> Floats:
    answers = [model(some) for some in torch.split(torch.from_numpy(rows), _AT_ONCE)]
    return np.asarray(torch.cat(answers).numpy())
