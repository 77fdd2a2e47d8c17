"""A door in front of the SuperLink that lets clients in and nobody else. Flower serves clients, the operator and the
ServerApp on one port; this passes on the clients' interface alone: python -m idiolect.flower.gateway --help"""

from __future__ import annotations

import argparse
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

FLEET = "/v1/fleet/"
HOP_BY_HOP = {b"host", b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"upgrade", b"te"}
TIMEOUT = 600.0
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def is_allowed(method: str, raw_path: bytes) -> bool:
    """Whether a request is one of a client: a path that could be read as another one is none.

    >>> is_allowed("POST", b"/v1/fleet/pull-messages"), is_allowed("POST", b"/v1/fleet/../control/start-run")
    (True, False)
    """
    path = raw_path.decode("latin-1")
    name = path.removeprefix(FLEET)
    return method == "POST" and name != path and name.replace("-", "").isalpha() and name.isascii()


class Gateway:
    """An ASGI application that passes clients' requests on to the SuperLink and refuses all others.

    Args:
        client: an HTTP client whose base address is the SuperLink.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request. While the SuperLink is restarted, clients are told to try again."""
        import httpx

        if scope["type"] != "http":
            return
        path = scope.get("raw_path") or scope["path"].encode()
        if not is_allowed(scope["method"], path):
            await reply(send, 404, [], b"not found")
            return
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        try:
            answer = await self.client.post(path.decode(), content=body, headers=keep_headers(scope["headers"]))
        except httpx.TransportError:
            await reply(send, 503, [], b"the SuperLink does not answer")
            return
        await reply(send, answer.status_code, keep_headers(answer.headers.raw), answer.content)


def keep_headers(headers: Any) -> list[tuple[bytes, bytes]]:
    """The headers that belong to the message and not to the connection."""
    return [(name, value) for name, value in headers if name.lower() not in HOP_BY_HOP | {b"content-encoding"}]


async def reply(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Send an answer."""
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main(arguments: list[str] | None = None) -> None:
    """Run the gateway until it is ended."""
    import httpx
    import uvicorn

    parser = argparse.ArgumentParser(description="Lets Flower's clients, and nobody else, through to a SuperLink.")
    parser.add_argument("--listen", default="0.0.0.0:8443", help="the public address")
    parser.add_argument("--superlink", default="localhost:8000", help="where the SuperLink listens")
    parser.add_argument("--ca", required=True, help="the authority that signed the SuperLink's certificate")
    parser.add_argument("--certificate", required=True, help="the certificate that clients see")
    parser.add_argument("--key", required=True, help="its key")
    chosen = parser.parse_args(arguments)
    host, _, port = chosen.listen.rpartition(":")
    verify = ssl.create_default_context(cafile=chosen.ca)
    client = httpx.AsyncClient(base_url=f"https://{chosen.superlink}", verify=verify, timeout=TIMEOUT, trust_env=False)
    uvicorn.run(Gateway(client), host=host, port=int(port), ssl_certfile=chosen.certificate, ssl_keyfile=chosen.key)


if __name__ == "__main__":
    main()
