"""The checkpoints of a run whose files are as they were written, by the manifests; no tensor is read for that."""

from fedskew.core.errors import FedskewError
from fedskew.core.manifest import Digest
from fedskew.runs.folder import CHECKPOINTS, FINAL, MODEL, SUMMARY, RunFolder, resume_command


def intact_checkpoints(
    disk: RunFolder, force: bool = False, latest: int | None = None
) -> dict[int, dict[str, Digest]]:
    """Return the files of each intact checkpoint by its round, the latest first; empty if there is no checkpoint.

    A damaged one is an error, unless a later one is intact, or with ``force`` any other. With ``latest`` only those up
    to that round count, if there are any.
    """
    problems: list[tuple[int, FedskewError]] = []
    intact: dict[int, dict[str, Digest]] = {}
    verified: dict[str, Digest] = {}
    for round in _rounds(disk, latest):
        try:
            intact[round] = _verified(disk, round, verified)
        except FedskewError as problem:
            problems.append((round, problem))
            continue
        verified |= intact[round]
    if problems:
        damaged_round, damage = problems[0]
        last = next(iter(intact), None)
        if last is None or (damaged_round > last and not force):
            raise FedskewError(f"{damage}: {_advice(disk, last)}")
    return intact


def _rounds(disk: RunFolder, latest: int | None) -> list[int]:
    """Return the rounds of the checkpoints that count, the latest first; of a finished run only its last."""
    rounds = disk.checkpoints.rounds()
    if latest is not None:
        rounds = [round for round in rounds if round <= latest] or rounds
    if not rounds and disk.finished:
        raise FedskewError(
            f"{disk.path / CHECKPOINTS} is gone; the finished run's result is in {SUMMARY} and {MODEL}"
        )
    if disk.finished:
        return [final_checkpoint(disk)]
    return rounds


def _verified(disk: RunFolder, round: int, verified: dict[str, Digest]) -> dict[str, Digest]:
    """Return the files of a checkpoint, with their digests; a file that is gone or damaged is an error.

    ``verified`` are those of later checkpoints.
    """
    path = disk.checkpoints.manifest(round)
    content = disk.manifest(f"{CHECKPOINTS}/{path.name}")
    files: dict[str, Digest] = content["files"]
    state = f"{CHECKPOINTS}/{round:08d}.safetensors"
    if content.get("round") != round or state not in files:
        raise FedskewError(f"{path} is damaged: it is not that of round {round}")
    for name, digest in files.items():
        if verified.get(name) != digest:
            disk.verify({name: digest})
    return files


def _advice(disk: RunFolder, intact: int | None) -> str:
    """Return what to do about a damaged checkpoint, given the round of the last intact one."""
    if disk.finished:
        return f"put it back; the finished run's result is in {SUMMARY} and {MODEL}"
    if intact is None:
        return f"put it back, or remove {CHECKPOINTS} to start again from the first round"
    return (
        f"put it back, or resume from the checkpoint of round {intact}, which is intact: "
        f"{resume_command(disk.path)} --force"
    )


def final_checkpoint(disk: RunFolder) -> int:
    """Return the round of the checkpoint with which a finished run ended.

    Raise an error if it is gone or changed: the one before has older models of clients.
    """
    rounds = disk.checkpoints.rounds()
    if not rounds:
        raise FedskewError(
            f"{disk.path / CHECKPOINTS} is gone, and with it the clients' own models"
        )
    recorded = disk.manifest(FINAL).get("checkpoint")
    if recorded is None:  # a version up to 0.2.0 wrote the folder
        if rounds[0] < disk.read_json(SUMMARY)["rounds"]:
            raise FedskewError(
                f"{disk.path / CHECKPOINTS} lacks the checkpoint of the last round: put it back"
            )
        return rounds[0]
    round = int(recorded["round"])
    name = f"{CHECKPOINTS}/{round:08d}.json"
    try:
        disk.verify({name: Digest(recorded["size"], recorded["sha256"])})
    except FedskewError as problem:
        raise FedskewError(
            f"{problem}: it names the models of clients after the last round, put it back"
        ) from None
    return round
