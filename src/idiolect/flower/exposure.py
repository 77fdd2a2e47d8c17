"""Whether strangers could reach what they must not. Flower serves the clients, the operator and the ServerApp on one
port, and asks the last two for no account: who reaches `/v1/control/` can run code on the server and on every client.
The ServerApp looks before it starts, to keep its operator from a mistake; it cannot stop a stranger."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
from typing import TYPE_CHECKING, NamedTuple

from ..core.errors import InputError

if TYPE_CHECKING:
    from flwr.serverapp import Grid

log = logging.getLogger("idiolect")
CONTROL = "/v1/control/list-runs"
REFUSALS = {401, 403, 404, 405}
"""How a server answers that does not let strangers in."""
OTHER_LOOPBACK = "127.0.0.2"
"""Only who listens on all addresses is reached here as well; some systems have no such address."""
SOMEWHERE = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses for documentation: nothing is sent there, but the system says from which address it would be."""
TIMEOUT = 3.0


class SuperLink(NamedTuple):
    """Where the ServerApp reaches its SuperLink: host, port, and the authority that signed its certificate, None where
    there is no TLS."""

    host: str
    port: int
    authority: bytes | None

    @property
    def encrypted(self) -> bool:
        """Whether it speaks TLS."""
        return self.authority is not None


def require_closed(grid: Grid, allow_open: bool) -> None:
    """Raise `InputError` if strangers could take the federation over.

    Args:
        grid: the Grid that Flower hands to a ServerApp. That of a simulation has no SuperLink.
        allow_open: only say so in the log.
    """
    superlink = read_superlink(grid)
    problem = None if superlink is None else find_exposure(superlink)
    if problem is None:
        return
    if not allow_open:
        raise InputError(f"{problem}; see docs/deploy.md, or write open = true into the settings to run all the same")
    log.warning("open = true: %s", problem)


def read_superlink(grid: Grid) -> SuperLink | None:
    """Where the SuperLink of a Grid is; None in a simulation."""
    if (address := getattr(grid, "_addr", None)) is None:
        return None
    host, _, port = address.rpartition(":")
    authority = None if grid._insecure else grid._cert or b""  # type: ignore[attr-defined]
    return SuperLink(host.strip("[]"), int(port), authority)


def find_exposure(superlink: SuperLink) -> str | None:
    """What strangers could do, None where nothing is found. A SuperLink without TLS that only this machine reaches is
    for trying out; one with TLS has clients elsewhere, so those must be known."""
    for host in find_public_hosts(superlink.host):
        if answers_anybody(host, superlink.port, superlink.encrypted):
            where = "all addresses of this machine" if is_loopback(host) else f"{host}:{superlink.port}"
            return (
                f"the SuperLink's control interface can be reached at {where}, and who reaches it can run code on the "
                f"server and on every client; start the SuperLink with --host 127.0.0.1 and the gateway in front of it"
            )
    if superlink.encrypted and admits_any_node(superlink):
        return "the SuperLink admits SuperNodes that nobody has registered; start it with --enable-supernode-auth"
    return None


def find_public_hosts(known: str) -> list[str]:
    """Addresses at which others might reach a server that is known at one address of its own."""
    hosts = [OTHER_LOOPBACK] if is_loopback(known) else [known]
    with contextlib.suppress(OSError):
        hosts += [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)]
    for address, family in SOMEWHERE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            hosts.append(str(probe.getsockname()[0]))
    return [host for host in dict.fromkeys(hosts) if host == OTHER_LOOPBACK or not is_loopback(host)]


def is_loopback(host: str) -> bool:
    """Whether an address is of the loopback device.

    >>> is_loopback("127.0.1.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("10.0.0.1")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def answers_anybody(host: str, port: int, encrypted: bool) -> bool:
    """Whether a SuperLink's control interface answers there without an account. Nothing secret is sent, so it does not
    matter whose certificate it shows."""
    import httpx

    scheme, name = "https" if encrypted else "http", f"[{host}]" if ":" in host else host
    try:
        with httpx.Client(verify=False, timeout=TIMEOUT, trust_env=False) as client:
            answer = client.post(f"{scheme}://{name}:{port}{CONTROL}", headers={"content-type": "application/protobuf"})
    except (httpx.HTTPError, httpx.InvalidURL):
        return False
    return answer.status_code not in REFUSALS


def admits_any_node(superlink: SuperLink) -> bool:
    """Whether a SuperNode with a key that was just made can register itself; if so, it is unregistered at once."""
    import httpx
    from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest, UnregisterNodeFleetRequest
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    private, public = generate_key_pairs()
    host = f"[{superlink.host}]" if ":" in superlink.host else superlink.host
    connection = (f"{host}:{superlink.port}", not superlink.encrypted, superlink.authority or None)
    with FleetHttpClient.from_server_address(*connection, [NodeAuthHttpInterceptor(private, public)]) as client:
        try:
            node = client.RegisterNode(RegisterNodeFleetRequest(public_key=public_key_to_bytes(public))).node_id
        except httpx.HTTPError:
            return False
        with contextlib.suppress(httpx.HTTPError):
            client.UnregisterNode(UnregisterNodeFleetRequest(node_id=node))
    return True
