"""The engine `ray`: clients' work on the actors of a cluster, group by group, with the code and the bits of `workers`.
The store stays with the driver; what all clients get travels once per node. Work is a pure function of the plan, the
round, states and downloads, so a group that was lost is done again by another actor. Where the server's step needs
nothing but sums, uploads stay with the actors, which add them up one after another."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ...contract import Download, Upload
from ...core import tree
from ...core.errors import ClusterError
from ...core.names import visible
from ...core.sums import Sums
from ...core.tree import Slots
from ..flat import pack, unpack
from ..loop import Fetch, Outcomes, Scores, States
from ..plan import Plan
from ..processes import eval_groups, group_ids
from .handing_out import Waiting, find_heavy, groups_in_order, groups_of_neighbours, hand_out, share_leaves
from .messages import Adding, Job, Reply, SumsBySlot, Trained, make_job, name_clients, unpack_sums
from .pool import TRIES, ActorPool, Member, name_reason
from .shipping import ship

log = logging.getLogger("idiolect")

POLL = 1.0
LEAST_SHARE, MOST_SHARES = 1 << 20, 8
"""Parameters are added up in at most so many shares, each of at least so many of them."""


@dataclass
class Round:
    """The newest round of training, as long as its uploads may be asked for."""

    round: int
    states: States
    download: Download
    serial: int
    common: Any
    groups: list[Sequence[int]]
    keep: bool
    holders: dict[int, Member] = field(default_factory=dict)


class RayEngine:
    """Clients' work on a cluster.

    Args:
        plan: what is computed.
        pool: gives the actors.
        chunk: how many clients to stack and trace at once; 0 takes them one by one.
        sums: let actors add up uploads where the method allows it.
        timeout: seconds that one group may take.
        keep_pool: leave the actors to another run when this one ends.
    """

    def __init__(
        self,
        plan: Plan,
        pool: Callable[[], ActorPool],
        chunk: int = 0,
        sums: bool = True,
        timeout: float = 3600.0,
        keep_pool: bool = False,
    ) -> None:
        self.plan, self.chunk, self.timeout = plan, chunk, timeout
        self._make_pool, self._keep_pool = pool, keep_pool
        self.sums = sums and all(slot.up != "each" for slot in plan.method.slots.values())
        self.unstacked = ""
        self._pool: ActorPool | None = None
        self._serial = 0
        self._newest: Round | None = None

    @property
    def pool(self) -> ActorPool:
        """The actors, which are started when they are first needed."""
        if self._pool is None:
            self._pool = self._make_pool()
            self._pool.prepare(self._pool.ray.put(ship(self.plan)), self.chunk, os.getcwd())
        return self._pool

    def note_unstacked(self, problem: str) -> None:
        """Remember, and say once, why clients are run one by one where they should have been stacked."""
        if problem and not self.unstacked:
            self.unstacked = problem
            log.warning("the vector engine runs these clients one by one: %s", problem)

    def train(self, round: int, states: States, download: Download) -> Outcomes:
        """Run the clients' part of one round; results come as they are ready."""
        actors, work = self.pool.wanted, {index: len(self.plan.data.clients[index]) for index in states}
        if self.sums and not self.chunk:
            groups = groups_of_neighbours(list(work.items()), actors)
        else:
            groups = group_ids(self.plan, list(states), self.chunk, 4 * actors)
        keep = self.sums and groups_in_order(groups)
        serial, common = self._send_common(download)
        self._newest = newest = Round(round, states, download, serial, common, groups, keep)
        for _, trained in self._train_groups(newest, range(len(groups))):
            yield from self._read(trained)

    def evaluate(self, round: int, ids: Sequence[int], states: Fetch, download: Download, unseen: bool) -> Scores:
        """Evaluate clients group by group."""
        if not ids:
            return
        groups = eval_groups(ids)
        serial, common = self._send_common(download)
        jobs = lambda group: make_job(  # noqa: E731
            "evaluate", serial, round, states(groups[group]), download, unseen=unseen
        )
        for _, _, results in self._drive(groups, Waiting(range(len(groups))), jobs, common):
            yield from results

    def add_up(self, server: Slots, ids: Sequence[int]) -> Mapping[str, Sums]:
        """Sums over the uploads that some clients made in the round that was trained last: one actor after another adds
        its clients' to those before, in the order of clients, as one machine does."""
        newest, wanted = self._newest, frozenset(ids)
        assert newest is not None
        chosen = [sorted(wanted.intersection(group)) for group in newest.groups]
        adding = Adding(newest.round, pack([server]), self._shares)
        for _ in range(TRIES):
            lost = [group for group, some in enumerate(chosen) if some and not newest.holders[group].alive]
            for _ in self._train_groups(newest, lost):
                pass  # what they made is known; only the uploads were lost
            sums = self._add_up(newest, chosen, adding)
            if sums is not None:
                return sums
        raise ClusterError(
            f"the sums of round {newest.round + 1} were lost {TRIES} times with the actors that held them; the rounds"
            " before it are saved, so look at the nodes and resume"
        )

    def _add_up(self, newest: Round, chosen: list[list[int]], adding: Adding) -> SumsBySlot | None:
        """Sums over some clients of each group, passed on from actor to actor; None where one was lost. While one adds
        to a share of the leaves, those before it add to the next shares."""
        parts: list[tuple[Member, list[int]]] = []
        for group, ids in enumerate(chosen):
            holder = newest.holders[group]
            if ids and parts and parts[-1][0] is holder:
                parts[-1][1].extend(ids)
            elif ids:
                parts.append((holder, list(ids)))
        ray, shares = self.pool.ray, len({0, *adding.shares.values()})
        what, sums = ray.put(adding), [None] * shares
        for last in range(len(parts) + shares - 1):  # so that no actor is to wait for what is asked for later
            for share in range(max(0, last - len(parts) + 1), min(shares, last + 1)):
                holder, ids = parts[last - share]
                sums[share] = holder.handle.add_up.remote(what, ids, share, sums[share])
        try:
            replies: list[Reply] = ray.get(sums, timeout=self.timeout)
        except ray.exceptions.RayError as error:
            for holder in {id(member): member for member, _ in parts}.values():
                if not self._answers(holder):
                    self.pool.remove(holder, name_reason(error))
            return None
        return self._join(replies)

    def _join(self, replies: Sequence[Reply]) -> SumsBySlot:
        """The sums of all leaves, from those of each share."""
        for reply in replies:
            self.pool.log_warnings(reply)
            if reply.error is not None:
                raise reply.error
        shares = [unpack_sums(reply.result, self.plan.device) for reply in replies]
        return {key: Sums.join([sums[key] for sums in shares]) for key in shares[0]}

    @cached_property
    def _shares(self) -> dict[str, int]:
        """The shares in which leaves are added up."""
        sizes = Counter[str]()
        for task in self.plan.tasks:
            sizes |= Counter({name: leaf.numel() for name, leaf in task.initial["params"].items()})
        return share_leaves(sizes, LEAST_SHARE, MOST_SHARES)

    def _answers(self, member: Member) -> bool:
        """Whether an actor is there."""
        ray = self.pool.ray
        try:
            ray.get(member.handle.process.remote(), timeout=self.timeout)
        except ray.exceptions.RayError:
            return False
        return True

    def _send_common(self, download: Download) -> tuple[int, Any]:
        """Put what all clients get where every node fetches it once."""
        self._serial += 1
        return self._serial, self.pool.ray.put(pack([download.shared]))

    def _train_groups(self, newest: Round, groups: Sequence[int]) -> Iterator[tuple[int, Trained]]:
        def job(group: int) -> Job:
            states = {i: newest.states[i] for i in newest.groups[group]}
            return make_job("train", newest.serial, newest.round, states, newest.download, keep=newest.keep)

        waiting = Waiting(groups)
        if newest.keep:
            work = [sum(len(self.plan.data.clients[index]) for index in group) for group in newest.groups]
            waiting = Waiting(groups, side_by_side=True, first=find_heavy(work, self.pool.wanted))
        for group, member, trained in self._drive(newest.groups, waiting, job, newest.common):
            newest.holders[group] = member
            yield group, trained

    def _read(self, trained: Trained) -> Outcomes:
        """Outcomes with their slots."""
        slots = iter(
            [None if part is None else tree.to_device(part, self.plan.device) for part in unpack(trained.slots)]
        )
        for index, outcome in trained.outcomes:
            self.note_unstacked(outcome.unstacked)
            state = next(slots) or {}
            if outcome.report is None:
                sent, masks = next(slots), next(slots)
                outcome = replace(outcome, upload=None if sent is None else Upload(sent, masks or {}))
            else:
                next(slots), next(slots)
            yield index, replace(outcome, state=state)

    def _drive(
        self, clients: Sequence[Sequence[int]], waiting: Waiting, make: Any, common: Any
    ) -> Iterator[tuple[int, Member, Any]]:
        """Keep all actors busy with groups, and yield their results as they come; what is lost is done again, up to
        three times."""
        pool, failures, left = self.pool, Counter[int](), len(waiting)
        ray = pool.ray
        for member in pool.members:  # what an earlier call left undone is nobody's any more
            member.assigned.clear()
            member.last = -1
        while left:
            pool.fill()
            for member, group in hand_out(waiting, pool.members, pool.wanted):
                member.assign(member.handle.work.remote(make(group), common), group)
            holders = {reference: member for member in pool.members for reference, _ in member.assigned}
            ready, _ = ray.wait([*holders, *pool.starting], num_returns=1, timeout=POLL)
            for reference in ready:
                if reference in pool.starting:
                    pool.admit(reference)
                    continue
                member, group = holders[reference], dict(holders[reference].assigned)[reference]
                try:
                    reply: Reply = ray.get(reference)
                except ray.exceptions.RayError as error:
                    self._lose(member, name_reason(error), waiting, failures, clients)
                    continue
                member.finish(reference)
                pool.log_warnings(reply)
                if reply.error is not None:
                    raise reply.error
                left -= 1
                yield group, member, reply.result
            now = time.monotonic()
            for member in [m for m in pool.members if m.assigned and now - m.since > self.timeout]:
                self._lose(member, f"it gave no answer for {self.timeout:g} s", waiting, failures, clients)
            pool.require_some()

    def _lose(
        self, member: Member, reason: str, waiting: Waiting, failures: Counter[int], clients: Sequence[Sequence[int]]
    ) -> None:
        """Put back what an actor was assigned; the first of it was what it worked on, and may be the cause."""
        groups = self.pool.remove(member, reason)
        failures.update(groups[:1])
        waiting.put_back(groups)
        for group in groups[:1]:
            if failures[group] >= TRIES:
                names = name_clients([visible(self.plan.data.clients[index].name) for index in clients[group]])
                raise ClusterError(
                    f"the work of client {names} failed {TRIES} times, each time with its actor ({reason}); if memory"
                    " ran out, use smaller batches, or more cores per actor (cpus=2) so that fewer share a node; the"
                    " rounds before this one are saved"
                )

    def close(self) -> None:
        """Stop the actors, and leave the cluster."""
        self._newest = None
        if self._pool is not None and not self._keep_pool:
            self._pool.stop()
        self._pool = None
