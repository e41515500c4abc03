"""A round in which clients do not train: they send the gradient at the weights with which the run begins."""

from dataclasses import dataclass

from fedskew.algorithms.contract import Algorithm, Requirement, View
from fedskew.algorithms.lora import LoRA
from fedskew.core.trees import Tree
from fedskew.models.layout import Layout


@dataclass(frozen=True)
class FirstGradient(Algorithm):
    """Clients send the negative gradient of their mean loss on all their rows, and the server takes the mean.

    It is no method to choose: ``fed-sb`` begins with such a round, on matrices that are 0 at first and added to the
    weights that it adapts. After the round, these matrices are the mean.

    >>> FirstGradient().requires
    frozenset({'full_gradient'})
    """

    @property
    def requires(self) -> frozenset[Requirement]:
        """Return what the method requires, and the gradient on all rows of a client."""
        return super().requires | {"full_gradient"}

    def trainable(self, layout: Layout, epoch: int, epochs: int) -> frozenset[str]:
        """Return nothing: the one step that an engine runs changes no weight."""
        return frozenset()

    def payload(self, view: View) -> Tree:
        """Return the negative gradient as the update."""
        return {"delta": {name: -value for name, value in view.full_gradient.items()}}


def begins_with_gradients(algorithm: Algorithm) -> bool:
    """Return whether a first round of gradients finds the factors of a method's adapters."""
    adapters = algorithm.adapters
    return adapters is not None and adapters.trains_r


def asks_for_first_gradient(algorithm: Algorithm) -> Algorithm:
    """Return how clients send their first gradients: with the additions of a method, adapters aside.

    So updates are compressed, made private, attacked and combined in that round as in every other.

    >>> from fedskew.algorithms.contract import resolve
    >>> asks_for_first_gradient(resolve("fedprox:mu=1 + quantize:bits=4 + lora")).label()
    'FirstGradient + quantize'
    """
    first: Algorithm = FirstGradient()
    for part in algorithm.parts:
        if part.addition and not issubclass(part, LoRA):
            first = first + part(**vars(algorithm.own(part)))
    return first
