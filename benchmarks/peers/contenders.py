"""Who takes part in the comparison, and the environments of the peers."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.rounds import ENVIRONMENTS, ROOT


@dataclass(frozen=True)
class Environment:
    """The packages of a peer; ``alone`` is installed without its dependencies, those that it needs are ``packages``.

    Some peers require torchvision, which must fit the build of PyTorch and is imported but not used: ``stubs`` has a
    stand-in.
    """

    packages: str
    alone: str = ""
    torch: bool = True


PEERS = {
    "flower": Environment("flwr[simulation]==1.41.0"),
    "pfl": Environment(
        "packaging<26 wheel<0.46 multiprocess<0.71 scipy prv_accountant<0.3 dp-accounting<0.6",
        "pfl==0.6.0",
    ),
    # The last FedJAX uses jax.tree_map, which later versions of JAX no longer have.
    "fedjax": Environment(
        "fedjax==0.0.17 jax==0.4.25 jaxlib==0.4.25 numpy<2 scipy<1.13 dm-haiku==0.0.12 optax==0.1.9 chex<0.1.87",
        torch=False,
    ),
    "fedlab": Environment("munch tqdm pandas scikit-learn pynvml pillow", "fedlab==1.3.0"),
    "fluke": Environment(
        "pandas scikit-learn torchmetrics rich typer datasets matplotlib seaborn diskcache omegaconf pyyaml requests "
        "cerberus hydra-core networkx psutil",
        "fluke-fl==0.8.1",
    ),
    "flgo": Environment(
        "tqdm scipy matplotlib prettytable ujson pynvml pyyaml networkx requests toolz pandas",
        "flgo==0.4.4",
    ),
}


@dataclass(frozen=True)
class Contender:
    """One line of the table: a script with its options, in the environment of a peer or in this one."""

    name: str
    script: str
    options: tuple[str, ...] = ()
    environment: str | None = None
    processes: int = 1  # started by torchrun, if more than one
    on_gpu: bool = False

    @property
    def python(self) -> Path:
        """Return the interpreter of its environment."""
        return (
            ENVIRONMENTS / self.environment / "bin" / "python"
            if self.environment
            else Path(sys.executable)
        )

    def run(self, workload: str, rounds: int, device: str, limit: float) -> tuple[str, str]:
        """Return what the script printed, and its errors; after ``limit`` seconds it is ended, with its children."""
        launcher = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(self.processes),
        ]
        command = [
            str(self.python),
            *(launcher if self.processes > 1 else []),
            "-m",
            f"benchmarks.peers.{self.script}",
        ]
        command += [workload, "--rounds", str(rounds), "--device", device, *self.options]
        paths = [
            str(ROOT),
            str(ROOT / "src") if not self.environment else str(Path(__file__).parent / "stubs"),
        ]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        process = subprocess.Popen(
            command, stdout=-1, stderr=-1, text=True, env=env, cwd=ROOT, start_new_session=True
        )  # a session of its own, so that its children can be ended with it
        try:
            return process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "", f"more than {limit:g} s"


TWO = ("--workers", "2")
CONTENDERS = (
    Contender("fedskew", "run_fedskew", on_gpu=True),
    Contender("fedskew-loop", "run_fedskew", ("--engine", "loop"), on_gpu=True),
    Contender("bare", "run_bare", on_gpu=True),
    Contender("bare-2", "run_bare", TWO),
    Contender("pfl", "run_pfl", environment="pfl"),
    Contender("pfl-2", "run_pfl", environment="pfl", processes=2),
    Contender("fedjax", "run_fedjax", environment="fedjax"),
    Contender("flower", "run_flower", TWO, "flower"),
    Contender("fedlab", "run_fedlab", environment="fedlab"),
    Contender("fluke", "run_fluke", environment="fluke"),
    Contender("flgo", "run_flgo", environment="flgo"),
)


def install(name: str) -> None:
    """Make the environment of a peer, with the PyTorch that this process has."""
    peer, folder = PEERS[name], ENVIRONMENTS / name
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q"]
    torch = [f"torch=={version('torch').partition('+')[0]}"] if peer.torch else []
    subprocess.run([*pip, *torch, "numpy", *peer.packages.split()], check=True)
    if peer.alone:
        subprocess.run([*pip, "--no-deps", peer.alone], check=True)
