"""Who gets which clients: a round ends early, sums pass few actors, and every client is trained once."""

import heapq
import random
from itertools import pairwise

import pytest

from idiolect.engines.cluster.handing_out import Waiting, find_heavy, groups_of_neighbours, hand_out
from idiolect.engines.cluster.pool import Member


def carry_out(sizes, actors):
    """How long a round takes beside the least that it could, and how often sums go from one actor to another."""
    groups = groups_of_neighbours(list(enumerate(sizes)), actors)
    work = [sum(sizes[index] for index in group) for group in groups]
    waiting = Waiting(range(len(groups)), side_by_side=True, first=find_heavy(work, actors))
    members, holders, ends, now = [Member(None, None) for _ in range(actors)], {}, [], 0.0
    while len(holders) < len(groups) or ends:
        for member, group in hand_out(waiting, members, actors):
            member.assign(group, group)
            holders[group] = members.index(member)
            if len(member.assigned) == 1:
                heapq.heappush(ends, (now + work[group], holders[group]))
        now, number = heapq.heappop(ends)
        members[number].assigned.popleft()
        if members[number].assigned:
            heapq.heappush(ends, (now + work[members[number].assigned[0][1]], number))
    assert sorted(index for group in groups for index in group) == list(range(len(sizes)))
    order = [holders[group] for group in range(len(groups))]
    return now / max(sum(sizes) / actors, *sizes), 1 + sum(a != b for a, b in pairwise(order))


@pytest.mark.parametrize("actors", [1, 2, 8, 20])
@pytest.mark.parametrize("clients", [20, 100, 1000])
def test_actors_end_together_and_sums_pass_each_about_twice(actors, clients):
    draw = random.Random(0)
    for draw_size in (lambda: 1.0, lambda: draw.lognormvariate(0, 1), lambda: draw.paretovariate(1.2)):
        longer, hops = carry_out([draw_size() for _ in range(clients)], actors)
        assert longer < 1.35
        assert hops <= min(clients, 1 + 3 * actors)


def test_the_largest_begin_first_and_never_two_of_them_at_one_actor():
    groups = groups_of_neighbours([(index, 100.0 if index in (3, 57) else 1.0) for index in range(60)], 2)
    work = [max((100.0 if index in (3, 57) else 1.0) for index in group) for group in groups]
    waiting, members = Waiting(range(len(groups)), True, find_heavy(work, 2)), [Member(None, None) for _ in range(2)]
    first = []
    for member, group in hand_out(waiting, members, 2):
        member.assign(group, group)
        first.append((members.index(member), 3 in groups[group] or 57 in groups[group]))
    assert first[:2] == [(0, True), (1, True)]


def test_what_was_lost_is_handed_out_again_and_one_by_one():
    waiting, member = Waiting(range(5), side_by_side=True), Member(None, None)
    for given, group in hand_out(waiting, [member], 1):
        given.assign(group, group)
    assert [group for group, _ in member.assigned] == [0, 1]
    member.assigned.clear()
    waiting.put_back([0, 1])
    picked = [group for _, group in hand_out(waiting, [member], 1)]
    picked += [waiting.pick(member, [member]) for _ in range(len(waiting))]
    assert sorted(picked) == [0, 1, 2, 3, 4]
    member.assign(0, 0)
    assert not list(hand_out(Waiting(range(5)), [member, member], 9))
