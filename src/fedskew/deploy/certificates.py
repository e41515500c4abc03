"""Certificates and keys of a deployment: who the server is to nodes, and who a node is to the server."""

import ipaddress
import os
import re
import stat
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from fedskew.core.errors import FedskewError
from fedskew.core.files import reading
from fedskew.core.writing import writing
from fedskew.deploy.flower_grid import need_flower

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA, CA_KEY, SERVER, SERVER_KEY, NODES = "ca.crt", "ca.key", "server.crt", "server.key", "nodes"
_HERE = ("localhost", "127.0.0.1", "::1")  # by which the server's own processes reach it
_CA_DAYS = 3650
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def make_keys(folder: Path, hosts: Sequence[str], nodes: Sequence[str], days: int) -> list[Path]:
    """Make what is asked for and return its files: a certificate for the server's names, a key pair for each node.

    The certificate authority is made with the first of them, and used again afterwards. Nothing is overwritten.
    """
    need_flower()
    _check_node_names(nodes)
    wanted = _wanted_files(folder, hosts, nodes)
    for path in wanted:
        if path.exists():
            raise FedskewError(f"{path} exists already: move it away, or choose another folder")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NODES).mkdir(exist_ok=True)
    if not (folder / CA).exists():
        _make_authority(folder)
        wanted = [folder / CA, folder / CA_KEY, *wanted]
    if hosts:
        _make_server(folder, hosts, days)
    for node in nodes:
        _make_node(folder / NODES / node)
    return wanted


def _check_node_names(nodes: Sequence[str]) -> None:
    """Refuse names of nodes that are given twice, or that no key file can have."""
    for node in nodes:
        if nodes.count(node) > 1:
            raise FedskewError(f"--nodes {','.join(nodes)}: {node!r} is given twice")
        if not _NAME.fullmatch(node) or node.endswith(".pub"):
            raise FedskewError(
                f"--nodes {','.join(nodes)}: {node!r} cannot be the name of a key: use letters from A to Z, digits, "
                "dots, hyphens and underscores, and no .pub at the end"
            )


def _wanted_files(folder: Path, hosts: Sequence[str], nodes: Sequence[str]) -> list[Path]:
    """Return the files to make for the server's names and for the nodes; an error if there are none."""
    wanted = []
    if hosts:
        wanted += [folder / SERVER, folder / SERVER_KEY]
    for node in nodes:
        wanted += [folder / NODES / node, folder / NODES / f"{node}.pub"]
    if not wanted:
        raise FedskewError(
            "there is nothing to make: give --host, the server's name, or --nodes a,b,c"
        )
    return wanted


def check_private(path: Path, what: str) -> None:
    """Refuse a private key that is not there, or that others may read."""
    check_there(path, what)
    if os.name != "nt" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise FedskewError(f"{path} can be read by others than its owner: chmod 600 {path}")


def check_pair(certificate: Path, key: Path) -> None:
    """Refuse a private key that is not that of a certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    with reading(key):
        certified = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
        try:
            given = load_pem_private_key(key.read_bytes(), password=None).public_key()
        except (ValueError, TypeError):
            raise FedskewError(
                f"{key} is not a private key: make it anew with {certificate} (fedskew keys)"
            ) from None
    if certified != given:
        raise FedskewError(f"{key} is not the key of {certificate}: make both anew (fedskew keys)")


def check_there(path: Path, what: str) -> None:
    """Refuse a file that is not there."""
    if not path.is_file():
        raise FedskewError(f"{path} is not there: give {what} (fedskew keys makes it)")


def check_certificate(path: Path, what: str) -> None:
    """Refuse a file that is not a certificate, or one that is not valid now."""
    from cryptography import x509

    check_there(path, what)
    try:
        with reading(path):
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise FedskewError(f"{path} is not a certificate: give {what}") from None
    first = certificate.not_valid_before_utc
    last = certificate.not_valid_after_utc
    if not first <= datetime.now(UTC) <= last:
        raise FedskewError(
            f"{path} is valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}: make a new one (fedskew keys)"
        )


def check_node_key(path: Path, what: str) -> None:
    """Refuse a file that is not a private key of a node."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    check_private(path, what)
    try:
        with reading(path):
            key = load_ssh_private_key(path.read_bytes(), None)
        is_node_key = isinstance(key, ec.EllipticCurvePrivateKey)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        is_node_key = False
    if not is_node_key:
        raise FedskewError(f"{path} is not a node's private key: give {what}")


def _write_private(path: Path, content: bytes) -> None:
    """Write a new file that nobody but its owner can read at any time."""
    with writing(path):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)


def _write_public(path: Path, content: bytes) -> None:
    with writing(path), path.open("xb") as file:
        file.write(content)


def _new_key() -> "ec.EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _pem(key: "ec.EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _certificate(
    subject: str, key: "ec.EllipticCurvePrivateKey", issuer: "x509.Name | None", days: int
) -> "x509.CertificateBuilder":
    """Return a certificate that has yet to be signed; without an issuer it is its own."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer or name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(signs_certificates: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _make_authority(folder: Path) -> None:
    """Make the certificate authority, which signs its own certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.hazmat.primitives.serialization import Encoding

    key = _new_key()
    certificate = (
        _certificate("fedskew certificate authority", key, None, _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, SHA384())
    )
    _write_private(folder / CA_KEY, _pem(key))
    _write_public(folder / CA, certificate.public_bytes(Encoding.PEM))


def _make_server(folder: Path, hosts: Sequence[str], days: int) -> None:
    """Make the server's key, and its certificate for these names, signed by the authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID

    check_private(folder / CA_KEY, "the folder of the certificate authority")
    check_certificate(folder / CA, "the folder of the certificate authority")
    authority = x509.load_pem_x509_certificate((folder / CA).read_bytes())
    authority_key = load_pem_private_key((folder / CA_KEY).read_bytes(), None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    key = _new_key()
    names = [_general_name(host) for host in dict.fromkeys((*hosts, *_HERE))]
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _certificate(hosts[0][:64], key, authority.subject, days)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issued_by, critical=False)
        .sign(authority_key, SHA384())
    )
    _write_private(folder / SERVER_KEY, _pem(key))
    _write_public(folder / SERVER, certificate.public_bytes(Encoding.PEM))


def _make_node(path: Path) -> None:
    """Make a node's key pair in the format of OpenSSH."""
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key = _new_key()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write_private(path, private)
    _write_public(path.with_name(f"{path.name}.pub"), public + f" {path.name}\n".encode())


def _general_name(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise FedskewError(f"--host {host}: give a name or an IP address, without port") from None
