"""The files for containers and the page on operations: what can be checked of them without building an image."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from packaging.specifiers import SpecifierSet
from tests.docs.follow import blocks

from fedskew.cli.app import app

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which the documentation's tools bring")

ROOT = Path(__file__).parents[2]
COMPOSE, IMAGE = ROOT / "containers/compose.yaml", ROOT / "containers/Containerfile"
PAGE = ROOT / "docs/operations.md"
NODES = {f"hospital_{letter.lower()}": f"hospital_{letter}" for letter in "ABC"}


def parsed(command: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a command of fedskew and its parameters, as the command line reads them."""
    group: Any = typer.main.get_command(app)
    words = shlex.split(command, comments=True)
    assert words[0] == "fedskew"
    above = group.make_context("fedskew", [], resilient_parsing=True)
    name, found, rest = group.resolve_command(above, words[1:])
    return name, found.make_context(name, list(rest), parent=above).params


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def mounted(service: dict[str, Any]) -> dict[str, str]:
    """Return the places in a container with what is there of the machine; writable ones begin with a plus."""
    found = {}
    for volume in service["volumes"]:
        source, target, *mode = volume.split(":")
        assert mode in ([], ["ro"])
        found[target] = source if mode else f"+{source}"
    assert len(found) == len(service["volumes"])
    return found


def test_a_server_and_three_nodes(services: dict[str, Any]):
    assert services.keys() == {"server", *NODES}
    assert {service["image"] for service in services.values()} == {"fedskew:local"}
    assert [name for name, service in services.items() if "ports" in service] == ["server"]
    for service in services.values():
        assert service["restart"] == "unless-stopped"
        assert service["user"] == "${FEDSKEW_USER:-1000:1000}"
    build = services["server"]["build"]
    assert (COMPOSE.parent / build["context"]).resolve() == ROOT
    assert ROOT / build["dockerfile"] == IMAGE


def test_the_server_has_what_it_reads_and_no_private_key_of_others(services: dict[str, Any]):
    name, given = parsed(services["server"]["command"])
    assert (name, given["host"], given["insecure"]) == ("server", "0.0.0.0", False)
    assert services["server"]["ports"] == [f"{given['port']}:{given['port']}"]
    places = mounted(services["server"])
    keys = given["keys"]
    for file in (
        "ca.crt",
        "server.crt",
        "server.key",
        *(f"nodes/{node}.pub" for node in NODES.values()),
    ):
        assert places.pop(f"{keys}/{file}") == f"./keys/{file}"
    assert places == {str(given["state"]): "+./state/server", "/deployments": "+./deployments"}


@pytest.mark.parametrize("service", NODES)
def test_a_node_has_its_own_files_and_nothing_else(services: dict[str, Any], service: str):
    node, (name, given) = NODES[service], parsed(services[service]["command"])
    _, server = parsed(services["server"]["command"])
    assert (name, given["server"], given["insecure"]) == ("node", f"server:{server['port']}", False)
    assert mounted(services[service]) == {
        str(given["ca"]): "./keys/ca.crt",
        str(given["key"]): f"./keys/nodes/{node}",
        str(given["data"]): f"./data/{node}.csv",
        str(given["state"]): f"+./state/{node}",
    }
    assert services[service]["depends_on"] == ["server"]


def test_the_image_is_made_of_the_wheel():
    lines = [line for line in IMAGE.read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.match(r"(FROM|ARG|COPY|RUN|USER|ENV|CMD) ", line) for line in lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (version,) = re.findall(r"^FROM python:([\d.]+)-slim$", IMAGE.read_text(), re.M)
    assert SpecifierSet(project["requires-python"]).contains(f"{version}.99")
    (copied,) = (line.split()[1:-1] for line in lines if line.startswith("COPY "))
    let_through = (ROOT / "containers/Containerfile.dockerignore").read_text().split()
    assert let_through == ["*", *(f"!{name}" for name in copied)]
    assert [name for name in copied if "*" not in name and not (ROOT / name).is_file()] == []
    (extras,) = re.findall(r"whl\)\[([\w,]+)\]", IMAGE.read_text())
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()


def test_keys_and_data_are_never_committed(services: dict[str, Any]):
    ignored = (ROOT / "containers/.gitignore").read_text().split()
    sources = {
        place.lstrip("+") for service in services.values() for place in mounted(service).values()
    }
    assert {f"/{source.split('/')[1]}/" for source in sources} == set(ignored)


def test_every_command_of_the_page_is_one():
    known = "|".join(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    text = "\n".join(block for language, block in blocks(PAGE.read_text()) if language == "text")
    found = re.findall(rf"(fedskew (?:{known}) [^\n']*)", text)
    names = [parsed(command)[0] for command in found]
    assert sorted(names) == ["deploy", "keys", "node", "run", "status"]
    assert len(
        re.findall(r"\bfedskew (?=[a-z])", text.replace("fedskew keys keys", "fedskew keys"))
    ) == len(names)


def test_the_snippet_for_prometheus_is_yaml():
    (snippet,) = (block for _, block in blocks(PAGE.read_text()) if "scrape_configs" in block)
    (job,) = yaml.safe_load(snippet)["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["127.0.0.1:9464"]}]
