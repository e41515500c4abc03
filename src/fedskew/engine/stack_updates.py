"""What the clients of a stack have at the end of a round: what they send, what they keep, and the report."""

from fedskew.algorithms.contract import Report, difference
from fedskew.core.streams import Floats, Ints
from fedskew.core.trees import Tensors, Tree, copied, rows_of, without
from fedskew.engine.job import LOCAL, OPTIMIZER, STATE, Job, Updates, parts, prefixed
from fedskew.engine.plan import Plan
from fedskew.engine.stack_hooks import RoundState


def round_updates(
    job: Job,
    plan: Plan,
    state: RoundState,
    counts: Ints,
    measured: dict[str, Floats],
    *,
    overwritten: bool,
    sends_difference: bool,
) -> Updates:
    """Return the results of a round.

    Args:
        job: the job
        plan: the plan of the round
        state: what the round has left
        counts: batch sizes ``[step, client]``
        measured: numbers of each client that were measured in the round
        overwritten: whether the next round overwrites the state, so that results must be copies
        sends_difference: whether the method sends how the weights have changed, and keeps nothing of its own
    """
    sent = {name: value for name, value in state.buffers.items() if name not in job.unsent}
    trained = dict(state.params)
    for name in job.frozen_names & state.buffers.keys():
        trained[name] = state.buffers[name]
    results: Tree = {
        **prefixed(state.payload, "payload."),
        "buffers": sent,
        **prefixed(_kept(job, state), "kept."),
    }
    if overwritten:
        here = slice(len(plan.clients))
        results = copied(rows_of(results, here))
        trained = rows_of({"": trained}, here)[""]
    if sends_difference:
        results["payload.delta"] = _change(job, plan, state)
    loss, score = state.sums[:, : len(plan.clients)].cpu().numpy() / counts.sum(0)
    numbers = {**plan.numbers, **measured}
    report = Report(plan.clients, plan.sizes, plan.steps, loss, score, numbers)
    payload = without(parts(results, "payload."), job.unsent)
    return Updates(report, payload, results["buffers"], parts(results, "kept."), trained)


def _kept(job: Job, state: RoundState) -> Tree:
    """Return what clients keep: the method's state, tensors that never leave them, the optimiser's state."""
    kept = prefixed(state.kept, STATE)
    if job.local_names:
        everything = {**state.params, **state.buffers}
        kept[LOCAL] = {name: everything[name] for name in sorted(job.local_names)}
    if "optimizer_state" in job.algorithm.requires:
        kept |= prefixed(state.optimizer_state, OPTIMIZER)
    return kept


def _change(job: Job, plan: Plan, state: RoundState) -> Tensors:
    """Return how local training has changed the weights that clients send."""
    here = slice(len(plan.clients))
    ends = {}
    for name, value in state.params.items():
        if name not in job.unsent:
            ends[name] = value[here]
    begin = dict(state.begin)
    for name in state.own_begin:
        begin[name] = begin[name][here]
    return difference(ends, begin)
