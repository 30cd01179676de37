"""Cycles in a wait-for graph. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def closed_circles(out: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Return the strongly connected components of several nodes without outgoing edges (Tarjan). O(edges). Targets
    outside `out` are ignored."""
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    component: dict[int, int] = {}
    open_: list[int] = []
    found: list[list[int]] = []
    for start in out:
        if start in order:
            continue
        path = [(start, iter(out[start]))]
        order[start] = lowest[start] = len(order)
        open_.append(start)
        while path:
            node, targets = path[-1]
            for target in targets:
                if target not in out:
                    continue
                if target not in order:
                    order[target] = lowest[target] = len(order)
                    open_.append(target)
                    path.append((target, iter(out[target])))
                    break
                if target not in component:
                    lowest[node] = min(lowest[node], order[target])
            else:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
                if lowest[node] == order[node]:
                    members: list[int] = []
                    while not members or members[-1] != node:
                        members.append(open_.pop())
                        component[members[-1]] = len(found)
                    found.append(members)
    return [
        members
        for number, members in enumerate(found)
        if len(members) > 1
        and all(component[target] == number for node in members for target in out[node] if target in out)
    ]
