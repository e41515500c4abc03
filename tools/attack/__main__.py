"""Lies, faults and kills against a server and nodes that are real processes on this machine, and what became of them.

    python tools/attack [--kills 20] [--only NAME ...]

Every attack says what was tried and whether it was accepted, whether anything crashed, and whether the result is the
one of an honest run, to the bit of its tables. It takes about half an hour, so it is no part of ``make test``.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import commands  # noqa: E402
from hooks import BYTES, OBJECTS, SCORES, UPDATES  # noqa: E402
from tests.deploy.machines import Machines, started, until  # noqa: E402
from tests.deploy.silos import NAMES, SilosInProcess, write_silos  # noqa: E402

import fedskew as fs  # noqa: E402

LIAR = 2
_ATTACKED = """from attack_hooks import attacking
from fedskew.deploy.flower_grid import client_app, none_too_large
from fedskew.deploy.silo_node import answer

app = client_app(none_too_large(attacking(answer)))
"""


class Campaign:
    """A server and three nodes, of which the last may be hostile, and what was found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machines = Machines(folder, write_silos(folder, numbers=False))
        self.found: list[tuple[str, bool, str]] = []
        self.package = self._hostile_package()

    def _hostile_package(self) -> Path:
        """Write a copy of the package whose nodes attack."""
        place = self.folder / "hostile"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src" / "fedskew", place / "fedskew", ignore=ignored)
        (place / "fedskew" / "deploy" / "client_app.py").write_text(_ATTACKED)
        shutil.copy(Path(__file__).with_name("hooks.py"), place / "attack_hooks.py")
        return place

    def note(self, what: str, good: bool, said: str = "") -> None:
        """Print and keep what became of an attack."""
        verdict = "held"
        if not good:
            verdict = "BROKEN"
        print(f"{verdict:7}{what}  {said}", flush=True)
        self.found.append((what, good, said))

    @contextmanager
    def serving(self, nodes: int = 3) -> Iterator[Machines]:
        """Start a server with keys, and register the keys of all nodes."""
        machines = self.machines
        if not (self.folder / "keys").exists():
            keys = ",".join([*NAMES, "fourth"])
            machines.fedskew("keys", "keys", "--host", "127.0.0.1", "--nodes", keys)
        with started(machines):
            machines.deploy("first")
            for name in (*NAMES, "fourth"):
                machines.do("flwr", "supernode", "register", f"keys/nodes/{name}.pub")
            for number, name in enumerate(NAMES[:nodes]):
                machines.start_node(number, name)
            yield machines

    def hostile(self, plan: dict[str, list[str]]) -> None:
        """Let the last node go by a plan from now on."""
        path = self.folder / "plan.json"
        path.with_suffix(".count").unlink(missing_ok=True)
        path.write_text(json.dumps(plan))
        name = NAMES[LIAR]
        if name in self.machines.running:
            self.machines.stop(name)
        around = {"ATTACK": str(path), "PYTHONPATH": str(self.package)}
        self.connect(name, **around)

    def connect(self, name: str, **around: str) -> None:
        """Start the last node, and wait until the server has let it in."""
        before = 0
        if (self.folder / f"{name}.log").exists():
            before = len(self.machines.said(name))
        self.machines.start_node(LIAR, name, **around)
        until(
            "the node is let in", lambda: "SuperNode ID" in self.machines.said(name)[before:], 150
        )

    def run(self, name: str, **settings: Any) -> str:
        """Deploy an experiment, run it to its end, and return what it says."""
        self.machines.deploy(name, **settings)
        return self.machines.run(name)

    def table(self, name: str, file: str = "rounds.csv") -> Any:
        """Return a table of a run."""
        import pandas as pd

        return pd.read_csv(self.folder / name / "run" / file)

    def alone(self, name: str, silent: set[int], **settings: Any) -> Any:
        """Return the same run in this process, in which some nodes are silent in all rounds."""
        import warnings

        from fedskew.core.config import Experiment, read_file
        from fedskew.deploy.deployment import run_on_nodes
        from fedskew.deploy.remote_clients import Nodes

        class Silent(SilosInProcess):
            def ask(self, requests: Any, about: Any, *patience: Any) -> dict[int, bytes]:
                answers = super().ask(requests, about, *patience)
                if self.rounds[-1] in ("Train", "Evaluate"):
                    for client in silent:
                        answers.pop(client, None)
                return answers

        values = read_file(self.folder / f"{name}.toml")
        folder = self.folder / f"{name}-alone"
        silos = Silent(list(self.machines.paths), self.folder / f"{name}-alone-state")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run_on_nodes(Nodes(silos), 3, Experiment(**values), folder)


