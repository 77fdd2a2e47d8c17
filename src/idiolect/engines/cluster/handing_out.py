"""Which clients go together to an actor, and who gets which group next. Nothing of it changes a bit of the results: it
decides how long a round takes, and how often sums over clients pass from actor to actor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .pool import Member

GROUPS_PER_ACTOR = 2
"""Groups of clients that an actor has at a time, so that it need not wait for the next."""
MOST = 8
"""The most clients of a group that is not a stack."""
PER_ACTOR = 8
"""Groups of neighbours per actor, where there are clients enough."""


def groups_of_neighbours(work: Sequence[tuple[int, float]], actors: int) -> list[Sequence[int]]:
    """Groups of clients that follow each other, of about equal work where there are enough of them.

    Args:
        work: each client and how much work it is.
        actors: how many share the groups.

    >>> groups_of_neighbours([(number, 1.0) for number in (9, *range(7))], actors=1)
    [[0], [1], [2], [3], [4], [5], [6], [9]]
    >>> [len(group) for group in groups_of_neighbours([(n, 1.0 if n else 30.0) for n in range(60)], actors=2)]
    [1, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 4]
    """
    share = sum(size for _, size in work) / (PER_ACTOR * actors)
    groups, filled = list[list[int]](), 0.0
    for index, size in sorted(work):
        if not groups or len(groups[-1]) == MOST or filled + size > share:
            groups.append([])
            filled = 0.0
        groups[-1].append(index)
        filled += size
    return list(groups)


def groups_in_order(groups: Sequence[Sequence[int]]) -> bool:
    """Whether groups are of clients that follow each other.

    >>> groups_in_order([[0, 2], [3]]), groups_in_order([[0, 3], [2]])
    (True, False)
    """
    flat = [index for group in groups for index in group]
    return flat == sorted(flat)


def hand_out(waiting: Waiting, members: Sequence[Member], wanted: int) -> Iterator[tuple[Member, int]]:
    """What actors are given next: a group for each that has none, then a second one, unless so few are left that they
    had better wait for whoever is free first, or one was lost: then it must be known which group an actor dies of.
    `wanted` is how many actors there should be."""
    for most in range(1, GROUPS_PER_ACTOR + 1):
        for member in members:
            enough = most == 1 or (not waiting.lost and len(waiting) >= max(wanted, len(members)))
            if len(member.assigned) < most and enough and waiting:
                yield member, waiting.pick(member, members)


def find_heavy(work: Sequence[float], actors: int) -> list[int]:
    """The groups that are more than half of an actor's share of all work, the largest first: a round would wait for one
    that begins late.

    >>> find_heavy([1, 9, 1, 1, 30, 1], actors=4)
    [4, 1]
    """
    limit = sum(work) / (2 * actors)
    return sorted((group for group, size in enumerate(work) if size > limit), key=lambda group: -work[group])


def share_leaves(sizes: Mapping[str, int], least: int, most: int) -> dict[str, int]:
    """For each name of a leaf its share, of at most so many shares of about `least` numbers or more.

    >>> share_leaves({"a": 50, "b": 30, "c": 30, "d": 1}, least=40, most=8)
    {'a': 0, 'b': 1, 'c': 1, 'd': 0}
    """
    filled, shares = [0] * max(1, min(most, sum(sizes.values()) // least)), dict[str, int]()
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        shares[name] = filled.index(min(filled))
        filled[shares[name]] += sizes[name]
    return shares


class Waiting:
    """The groups that nobody has yet. They are handed out in their order, the largest first, or `side_by_side`: then an
    actor goes on beside the group that it had last, because what lies beside each other is added up in one place, and
    only groups that are much work come `first`."""

    def __init__(self, groups: Sequence[int], side_by_side: bool = False, first: Sequence[int] = ()) -> None:
        self.runs, self.side_by_side = join_neighbours(groups), side_by_side
        self.first = [group for group in first if group in self]
        self.lost = 0

    def __len__(self) -> int:
        """How many they are."""
        return sum(map(len, self.runs))

    def __contains__(self, group: object) -> bool:
        """Whether nobody has a group."""
        return any(group in run for run in self.runs)

    def put_back(self, groups: Sequence[int]) -> None:
        """Groups that were lost."""
        self.lost += len(groups)
        self.runs = join_neighbours([*(group for run in self.runs for group in run), *groups])

    def pick(self, member: Member, others: Sequence[Member]) -> int:
        """The next group for an actor.

        >>> a, b = Member(None, None), Member(None, None)
        >>> waiting = Waiting(range(8), side_by_side=True, first=[7])
        >>> picked = []
        >>> for each in (a, b, b, a, a, b):
        ...     each.last = waiting.pick(each, [a, b])
        ...     picked.append(each.last)
        >>> picked
        [7, 0, 1, 4, 5, 2]
        """
        group = self._choose(member, others)
        at = next(at for at, run in enumerate(self.runs) if group in run)
        parts = range(self.runs[at].start, group), range(group + 1, self.runs[at].stop)
        self.runs[at : at + 1] = [part for part in parts if part]
        return group

    def _choose(self, member: Member, others: Sequence[Member]) -> int:
        while self.first:
            if (group := self.first.pop(0)) in self:
                return group
        if not self.side_by_side:
            return self.runs[0].start
        if member.last >= 0 and member.last + 1 in self:
            return member.last + 1
        longest = max(self.runs, key=len)
        taken = any(other.last >= 0 and other.last + 1 == longest.start for other in others)
        return longest[len(longest) // 2] if taken else longest.start


def join_neighbours(numbers: Sequence[int]) -> list[range]:
    """Numbers as runs of those that follow each other.

    >>> join_neighbours([4, 0, 1, 5, 3])
    [range(0, 2), range(3, 6)]
    """
    runs = list[range]()
    for number in sorted(numbers):
        joined = bool(runs) and runs[-1].stop == number
        runs[len(runs) - joined :] = [range(runs[-1].start if joined else number, number + 1)]
    return runs
