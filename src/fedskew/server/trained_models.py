"""Models of clients right after local training, which are evaluated at the end of their round."""

from collections.abc import Mapping

from fedskew.core.config import Settings
from fedskew.core.trees import Tensors
from fedskew.engine.job import LOCAL, Updates
from fedskew.server.evaluation import OWN_TESTED
from fedskew.topology.run_state import RunState


def evaluation_due(settings: Settings, round: int) -> bool:
    """Return whether models are evaluated after so many rounds."""
    return round % settings.eval_every == 0 or round == settings.rounds


class TrainedModels:
    """The models of some clients of the current round, if the settings ask for their scores."""

    def __init__(self, settings: Settings, state: RunState) -> None:
        self.settings = settings
        self.state = state
        self._models: dict[int, Tensors] = {}

    def observe(self, updates: Updates) -> None:
        """Store some clients' models after local training until the round is evaluated."""
        due = evaluation_due(self.settings, self.state.round + 1)
        if not self.settings.test_trained or not due:
            return
        everything = {**updates.trained, **updates.buffers, **updates.kept.get(LOCAL, {})}
        for i, client in enumerate(updates.report.clients.tolist()):
            if len(self._models) < OWN_TESTED:
                self._models[client] = {
                    name: value[i].clone() for name, value in everything.items()
                }

    def take(self) -> Mapping[int, Tensors]:
        """Return the models by the numbers of their clients; the next round begins without any."""
        models = self._models
        self._models = {}
        return models
