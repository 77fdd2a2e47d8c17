"""The engine of a deployment: each round it sends requests to the clients and checks their replies. The clients' states
stay with them; the server stores receipts instead, which say in which round a client's upload was accepted last."""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from ..contract import Download
from ..core import codec
from ..core.errors import IdiolectError, InputError
from ..core.tree import Slots
from ..data.description import describe
from ..engines import Plan
from ..engines.client_round import Outcome
from ..engines.loop import Fetch, Outcomes, Scores, States
from ..runs.store import Store
from .folders import BEFORE_ALL_ROUNDS
from .membership import Membership
from .messages import Message, Value, is_signed
from .project import PLACEHOLDER_SAMPLES, make_placeholders
from .reports import ScoreValidator, count_steps, read_effort, read_training
from .settings import Deployment
from .validation import UploadValidator, check_reply, one_line, refuse_errors, require_success

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
        self.refusals = Counter[int]()
        self._samples, self._sized = dict[int, int](), plan
        data = plan.data
        blank = make_placeholders(describe(data, 0), len(data), data.unseen, {}, public=data.public)
        self._blank_plan = replace(
            plan, data=blank, training=replace(plan.training, epochs=1, batch_size=PLACEHOLDER_SAMPLES)
        )

    def find_present(self) -> Collection[int] | None:
        """The clients that are connected, at least one, where rounds are drawn from these; None where from all."""
        if self.deployment.sample == "all":
            return None
        return self.membership.wait_for(self.plan.data.seen, 1, seconds=0.0)

    def train(self, round: int, states: States, download: Download) -> Outcomes:
        """Ask clients to train until enough have replied."""
        needed, done = self.deployment.count_needed(len(states)), set[int]()
        payloads_of = encode_download(download)
        points = ("after_local",) if self.plan.after_local and round >= 0 else ()
        uploads = UploadValidator(self._blank_plan, round, download)
        scores = ScoreValidator(self._blank_plan, round, download, points)
        for attempt in range(self.deployment.attempts):
            left = [index for index in states if index not in done]
            nodes = self.membership.wait_for(left, max(1, needed - len(done)), seconds=0.0)
            requests = {i: self._request("train", round, i, states[i], payloads_of(i)) for i in nodes}
            for index, reply in self._exchange(round, nodes, requests):
                try:
                    with refuse_errors():
                        outcome = self._read_outcome(round, index, states[index], reply, uploads, scores)
                    done.add(index)
                except InputError as error:
                    self._refuse(round, index, error)
                    outcome = Outcome(states[index] or {}, None, refused=one_line(str(error)))
                yield index, outcome
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

    def evaluate(self, round: int, ids: Sequence[int], states: Fetch, download: Download, unseen: bool) -> Scores:
        """Ask the connected clients for their scores."""
        if not ids:
            return
        nodes = {index: node for index, node in self.membership.refresh().items() if index in ids}
        receipts, payloads_of = states(sorted(nodes)), encode_download(download)
        requests = {i: self._request("evaluate", round, i, receipts[i], payloads_of(i), unseen=unseen) for i in nodes}
        common = self.plan.method.global_model(self.plan.server(round), download.shared)
        points = ("personal", "adapted", *(("global",) if self.plan.eval_global and common is not None else ()))
        validator, done = ScoreValidator(self._blank_plan, round, download, points), set[int]()
        for index, reply in self._exchange(round, nodes, requests):
            try:
                with refuse_errors():
                    self._check_state(round, index, receipts[index], require_success(reply))
                    scores = validator.read(index, require_success(reply), self.membership.members[index].sizes)
            except InputError as error:
                self._refuse(round, index, error)
                continue
            yield index, scores
            done.add(index)
        if absent := set(ids) - done:
            log.warning("round %d: no scores from %s", round + 1, name_clients(absent))

    def finish(self) -> None:
        """Tell the connected clients that the run is complete, and which round is the selected one."""
        nodes = self.membership.refresh()
        fields: dict[str, Value] = {
            "kind": "finish",
            "data": self.membership.agreed,
            "selected": int(self.store.fact("selected")),
        }
        requests = {index: Message({**fields, "client": index, "nonce": secrets.token_hex(8)}) for index in nodes}
        replies = self._exchange(self.plan.rounds - 1, nodes, requests)
        informed = [index for index, reply in replies if isinstance(reply, Message)]
        log.info("informed that the run is complete: %s", name_clients(informed) if informed else "no client")
        if self.refusals:
            counts = ", ".join(f"{count} of client {index}" for index, count in sorted(self.refusals.items()))
            log.warning("replies that were refused since this server was started: %s", counts)

    def close(self) -> None:
        """Nothing to release."""

    def _request(
        self, kind: str, round: int, index: int, receipt: Slots | None, payloads: Mapping[str, bytes], **more: Value
    ) -> Message:
        fields: dict[str, Value] = {
            "kind": kind,
            "client": index,
            "round": round,
            "nonce": secrets.token_hex(8),
            "data": self.membership.agreed,
            **more,
        }
        if receipt:
            fields["accepted"] = int(receipt["receipt"]["round"])
        if (selected := self.store.fact("selected")) is not None:
            fields["selected"] = selected
        return Message(fields, payloads)

    def _exchange(
        self, round: int, nodes: Mapping[int, int], requests: Mapping[int, Message]
    ) -> Iterator[tuple[int, Message | str]]:
        """Send requests and yield the replies as they arrive, until all are there or the time is up. A reply that does
        not belong to its request is a text that says why."""
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
                yield index, self._check_reply(index, requests[index], reply)
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

    def _check_reply(self, index: int, request: Message, reply: Message) -> Message | str:
        """The reply, or why it is none. A client that signs with another key, as one that has lost its folder, is asked
        anew who it is."""
        member = self.membership.members[index]
        try:
            with refuse_errors():
                return check_reply(request, reply, self.deployment.max_message_mb, member.key)
        except InputError as error:
            if "problem" not in reply.fields and not is_signed(reply, member.key):
                self.membership.forget(index)
            return str(error)

    def _refuse(self, round: int, index: int, error: InputError) -> None:
        """Log and count what is wrong with a client's reply."""
        self.refusals[index] += 1
        log.warning("round %d: refused the reply of client %d: %s", round + 1, index, one_line(str(error)))

    def _read_outcome(
        self, round: int, index: int, receipt: Slots | None, reply: Message | str, uploads: UploadValidator,
        scores: ScoreValidator,
    ) -> Outcome:  # fmt: skip
        reply, member, plan = require_success(reply), self.membership.members[index], self._sized_plan
        self._check_state(round, index, receipt, reply)
        numbers = read_training(reply, count_steps(plan, index, round))
        values = scores.read(index, reply, member.sizes)
        upload = uploads.read(index, reply, int(plan.context(index, round).samples))
        after: Slots = {"receipt": {"round": torch.tensor(round)}} if upload else receipt or {}
        return Outcome(after, upload, *numbers, values, read_effort(reply, numbers[1]))

    def _check_state(self, round: int, index: int, receipt: Slots | None, reply: Message) -> None:
        """Say so where a client did not go on from the state after its last accepted round, or refuse its reply."""
        known, accepted = reply.get("state", int), int(receipt["receipt"]["round"]) if receipt else BEFORE_ALL_ROUNDS
        if known == accepted:
            return
        if known == BEFORE_ALL_ROUNDS:
            log.warning("round %d: client %d has lost its state and started anew", round + 1, index)
            return
        if known > accepted:
            raise InputError(f"it went on from its state of round {known + 1:.6g}, which was never accepted")
        problem = f"it went on from its state of round {known + 1}, but round {accepted + 1} was accepted last"
        if self.deployment.old_state == "refuse":
            raise InputError(f"{problem}, as if its folder was restored from a backup; old_state=refuse")
        log.warning("round %d: client %d: %s; was its folder restored from a backup?", round + 1, index, problem)

    @property
    def _sized_plan(self) -> Plan:
        """The plan, with as many blank samples as the clients said when they joined."""
        samples = self.membership.count_samples()
        if samples != self._samples:
            data = self.plan.data
            sized = make_placeholders(describe(data, 0), len(data), data.unseen, samples, public=data.public)
            self._samples, self._sized = samples, replace(self.plan, data=sized)
        return self._sized


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
