"""What a method comes to with this model, these settings and these clients, said before training."""

from typing import TypeVar

from fedskew.algorithms.contract import Algorithm
from fedskew.algorithms.fedbn import FedBN, MFedBN
from fedskew.algorithms.fedrep import FedRep
from fedskew.algorithms.privacy import DifferentialPrivacy
from fedskew.batchnorm.masked import has_batch_norm
from fedskew.server.refusals import weights_of
from fedskew.server.server import Server

Method = TypeVar("Method", bound=Algorithm)


def cautions(server: Server) -> list[str]:
    """Return a sentence for every choice of a run that has no effect, or makes its method another one."""
    found = (_of_batch_norm(server), _of_one_epoch(server), _of_equal_clients(server))
    return [sentence for sentence in found if sentence]


def _of_batch_norm(server: Server) -> str:
    """Say what FedBN and MFedBN are where there is no BatchNorm to keep."""
    if has_batch_norm(server.job.model):
        return ""
    fix = "use a model with BatchNorm, such as tabular or resnet9, or another method"
    modified = _part(server.algorithm, MFedBN)
    if modified is not None:
        return (
            f"mfedbn treats BatchNorm in a way of its own, and the model has none: here it is fedavg with a learning "
            f"rate of {modified.eta:g} on the server; {fix}"
        )
    if _part(server.algorithm, FedBN) is not None:
        return f"fedbn keeps BatchNorm with each client, and the model has none: here it is fedavg; {fix}"
    return ""


def _of_one_epoch(server: Server) -> str:
    """Say what FedRep is where there is no epoch for the head alone."""
    if _part(server.algorithm, FedRep) is None or server.settings.epochs > 1:
        return ""
    return (
        "fedrep trains the head alone in all local epochs but the last, and with epochs=1 head and other layers "
        "together: here it is fedper; use epochs=2 or more"
    )


def _of_equal_clients(server: Server) -> str:
    """Say that noise for privacy needs clients that count alike, where their rows would make them differ."""
    algorithm = server.algorithm
    sizes = server.trained_on.sizes
    if _part(algorithm, DifferentialPrivacy) is None or sizes.min() == sizes.max():
        return ""
    for kind in algorithm.parts:
        method = _part(algorithm, kind)
        if method is None or kind.addition or weights_of(method, server.settings) != "size":
            continue
        return (
            f"dp counts every client equally: weights=size does not apply, though clients hold {sizes.min():,} to "
            f"{sizes.max():,} rows; weights=uniform says what is done"
        )
    return ""


def _part(algorithm: Algorithm, kind: type[Method]) -> Method | None:
    """Return this very method, if the algorithm is it or is composed of it; a class derived from it is another."""
    if kind not in (algorithm.parts or (type(algorithm),)):
        return None
    return kind(**vars(algorithm.own(kind)))