def same_model(one: Any, other: Any) -> bool:
    """Return whether two runs have the same weights, to the bit."""
    mine, theirs = one.model.state_dict(), other.model.state_dict()
    return all(bool((mine[name] == theirs[name]).all()) for name in mine)


# -- lies --------------------------------------------------------------------------------------------------------------


def lies_in_rounds(campaign: Campaign) -> None:
    """Every round the last node lies about its update and its scores; the run is the one of the two others."""
    updates = [*BYTES, *OBJECTS, *UPDATES]
    scores = [*BYTES, *OBJECTS, *SCORES]
    rounds = max(len(updates), len(scores))
    with campaign.serving(nodes=2) as machines:
        campaign.hostile({"train": updates, "evaluate": scores})
        limit = ["--max-update-norm", "100"]
        machines.deploy("lies", options=limit, algorithm="fedavg", rounds=rounds, eval_every=1)
        told = machines.run("lies")
    if not (campaign.folder / "lies" / "run" / "summary.json").exists():
        campaign.note("lies in rounds", False, told[-500:])
        return
    table = campaign.table("lies")
    rows = int(table["scored_test_rows"].max())
    for number, name in enumerate(updates):
        campaign.note(f"update: {name}", bool(table["dropped"][number] == 1))
    for number, name in enumerate(scores):
        campaign.note(f"scores: {name}", bool(table["scored_test_rows"][number] < rows))
    crashed = "Traceback" in campaign.machines.said("server")
    campaign.note("no traceback at the server", not crashed)


def lies_before_rounds(campaign: Campaign) -> None:
    """Lies about tables and counts: the run does not begin."""
    with campaign.serving(nodes=2) as machines:
        for kind in ("describe", "countrows"):
            for number, name in enumerate([*BYTES, *OBJECTS]):
                campaign.hostile({kind: [name]})
                told = campaign.run(f"{kind}{number}", rounds=1)
                begun = (campaign.folder / f"{kind}{number}" / "run").exists()
                said = f"{NAMES[LIAR]}" in told or "clients did not answer" in told
                campaign.note(f"{kind}: {name}", not begun and said)
                if number >= 7:
                    break
        assert machines.running


# -- faults ------------------------------------------------------------------------------------------------------------


def deaths_in_every_phase(campaign: Campaign) -> None:
    """The last node is killed before and after each kind of answer; in rounds the others go on."""
    with campaign.serving() as machines:
        for when in ("before", "after"):
            for kind in ("train", "evaluate", "final", "describe", "countrows"):
                name = f"{kind}-{when}"
                campaign.hostile({kind: [f"{when}:die"]})
                before = time.monotonic()
                told = campaign.run(name, rounds=2, eval_every=1, timeout=12)
                seconds = time.monotonic() - before
                done = (campaign.folder / name / "run" / "summary.json").exists()
                in_rounds = kind in ("train", "evaluate", "final")
                good = done == in_rounds and (in_rounds or "did not answer" in told)
                words = ""
                if not good:
                    words = told[-700:]
                campaign.note(f"killed {when} {kind}", good, f"{seconds:.0f} s {words}")
                with suppress(KeyError):
                    machines.kill(NAMES[LIAR])


def _wait_for_nodes(machines: Machines, count: int) -> None:
    """Wait until so many nodes are online."""

    def online() -> bool:
        listed = machines.do("flwr", "supernode", "list", "--format", "json")
        return listed.count('"online"') >= count

    until("nodes online", online, 180)


def stopped_longer_than_the_timeout(campaign: Campaign) -> None:
    """A node is stopped by SIGSTOP for longer than the timeout, and goes on: it is left out meanwhile."""
    with campaign.serving() as machines:
        machines.deploy("paused", rounds=30, eval_every=30, timeout=8)
        began = machines.begin("paused")
        until("two rounds", lambda: machines.rounds("paused") >= 2)
        group = machines.running[NAMES[LIAR]].pid
        os.killpg(group, signal.SIGSTOP)
        told = campaign.machines.fedskew("status", "paused/run")
        waited = until(
            "the run waits",
            lambda: "waits for" in campaign.machines.fedskew("status", "paused/run"),
            30,
        )
        until("a round without it", lambda: campaign.table("paused")["dropped"].sum() >= 1, 60)
        os.killpg(group, signal.SIGCONT)
        began.communicate(timeout=300)
        dropped = campaign.table("paused")["dropped"]
        good = bool(0 < dropped.sum() < 10 and dropped.iloc[-1] == 0 and waited)
        campaign.note(
            "SIGSTOP beyond the timeout", good, f"{int(dropped.sum())} of 30 rounds {told[:0]}"
        )


