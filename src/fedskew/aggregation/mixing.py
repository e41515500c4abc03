"""Mixtures of clients' heads: the shares with the least variance and bias together."""

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import nnls

from fedskew.core.streams import Floats

_JITTER = 1e-12  # relative to the largest entry, where a quadratic form is not positive definite


def least_variance_shares(means: Floats, variances: Floats) -> Floats:
    """Return, a row for each client i, the shares a with the least ``sum_j a_j^2 v_j + ||sum_j a_j (h_i - h_j)||^2``.

    Shares are at least 0 and sum to 1. ``means`` has a row ``h`` for each client, ``variances`` are their ``v``.

    >>> least_variance_shares(np.array([[0.0], [0.0], [5.0]]), np.array([1.0, 1.0, 1.0]))[0].round(2)
    array([0.49, 0.49, 0.02])
    """
    result = []
    for mine in means:
        apart = mine - means
        form = np.diag(variances) + apart @ apart.T
        # Up to its sum, the solution is that of ``min b' F b / 2 - sum(b)`` with b at least 0
        lower = _root(form)
        target = solve_triangular(lower, np.ones(len(form)), lower=True)
        found, _ = nnls(lower.T, target)
        result.append(found / found.sum())
    return np.stack(result)


def _root(form: Floats) -> Floats:
    """Return the Cholesky factor of a quadratic form; clients without any variance make it semidefinite."""
    try:
        return np.asarray(np.linalg.cholesky(form), dtype=np.float64)
    except np.linalg.LinAlgError:
        jitter = max(float(form.max()) * _JITTER, 1e-300)
        return np.asarray(np.linalg.cholesky(form + jitter * np.eye(len(form))), dtype=np.float64)
