"""The engine of a deployment: each round it sends requests to the clients and checks their replies. The clients' states
stay with them; the server stores receipts instead, which say in which round a client's upload was accepted last."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from ..contract import Download, Upload
from ..core import codec
from ..core.errors import IdiolectError
from ..core.tree import Slots
from ..engines import Plan
from ..engines.client_evaluation import Score
from ..engines.client_round import Outcome
from ..engines.loop import States
from ..runs.store import Store
from .membership import Membership
from .messages import Message, Value
from .project import PLACEHOLDER_SAMPLES, describe_data, make_placeholders
from .settings import Deployment
from .validation import UploadValidator, check_reply, log_refusal, one_line, read_scores, read_training

log = logging.getLogger("idiolect")


class FlowerEngine:
    """Clients on other machines.

    Args:
        plan: the server's plan, without the clients' data.
        membership: which clients have joined, and how to reach them.
        store: the server's store, which knows the selected round.
        deployment: how long to wait and what to accept.
    """

    def __init__(self, plan: Plan, membership: Membership, store: Store, deployment: Deployment) -> None:
        self.plan, self.membership, self.store, self.deployment = plan, membership, store, deployment
        data = plan.data
        blank = make_placeholders(describe_data(data, 0), len(data), data.unseen, {}, public=data.public)
        self._blank_plan = replace(
            plan, data=blank, training=replace(plan.training, epochs=1, batch_size=PLACEHOLDER_SAMPLES)
        )

    def train(self, round: int, states: States, download: Download) -> Iterator[tuple[int, Outcome]]:
        """Ask clients to train until enough have replied."""
        needed, done = self.deployment.needed(len(states)), set[int]()
        payloads_of = encode_download(download)
        validator = UploadValidator(self._blank_plan, round, download)
        for attempt in range(self.deployment.attempts):
            left = [index for index in states if index not in done]
            nodes = self.membership.wait_for(left, max(1, needed - len(done)), seconds=0.0)
            requests = {i: self._request("train", round, i, states[i], payloads_of(i)) for i in nodes}
            for index, reply in self._exchange(round, nodes, requests):
                with log_refusal(round, index):
                    yield index, self._read_outcome(round, index, states[index], reply, validator)
                    done.add(index)
            if absent := [index for index in states if index not in done]:
                log.warning("round %d: no update from %s", round + 1, name_clients(absent))
            if len(done) >= needed:
                return
            log.warning("round %d: %d of %d clients replied, but %d are needed (attempt %d of %d)", round + 1,
                        len(done), len(states), needed, attempt + 1, self.deployment.attempts)  # fmt: skip
        raise IdiolectError(
            f"round {round + 1}: {len(done)} of {len(states)} clients replied and {needed} are needed; the rounds "
            f"before it are saved, so look at the clients' logs and run the app again"
        )

    def evaluate(
        self,
        round: int,
        ids: Sequence[int],
        states: Callable[[Sequence[int]], States],
        download: Download,
        unseen: bool,
    ) -> Iterator[tuple[int, list[Score]]]:
        """Ask the connected clients for their scores."""
        if not ids:
            return
        nodes = {index: node for index, node in self.membership.refresh().items() if index in ids}
        receipts, payloads_of = states(sorted(nodes)), encode_download(download)
        requests = {i: self._request("evaluate", round, i, receipts[i], payloads_of(i), unseen=unseen) for i in nodes}
        done = set[int]()
        for index, reply in self._exchange(round, nodes, requests):
            with log_refusal(round, index):
                yield index, read_scores(reply)
                done.add(index)
        if absent := set(ids) - done:
            log.warning("round %d: no scores from %s", round + 1, name_clients(absent))

    def finish(self) -> None:
        """Tell the connected clients that the run is complete, and which round is the selected one."""
        nodes = self.membership.refresh()
        fields: dict[str, Value] = {"kind": "finish", "selected": int(self.store.fact("selected"))}
        requests = {index: Message({**fields, "client": index}) for index in nodes}
        informed = [index for index, _ in self._exchange(self.plan.rounds - 1, nodes, requests)]
        log.info("informed that the run is complete: %s", name_clients(informed) if informed else "no client")

    def close(self) -> None:
        """Nothing to release."""

    def _request(
        self, kind: str, round: int, index: int, receipt: Slots | None, payloads: Mapping[str, bytes], **more: Value
    ) -> Message:
        fields: dict[str, Value] = {"kind": kind, "client": index, "round": round, **more}
        if receipt:
            fields["accepted"] = int(receipt["receipt"]["round"])
        if (selected := self.store.fact("selected")) is not None:
            fields["selected"] = selected
        return Message(fields, payloads)

    def _exchange(
        self, round: int, nodes: Mapping[int, int], requests: Mapping[int, Message]
    ) -> Iterator[tuple[int, Message]]:
        """Send requests and yield the replies as they arrive, until all are there or the time is up."""
        transport, timeout = self.membership.transport, self.deployment.timeout
        client_at = {node: index for index, node in nodes.items()}
        sent = transport.send({nodes[index]: request for index, request in requests.items()})
        waiting = {message_id: client_at[node] for node, message_id in sent.items()}
        deadline = time.monotonic() + timeout
        while waiting:
            connected = transport.nodes()
            replies = transport.collect(waiting)
            for message_id, reply in replies.items():
                index = waiting.pop(message_id)
                if isinstance(reply, str):
                    log.warning("round %d: client %d did not reply: %s", round + 1, index, one_line(reply))
                    continue
                with log_refusal(round, index):
                    yield index, check_reply(requests[index], reply, self.deployment.max_message_mb)
            for message_id, index in list(waiting.items()):
                if nodes[index] not in connected:
                    log.warning("round %d: client %d disconnected", round + 1, index)
                    del waiting[message_id]
            if time.monotonic() > deadline:
                break
            if waiting and not replies:
                time.sleep(transport.poll)
        for index in waiting.values():
            log.warning("round %d: client %d did not reply in %g s", round + 1, index, timeout)

    def _read_outcome(
        self, round: int, index: int, before: Slots | None, reply: Message, validator: UploadValidator
    ) -> Outcome:
        loss, steps, samples = read_training(reply)
        if reply.get("fresh", bool) and before:
            log.warning("round %d: client %d has lost its state and started anew", round + 1, index)
        scores = read_scores(reply)
        if not reply.payloads:
            return Outcome(before or {}, None, loss, steps, samples, scores)
        slots, masks = reply.slots()
        validator.check(index, slots)
        receipt: Slots = {"receipt": {"round": torch.tensor(round)}}
        return Outcome(receipt, Upload(slots, masks), loss, steps, samples, scores)


def encode_download(download: Download) -> Callable[[int], dict[str, bytes]]:
    """Encode what all clients get, once; the function that is returned gives the payloads of one client."""
    shared = codec.encode(download.shared)
    return lambda index: (
        {"shared": shared} | ({"own": codec.encode(download.each[index])} if index in download.each else {})
    )


def name_clients(clients: Iterable[int]) -> str:
    """Name clients in a log line.

    >>> name_clients([2, 0]), name_clients([1])
    ('clients 0, 2', 'client 1')
    """
    numbers = sorted(clients)
    return f"client{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
