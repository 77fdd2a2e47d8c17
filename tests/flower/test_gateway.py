"""A stranger who has only the public certificate reaches nothing but the clients' interface."""

import asyncio

import pytest

httpx = pytest.importorskip("httpx")

from idiolect.flower.gateway import Gateway, is_allowed  # noqa: E402


def ask(method, path, error=None):
    """The answer of the gateway, and what reached the SuperLink, or the error on the way to it."""
    reached = []

    def superlink(request):
        if error is not None:
            raise error
        reached.append((request.url.path, request.content, request.headers.get("signature")))
        return httpx.Response(200, content=b"answer")

    async def exchange():
        behind = httpx.AsyncClient(base_url="https://superlink", transport=httpx.MockTransport(superlink))
        front = httpx.ASGITransport(Gateway(behind))
        async with httpx.AsyncClient(transport=front, base_url="https://gateway") as stranger:
            return await stranger.request(method, path, content=b"body", headers={"signature": "s"})

    return asyncio.run(exchange()), reached


def test_clients_are_passed_on_with_their_signature():
    answer, reached = ask("POST", "/v1/fleet/pull-messages")
    assert (answer.status_code, answer.content) == (200, b"answer")
    assert reached == [("/v1/fleet/pull-messages", b"body", "s")]


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ReadError("killed"), httpx.ReadTimeout("late")])
def test_clients_are_told_to_try_again_while_the_superlink_is_restarted(error):
    answer, _ = ask("POST", "/v1/fleet/pull-messages", error)
    assert answer.status_code == 503, "which Flower's SuperNode takes as a reason to wait; it ends at others"


@pytest.mark.parametrize(
    "path",
    ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs", "/openapi.json", "/",
     "/v1/fleet/", "/v1/fleet/%2e%2e/control/start-run", "/V1/CONTROL/start-run"],
)  # fmt: skip
def test_a_stranger_can_neither_start_a_run_nor_take_a_task(path):
    answer, reached = ask("POST", path)
    assert answer.status_code == 404
    assert not reached


@pytest.mark.parametrize(
    "path", [b"/v1/fleet/../control/start-run", b"//v1/fleet/x", b"/v1/fleet/a/b", b"/v1/fleet/a?x"]
)
def test_paths_that_can_be_read_in_two_ways_are_refused(path):
    assert not is_allowed("POST", path)


@pytest.mark.parametrize("path", ["/v1/control/list-runs", "/v1/control/start-run", "/v1/runtime/acquire-task"])
def test_flowers_own_superlink_is_open_to_anybody_and_closed_behind_the_gateway(path):
    main = pytest.importorskip("flwr.superlink.main", reason="Flower is not installed")
    superlink = httpx.ASGITransport(main.create_app(), raise_app_exceptions=False)

    async def exchange():
        async with httpx.AsyncClient(base_url="https://superlink", transport=superlink) as behind:
            front = httpx.AsyncClient(base_url="https://gateway", transport=httpx.ASGITransport(Gateway(behind)))
            headers = {"content-type": "application/protobuf"}
            return [(await each.post(path, headers=headers)).status_code for each in (behind, front)]

    direct, through = asyncio.run(exchange())
    assert direct not in (401, 403, 404), "nobody asks who it is, which is why there is a gateway"
    assert through == 404


def test_only_posts_are_passed_on():
    assert not is_allowed("GET", b"/v1/fleet/pull-messages")