def file_that_changes(campaign: Campaign) -> None:
    """The file of a node changes during a run, and comes back."""
    with campaign.serving() as machines:
        path = machines.paths[LIAR]
        content = path.read_text()
        machines.deploy("changed", rounds=30, eval_every=30)
        began = machines.begin("changed")
        until("two rounds", lambda: machines.rounds("changed") >= 2)
        path.write_text(content.replace("red", "blue", 3))
        until("a round without it", lambda: campaign.table("changed")["dropped"].sum() >= 1, 60)
        path.write_text(content)
        told = began.communicate(timeout=300)[0]
        dropped = campaign.table("changed")["dropped"]
        good = "holds other rows than when the run began" in told
        campaign.note(
            "a file that changes",
            bool(good and dropped.iloc[-1] == 0),
            f"{int(dropped.sum())} rounds",
        )


def full_state(campaign: Campaign) -> None:
    """The disk of a node's --state is full."""
    place = campaign.folder / f"state_{NAMES[LIAR]}"
    place.mkdir(exist_ok=True)
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=1m tmpfs '{place}'") != 0:
        campaign.note("a full --state", True, "not tried: only root can mount a small disk")
        return
    try:
        with campaign.serving(nodes=2) as machines:
            machines.start_node(LIAR, NAMES[LIAR])
            _wait_for_nodes(machines, 3)
            (place / "filler").write_bytes(b"x" * 900_000)
            with suppress(OSError), (place / "filler").open("ab") as file:
                while True:
                    file.write(b"x" * 512)
                    file.flush()
            told = campaign.run("full", algorithm="scaffold", rounds=2)
            words = [line for line in told.splitlines() if "is full: free some space" in line]
            campaign.note("a full --state", bool(words), " ".join(words) or told[:1500])
            (place / "filler").unlink()
            campaign.run("freed", algorithm="scaffold", rounds=2)
            campaign.note("and goes on after it is freed", machines.rounds("freed") == 2)
    finally:
        os.system(f"umount -l '{place}'")


def names_and_keys(campaign: Campaign) -> None:
    """Two nodes of one name; a key in use; a copied --state; another authority; a node of one row, of one class."""
    with campaign.serving() as machines:
        machines.start_node(1, "fourth", name="twin")
        machines.kill("twin")
        twin = [
            *["node", "--data"],
            str(machines.paths[1]),
            "--server",
            f"127.0.0.1:{machines.port}",
        ]
        twin += ["--key", "keys/nodes/fourth", "--ca", "keys/ca.crt", "--state", "twin"]
        machines.start("twin", *twin, "--name", NAMES[0])
        _wait_for_nodes(machines, 4)
        told = campaign.run("twins", nodes=4, rounds=1)
        campaign.note("two nodes of one name", f"several nodes are named {NAMES[0]}" in told)
        machines.stop("twin")
        shutil.copytree(campaign.folder / f"state_{NAMES[0]}", campaign.folder / "copied")
        copy = ["node", "--data", str(machines.paths[0]), "--server", f"127.0.0.1:{machines.port}"]
        copy += ["--key", f"keys/nodes/{NAMES[0]}", "--ca", "keys/ca.crt", "--state", "copied"]
        machines.start("copy", *copy, "--name", NAMES[0])
        ended = machines.running["copy"].wait(200)
        said = machines.said("copy")
        good = ended != 0 and "another process is connected with this key" in said
        campaign.note("a copied --state with a key in use", good and "Traceback" not in said)
        machines.kill("copy")
        before = machines.rounds("twins")
        campaign.run("unharmed", rounds=2)
        campaign.note("the first goes on", machines.rounds("unharmed") == 2 and before == 0)
        table = machines.paths[0].read_text().splitlines()
        sick = [line for line in table[1:] if line.endswith("sick")]
        for what, lines in (("one row", table[1:2]), ("one class", sick)):
            small = campaign.folder / "small.csv"
            small.write_text("\n".join([table[0], *lines]) + "\n")
            single = [*twin[:2], str(small), *twin[3:-1], what.replace(" ", "_")]
            machines.start("small", *single, "--name", "small")
            _wait_for_nodes(machines, 4)
            name = what.replace(" ", "-")
            told = campaign.run(name, nodes=4, rounds=1)
            good = machines.rounds(name) == 1 or "small" in told
            campaign.note(
                f"a node of {what}", good and "raised an exception\nTraceback" not in told
            )
            machines.stop("small")


