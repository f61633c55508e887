"""How deep references lead: the longest chain through a graph.

The grammar library calls itself for each reference that it follows, on a stack of limited size. Parts that refer to
each other in a circle count together: whichever way through them is taken, each is passed once at most.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

N = TypeVar("N", bound=Hashable)

MAX_REFERENCES = 500  # max references of a chain


def longest_chain(graph: Mapping[N, Mapping[N, int]], start: N) -> int:
    """The cost of the most expensive chain from `start`, where `graph[a][b]` is what it costs to refer from a to b."""
    longest = 0
    costs: dict[int, int] = {}  # of what begins in a circle, by its number
    circle_of: dict[N, int] = {}
    for number, circle in enumerate(_circles(graph, start)):  # those that are referred to come first
        circle_of.update(dict.fromkeys(circle, number))
        inside = outside = 0
        for node in circle:
            steepest = 0
            for target, cost in graph.get(node, {}).items():
                if circle_of[target] == number:
                    steepest = max(steepest, cost)
                else:
                    outside = max(outside, cost + costs[circle_of[target]])
            inside += steepest
        longest = costs[number] = inside + outside
    return longest


def _circles(graph: Mapping[N, Mapping[N, int]], start: N) -> list[list[N]]:
    """The strongly connected parts that `start` leads to, each behind those that it refers to. Tarjan's, without
    recursion."""
    order: dict[N, int] = {}
    low: dict[N, int] = {}
    open_: list[N] = []
    closed: set[N] = set()
    found: list[list[N]] = []
    order[start] = low[start] = 0
    open_.append(start)
    path = [(start, iter(graph.get(start, {})))]
    while path:
        node, targets = path[-1]
        for target in targets:
            if target not in order:
                order[target] = low[target] = len(order)
                open_.append(target)
                path.append((target, iter(graph.get(target, {}))))
                break
            if target not in closed:
                low[node] = min(low[node], order[target])
        else:
            path.pop()
            if path:
                low[path[-1][0]] = min(low[path[-1][0]], low[node])
            if low[node] == order[node]:
                circle = []
                while node not in closed:
                    closed.add(open_[-1])
                    circle.append(open_.pop())
                found.append(circle)
    return found
