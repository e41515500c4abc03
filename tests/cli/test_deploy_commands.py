"""``fedskew keys``, ``server``, ``node`` and ``deploy``: what they write and start, and what they refuse before it."""

import os
import shlex
import socket
import ssl
import sys
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs fedskew[flower]")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedskew.core.config import Experiment
from fedskew.deploy.flower_app import Deployment, run_folder

Command = Callable[[str], Any]
TABLE = "age,colour,outcome\n1,red,sick\n2,blue,well\n"
EXPERIMENT = 'data = "silos:label=outcome"\nmodel = "logreg"\nalgorithm = "scaffold"\nrounds = 3\n'


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], dict[str, str]]]:
    """Return what is started, instead of starting it."""
    found: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(
        os, "execve", lambda path, words, around: found.append((path, words[1:], around))
    )
    return found


@pytest.fixture
def keys(fedskew: Command) -> Command:
    assert fedskew("keys keys --host fl.example.org --host 10.0.0.7 --nodes a,b") == 0
    Path("a.csv").write_text(TABLE)
    return fedskew


def certificate(name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(Path("keys", name).read_bytes())


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def test_keys_are_private_and_belong_together(keys: Command, capsys: pytest.CaptureFixture[str]):
    assert keys("keys more --nodes a") == 0
    assert capsys.readouterr().out.split() == [
        "more/ca.crt",
        "more/ca.key",
        "more/nodes/a",
        "more/nodes/a.pub",
    ]
    for name in ("ca.key", "server.key", "nodes/a", "nodes/b"):
        assert (Path("keys") / name).stat().st_mode & 0o777 == 0o600
    authority, server = (
        x509.load_pem_x509_certificate(Path("keys", name).read_bytes())
        for name in ("ca.crt", "server.crt")
    )
    server.verify_directly_issued_by(authority)
    signs, serves = (
        one.extensions.get_extension_for_class(x509.BasicConstraints).value
        for one in (authority, server)
    )
    assert (signs.ca, signs.path_length, serves.ca) == (True, 0, False)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert {str(ip) for ip in names.get_values_for_type(x509.IPAddress)} == {
        "10.0.0.7",
        "127.0.0.1",
        "::1",
    }
    left = server.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=364) < left <= timedelta(days=365)
    private = load_ssh_private_key(Path("keys/nodes/a").read_bytes(), None)
    public = load_ssh_public_key(Path("keys/nodes/a.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key() == public
    assert public != load_ssh_public_key(Path("keys/nodes/b.pub").read_bytes())
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
        "keys/server.crt", "keys/server.key"
    )


def test_keys_are_added_and_never_overwritten(keys: Command, capsys: pytest.CaptureFixture[str]):
    before = {path: path.read_bytes() for path in Path("keys").rglob("*") if path.is_file()}
    for command, message in [
        ("keys keys --host fl.example.org", "keys/server.crt exists already: move it away"),
        ("keys keys --nodes c,a", "keys/nodes/a exists already"),
        ("keys keys", "there is nothing to make: give --host, the server's name, or --nodes a,b,c"),
        ("keys keys --nodes c,../d", "'../d' cannot be the name of a key"),
        ("keys keys --nodes c,c", "'c' is given twice"),
    ]:
        assert keys(command) == 2
        assert message in complaint(capsys)
        assert {
            path: path.read_bytes() for path in Path("keys").rglob("*") if path.is_file()
        } == before
    assert keys("keys keys --nodes c") == 0
    Path("keys/server.crt").rename("old.crt")
    Path("keys/server.key").rename("old.key")
    assert keys("keys keys --host fl2.example.org --days 90") == 0
    assert Path("keys/ca.crt").read_bytes() == before[Path("keys/ca.crt")]
    authority, server = (
        x509.load_pem_x509_certificate(Path("keys", name).read_bytes())
        for name in ("ca.crt", "server.crt")
    )
    server.verify_directly_issued_by(authority)


def test_a_server_is_started_with_tls_and_keys(keys: Command, started: list[Any]):
    assert keys("server --keys keys --state link --port 18765") == 0
    ((program, words, around),) = started
    assert program == sys.executable
    assert words[:2] == ["-m", "fedskew.deploy.guarded_link"]
    given = " ".join(words)
    for wanted in (
        "--ssl-ca-certfile keys/ca.crt",
        "--ssl-certfile keys/server.crt",
        "--ssl-keyfile keys/server.key",
        "--enable-supernode-auth",
        "--host 127.0.0.1 --port 18765",
        "--database link/superlink.db",
        "--disable-runtime-dependency-installation",
    ):
        assert wanted in given
    assert "--insecure" not in words
    assert around["FLWR_TELEMETRY_ENABLED"] == "0"
    assert around["FLWR_HOME"] == str(Path("link/flower").absolute())
    assert around["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert Path("link").stat().st_mode & 0o077 == 0


def test_a_node_is_started_on_its_file(keys: Command, started: list[Any]):
    assert (
        keys(
            "node --data a.csv --server fl.example.org:8000 --key keys/nodes/a --ca keys/ca.crt --state s --name A"
        )
        == 0
    )
    ((program, words, around),) = started
    assert (program, words[:2]) == (sys.executable, ["-m", "fedskew.deploy.prompt_node"])
    given = " ".join(words)
    assert (
        f"--isolation process --superexec-auth-secret-file {Path('s/messages.secret').absolute()}"
        in given
    )
    assert "--root-certificates keys/ca.crt --auth-supernode-private-key keys/nodes/a" in given
    assert "--superlink fl.example.org:8000" in given
    here = Path.cwd()
    assert (
        words[words.index("--node-config") + 1] == f"data='{here}/a.csv' state='{here}/s' name='A'"
    )
    assert "--insecure" not in words
    assert "--allow-runtime-dependency-installation" not in words
    assert around["FLWR_TELEMETRY_ENABLED"] == "0"


@pytest.mark.parametrize("sign", [";", "\t", " "])
def test_a_node_takes_tables_with_other_separators(keys: Command, started: list[Any], sign: str):
    """The owner of a file learns how it is read when the node starts, and may say how it is written."""
    Path("a.csv").write_text(TABLE.replace(",", sign) + sign.join(["1,5", "red", "well"]) + "\n")
    with pytest.warns(UserWarning, match=r"a\.csv: .*s between its columns; decimal commas in age"):
        assert keys("node --data a.csv --server h:8000 --insecure --state s") == 0
    name = {";": "semicolon", "\t": "tab", " ": "space"}[sign]
    command = f"node --data a.csv:separator={name} --server h:8000 --insecure --state t"
    with pytest.warns(UserWarning, match="a\\.csv: decimal commas in age"):
        assert keys(command) == 0
    assert len(started) == 2


def test_insecure_must_be_asked_for(
    keys: Command, started: list[Any], capsys: pytest.CaptureFixture[str]
):
    Path("e.toml").write_text(EXPERIMENT)
    for command in (
        "server --state s",
        "server --state s --keys keys --insecure",
        "deploy e.toml --nodes 2 --out o",
    ):
        assert keys(command) == 2
        assert "give --keys DIR (fedskew keys makes it), or --insecure" in complaint(capsys)
    for command in (
        "",
        " --key keys/nodes/a",
        " --ca keys/ca.crt",
        " --key keys/nodes/a --ca keys/ca.crt --insecure",
    ):
        assert keys(f"node --data a.csv --server h:1 --state s{command}") == 2
        assert (
            "give --key FILE and --ca FILE (fedskew keys makes them), or --insecure"
            in complaint(capsys)
        )
    assert not started
    assert keys("server --state s --insecure --port 18765") == 0
    assert keys("node --data a.csv --server 127.0.0.1:18765 --state n --insecure") == 0
    assert all("--insecure" in words for _, words, _ in started)
    assert len(started) == 2


def test_what_is_wrong_is_said_before_anything_starts(
    keys: Command, started: list[Any], capsys: pytest.CaptureFixture[str]
):
    node = "node --state s --server h:8000 --ca keys/ca.crt --key keys/nodes/a --data "
    Path("empty.csv").write_text("age,outcome\n")
    Path("cut.csv").write_text("the age,outcome\n1,sick,2\n")
    Path("text.csv").write_bytes(b"\xff\xfe\0\0nothing")
    Path("loose").write_bytes(Path("keys/nodes/a").read_bytes())
    Path("loose").chmod(0o640)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for command, message in [
            (
                f"server --keys keys --state s --port {port}",
                f"port {port} of 127.0.0.1 cannot be used",
            ),
            (f"{node}a.csv --port {port}", f"port {port} of 127.0.0.1 cannot be used"),
            (
                "server --keys keys --state s --port 70000",
                "--port 70000: give a number from 1 to 65535",
            ),
            (f"{node}a.csv --port 0", "--port 0: give a number from 1 to 65535"),
            (f"{node}cut.csv", "cut.csv"),
            ("keys other --host a --days 99999999", "99999999"),
            (
                "server --keys nowhere --state s",
                "nowhere/ca.crt is not there: give --keys, a folder with ca.crt",
            ),
            (f"{node}nothing.csv", "nothing.csv is not there: give --data FILE"),
            (f"{node}empty.csv", "empty.csv has no rows"),
            (f"{node}text.csv", "text.csv"),
            (f"{node}a.csv".replace("nodes/a", "nodes/z"), "keys/nodes/z is not there: give --key"),
            (
                f"{node}a.csv".replace("keys/nodes/a", "loose"),
                "loose can be read by others than its owner: chmod 600",
            ),
            (
                f"{node}a.csv".replace("nodes/a", "ca.key"),
                "keys/ca.key is not a node's private key",
            ),
            (
                f"{node}a.csv".replace("--ca keys/ca.crt", "--ca a.csv"),
                "a.csv is not a certificate: give --ca",
            ),
            (
                f"{node}a.csv".replace("h:8000", "https://h:8000"),
                "--server https://h:8000: give HOST:PORT",
            ),
            (f"{node}a.csv".replace("h:8000", "h"), "--server h: give HOST:PORT"),
            (f"{node}a.csv --name it's", "Flower does not take such a name"),
        ]:
            assert keys(command) == 2, command
            assert message in complaint(capsys), command
    Path("keys/server.key").chmod(0o644)
    assert keys("server --keys keys --state s --port 18765") == 2
    assert (
        "keys/server.key can be read by others than its owner: chmod 600 keys/server.key"
        in complaint(capsys)
    )
    assert not started


@pytest.mark.parametrize(("days", "which"), [(400, "server.crt"), (-1, "ca.crt")])
def test_a_certificate_that_has_ended_or_not_begun(
    keys: Command,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    days: int,
    which: str,
):
    class Other(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(days=days)

    monkeypatch.setattr("fedskew.deploy.certificates.datetime", Other)
    assert keys("server --keys keys --state s --port 18765") == 2
    assert f"keys/{which} is valid from" in complaint(capsys)


def test_without_flower(
    keys: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    Path("e.toml").write_text(EXPERIMENT)
    monkeypatch.setitem(sys.modules, "flwr", None)
    for command in (
        "keys more --nodes a",
        "server --insecure --state s",
        "node --insecure --data a.csv --server h:1 --state s",
        "deploy e.toml --nodes 1 --insecure --out o",
    ):
        assert keys(command) == 2
        assert "this needs Flower: pip install 'fedskew[flower]'" in complaint(capsys)


def test_an_app_is_configuration_and_says_how_to_run_it(
    keys: Command, capsys: pytest.CaptureFixture[str]
):
    Path("e.toml").write_text(EXPERIMENT)
    capsys.readouterr()
    assert (
        keys(
            "deploy e.toml --nodes 3 --server fl.example.org:8443 --keys keys --out out --timeout 90"
        )
        == 0
    )
    told = capsys.readouterr().out
    for wanted in (
        f"fedskew server --keys keys --host 0.0.0.0 --port 8443 --state STATE --runs {Path().absolute()}",
        "flwr supernode register keys/nodes/NAME.pub",
        "fedskew node --data FILE.csv --server fl.example.org:8443 --key nodes/NAME --ca ca.crt --state STATE",
        f"FLWR_HOME={Path('out/flower').absolute()} flwr run {Path('out/app').absolute()} --stream",
    ):
        assert wanted in told
    assert [path.name for path in Path("out/app").iterdir()] == ["pyproject.toml"]
    app = tomllib.loads(Path("out/app/pyproject.toml").read_text())
    assert app["project"]["dependencies"] == []
    assert set(app["tool"]["flwr"]["app"]["components"].values()) == {
        "fedskew.cli.server_app:app",
        "fedskew.deploy.client_app:app",
    }
    config = app["tool"]["flwr"]["app"]["config"]
    assert Experiment(**tomllib.loads(config.pop("experiment"))) == Experiment(
        **tomllib.loads(EXPERIMENT)
    )
    assert run_folder(config.pop("deployment"), Path()) == Path("out/run")
    assert config == {"nodes": 3, "timeout": 90.0}
    link = tomllib.loads(Path("out/flower/config.toml").read_text())["superlink"]
    assert link["fedskew"] == {
        "address": "fl.example.org:8443",
        "root-certificates": str(Path("keys/ca.crt").absolute()),
    }
    assert keys("deploy e.toml --nodes 3 --keys keys --out out") == 2
    assert "--out out exists already" in complaint(capsys)
    assert keys("deploy e.toml --nodes 3 --keys keys --out other --server fl.example.org") == 2
    assert "--server fl.example.org: give HOST:PORT" in complaint(capsys)
    assert not Path("other").exists()


def test_commands_can_be_pasted_whatever_folders_are_named():
    told = [
        shlex.split(command)
        for _, command in Deployment(Path("an out"), "h:1", Path("my keys"), 2, 5.0).commands()
    ]
    assert told[0][2:4] == ["--keys", "my keys"]
    assert told[1][1:] == [
        f"FLWR_HOME={Path.cwd()}/an out/flower",
        "flwr",
        "supernode",
        "register",
        "my keys/nodes/NAME.pub",
    ]
    assert told[3][-2:] == [f"{Path.cwd()}/an out/app", "--stream"]


def test_metrics_are_served_where_a_port_is_given(
    keys: Command, capsys: pytest.CaptureFixture[str]
):
    Path("e.toml").write_text(EXPERIMENT)
    assert keys("deploy e.toml --nodes 3 --keys keys --out out --metrics-port 9464") == 0
    app = tomllib.loads(Path("out/app/pyproject.toml").read_text())
    assert app["tool"]["flwr"]["app"]["config"]["metrics_port"] == 9464
    assert keys("deploy e.toml --nodes 3 --keys keys --out other --metrics-port 70000") == 2
    assert "1<=x<=65535" in complaint(capsys)


def test_an_experiment_that_cannot_run_on_nodes_is_refused(
    keys: Command, capsys: pytest.CaptureFixture[str]
):
    for change, message in [
        ('data = "digits"', "data=digits: every node has its own file, so say how to read it"),
        ('data = "silos"', "label= is missing"),
        (
            'data = "silos:label=outcome"\nskew = "iid"',
            "skew=iid: clients are nodes, with the rows that they have",
        ),
        (
            'data = "silos:label=outcome"\nalgorithm = "central"',
            "central trains on all rows in one place",
        ),
        (
            'data = "silos:label=outcome"\nalgorithm = "fedavg + attack:kind=backdoor"',
            "hostile clients are simulated",
        ),
        (
            'data = "silos:label=outcome"\nalgorithm = "stratify-batch:secure=true"',
            "secure=true simulates the clients' side",
        ),
        (
            'data = "silos:label=outcome"\nalgorithm = "stratify-batch"\nsecure = true',
            "secure=true simulates the clients' side",
        ),
        (
            'data = "silos:label=outcome"\nalgorithm = "fedavg + dp"',
            "fedavg + dp: its noise is drawn",
        ),
        (
            'data = "silos:label=outcome"\nalgorithm = "fedprox + topk + dp"',
            "topk + dp: its noise is drawn",
        ),
        (
            'data = "silos:label=outcome"\nalgorithm = "afl-cp:epsilon=5"',
            "afl-cp: its noise is drawn",
        ),
        ('data = "silos:label=outcome"\nround = 3', "unknown setting in e.toml 'round'"),
    ]:
        Path("e.toml").write_text(change)
        assert keys("deploy e.toml --nodes 3 --keys keys --out out") == 2, change
        assert message in complaint(capsys), change
        assert not Path("out").exists()


def test_one_process_at_a_time_has_a_state(
    keys: Command, started: list[Any], capsys: pytest.CaptureFixture[str]
):
    assert keys("node --data a.csv --server 127.0.0.1:18765 --state twice --insecure") == 0
    for command in ("node --data a.csv --server 127.0.0.1:18765", "server --port 18766"):
        assert keys(f"{command} --state twice --insecure") == 2
        assert f"twice is being written by process {os.getpid()}" in complaint(capsys)
    assert len(started) == 1


def test_what_cannot_begin_is_found_by_deploy(keys: Command, capsys: pytest.CaptureFixture[str]):
    for setting, reason in {
        'metrics = ["auc"]': "metric auc needs the predictions for all rows in one place",
        "per_round = 4": "per_round=4 is more than the 3 nodes",
        'task = "regression"': "task=regression needs data=silos:target=number, and it is class",
    }.items():
        Path("e.toml").write_text(f"{EXPERIMENT}{setting}\n")
        assert keys("deploy e.toml --nodes 3 --insecure --out o") == 2
        assert reason in complaint(capsys)
        assert not Path("o").exists()


def test_a_key_that_is_not_that_of_the_certificate(
    keys: Command, started: list[Any], capsys: pytest.CaptureFixture[str]
):
    assert keys("keys others --host fl.example.org") == 0
    for content, reason in (
        (
            Path("others/server.key").read_bytes(),
            "keys/server.key is not the key of keys/server.crt",
        ),
        (b"nothing", "keys/server.key is not a private key"),
    ):
        Path("keys/server.key").write_bytes(content)
        assert keys("server --keys keys --state link --port 18765") == 2
        assert reason in complaint(capsys)
    assert not started


@pytest.mark.parametrize("names", ["a+b", "Köln", "a.pub,a", "../a"])
def test_names_that_cannot_be_those_of_keys(
    fedskew: Command, names: str, capsys: pytest.CaptureFixture[str]
):
    assert fedskew(f"keys k --nodes {names}") == 2
    assert "cannot be the name of a key: use letters from A to Z, digits" in complaint(capsys)
    assert not Path("k").exists()