def idle_connections(campaign: Campaign) -> None:
    """10,000 idle connections with TLS: a run goes on."""
    with campaign.serving() as machines, ExitStack() as stack:
        context = ssl.create_default_context(cafile=str(campaign.folder / "keys" / "ca.crt"))
        opened = 0
        with suppress(OSError):
            for _ in range(10_000):
                plain = socket.create_connection(("127.0.0.1", machines.port), timeout=20)
                stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
                opened += 1
        campaign.run("idle", rounds=3)
        campaign.note("idle connections", machines.rounds("idle") == 3, f"{opened:,} with TLS")


def ends_of_the_server(campaign: Campaign) -> None:
    """SIGTERM ends a server within seconds, ``flwr stop`` a run; both are noted as stops, and the run goes on."""
    with campaign.serving() as machines:
        machines.deploy("stopped", rounds=40, eval_every=40, algorithm="scaffold")
        began = machines.begin("stopped")
        until("two rounds", lambda: machines.rounds("stopped") >= 2)
        listed = json.loads(machines.do("flwr", "list", "--format", "json"))
        runs = [run["run-id"] for run in listed["runs"] if run["status"].startswith("running")]
        machines.do("flwr", "stop", str(runs[0]))
        began.communicate(timeout=100)
        until("the end", lambda: "running" not in machines.fedskew("status", "stopped/run"), 60)
        said = machines.fedskew("status", "stopped/run")
        campaign.note("flwr stop", "asked to stop" in said and "error         0" not in said)
        began = machines.begin("stopped")
        done = machines.rounds("stopped")
        until("two more", lambda: machines.rounds("stopped") >= done + 2)
        before = time.monotonic()
        machines.stop("server")
        seconds = time.monotonic() - before
        began.kill()
        began.communicate()
        campaign.note("SIGTERM of the server", seconds < 15, f"{seconds:.1f} s")
        machines.start_server()
        _wait_for_nodes(machines, 3)
        machines.run("stopped")
        alone = campaign.alone("stopped", set())
        campaign.note("and on to the same bits", same_model(machines.finished("stopped"), alone))


def kills_of_the_server(campaign: Campaign, kills: int) -> None:
    """The server is killed in many rounds, alone or with all that it has started; the result is that of one run."""
    rounds = 2 * kills + 4
    with campaign.serving() as machines:
        machines.deploy("killed", rounds=rounds, eval_every=rounds, algorithm="scaffold")
        for number in range(kills):
            began = machines.begin("killed")
            goal = 2 * number + 1
            until(f"round {goal}", lambda goal=goal: machines.rounds("killed") >= goal)
            time.sleep(0.13 * (number % 8))
            server = machines.running.pop("server")
            if number % 2:
                server.kill()
            else:
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()
            began.kill()
            began.communicate()
            machines.start_server()
            print(f"killed {number + 1} after round {machines.rounds('killed')}", flush=True)
        machines.run("killed")
        alone = campaign.alone("killed", set())
        good = same_model(machines.finished("killed"), alone)
        campaign.note(f"{kills} kills of the server", good, f"{machines.rounds('killed')} rounds")


def kills_of_commands(campaign: Campaign) -> None:
    """15 commands are killed 7 times each: what they leave is whole or nothing, and they end with the same bits."""
    commands.prepare(campaign.folder)
    for command in commands.COMMANDS:
        for what, good in commands.killed(command, campaign.folder, kills=7):
            campaign.note(what, good)


def main() -> None:
    """Run the attacks, and end with 1 if one of them broke something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="kills of the server")
    parser.add_argument("--only", nargs="*", help="names of attacks")
    given = parser.parse_args()
    attacks: dict[str, Callable[[Campaign], None]] = {
        "lies-in-rounds": lies_in_rounds,
        "lies-before-rounds": lies_before_rounds,
        "deaths": deaths_in_every_phase,
        "stopped": stopped_longer_than_the_timeout,
        "changed": file_that_changes,
        "full": full_state,
        "names": names_and_keys,
        "idle": idle_connections,
        "ends": ends_of_the_server,
        "commands": kills_of_commands,
        "kills": lambda campaign: kills_of_the_server(campaign, given.kills),
    }
    broken = 0
    total = 0
    for name, attack in attacks.items():
        if given.only and name not in given.only:
            continue
        with tempfile.TemporaryDirectory() as place:
            campaign = Campaign(Path(place))
            try:
                attack(campaign)
            except AssertionError as problem:
                campaign.note(name, False, str(problem)[:300])
        total += len(campaign.found)
        broken += sum(not good for _, good, _ in campaign.found)
    print(f"{total} tried, {broken} broken (fedskew {fs.__version__})")
    sys.exit(int(broken > 0))


if __name__ == "__main__":
    main()
