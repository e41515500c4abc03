"""The parts of a server that follow from its settings: the rows that are trained on, the engine, threads, rounds."""

from fedskew.algorithms.contract import Algorithm, Weights
from fedskew.algorithms.first_gradient import begins_with_gradients
from fedskew.algorithms.topologies import Buffered, EdgeServers, Graph, Scheduled
from fedskew.core.config import Settings
from fedskew.data.dataset import Rows
from fedskew.data.federation import Federation
from fedskew.data.partition import Partition
from fedskew.engine.cost import measure_cost
from fedskew.engine.device import usable_cores
from fedskew.engine.job import Engine, Job
from fedskew.engine.loop import Loop
from fedskew.engine.stacked import Stacked
from fedskew.server.clients import Clients, jobs_of
from fedskew.server.label_holders import LabelHolders
from fedskew.server.refusals import trains_single_samples
from fedskew.server.trained_models import TrainedModels
from fedskew.topology.buffered import BufferedRounds
from fedskew.topology.context import RoundContext
from fedskew.topology.edge_rounds import HierarchicalRounds
from fedskew.topology.factor_rounds import FactorRounds
from fedskew.topology.graph import GraphRounds
from fedskew.topology.mixed import MixedRounds
from fedskew.topology.parallel import ParallelRounds
from fedskew.topology.run_state import RunState
from fedskew.topology.scheduled_rounds import ScheduledRounds
from fedskew.topology.shards import Sharded, ShardTrainer

_SHARD_MEMORY = 2.0  # gigabytes


def partition_to_train_on(fed: Federation, algorithm: Algorithm) -> Partition:
    """Return which rows each client trains on; one client has all of them where the method pools them."""
    if "pooled_rows" in algorithm.requires:
        return fed.partition.pooled()
    return fed.partition


def rows_to_train_on(
    fed: Federation, trained_on: Partition, algorithm: Algorithm, seed: int
) -> tuple[Rows, Partition]:
    """Return the training rows and whose they are; some are changed where the method simulates hostile clients."""
    if not algorithm.poison:
        return fed.train, trained_on
    return algorithm.poison.poisoned(fed.train, trained_on, fed.data.classes, seed)


def make_engine(settings: Settings) -> Engine:
    """Return the engine of the settings; with workers its stacks must not depend on what else is on a GPU."""
    if settings.engine == "loop":
        return Loop()
    memory = settings.memory
    if settings.workers and memory is None:
        memory = _SHARD_MEMORY
    if memory is None:
        return Stacked(None)
    return Stacked(int(memory * 2**30))


def divided(engine: Engine, job: Job, weights: Weights, settings: Settings) -> Engine:
    """Return the engine of the run: with workers, one that divides the clients of a round."""
    if settings.workers is None:
        return engine
    return Sharded(ShardTrainer(engine, jobs_of(job), weights), settings.test_trained)


def useful_threads(job: Job, settings: Settings, per_round: int) -> int:
    """Return how many CPU threads the measured rule suggests for a round."""
    batch = settings.batch_size
    if trains_single_samples(job.algorithm):
        batch = 1
    at_once = per_round
    if isinstance(job.algorithm.topology(0), Scheduled):
        at_once = 1
    return measure_cost(job.model, job.x, batch).threads(at_once, usable_cores())


def rounds_of(
    context: RoundContext,
    state: RunState,
    clients: Clients,
    labels: LabelHolders,
    trained: TrainedModels,
) -> ParallelRounds | ScheduledRounds | MixedRounds:
    """Return what runs the rounds of the method's topology."""
    topology = context.algorithm.topology(0)
    if context.algorithm.mixes_rounds:
        return MixedRounds(
            ScheduledRounds(context, state, labels.holdings),
            ParallelRounds(context, state, clients, trained.observe),
        )
    if isinstance(topology, Scheduled):
        return ScheduledRounds(context, state, labels.holdings)
    if isinstance(topology, Buffered):
        return BufferedRounds(context, state, clients, trained.observe, topology.buffer_size)
    if isinstance(topology, Graph):
        return GraphRounds(context, state, clients, trained.observe)
    if isinstance(topology, EdgeServers):
        return HierarchicalRounds(context, state, clients, trained.observe, topology)
    if begins_with_gradients(context.algorithm):
        return FactorRounds(context, state, clients, trained.observe)
    return ParallelRounds(context, state, clients, trained.observe)
