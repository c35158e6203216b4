"""What a pickle's foreign objects become, and how the tree that holds them is looked through."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

MOST_ARGS = 64  # of a foreign call, or dimensions of a tensor
DEEPEST = 512  # objects inside each other; a module of modules takes three for each of its levels


class Inert:
    """Stands for anything foreign: takes every construction, state, item and call, and does nothing."""

    __slots__ = ("args", "elements", "entries", "state")
    origin = ""  # module.name of what it stands for
    args: tuple[Any, ...]
    state: Any
    entries: dict[Any, Any]
    elements: list[Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Inert:
        """Pickles may skip `__init__`, so everything is set here."""
        self = object.__new__(cls)
        self.args, self.state, self.entries, self.elements = args[:MOST_ARGS], None, {}, []
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes what `object` would refuse."""

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def append(self, value: Any) -> None:
        """An element of a foreign list."""
        self.elements.append(value)

    def extend(self, values: Iterable[Any]) -> None:
        """Elements of a foreign list."""
        self.elements.extend(values)

    add = append

    def __call__(self, *args: Any, **kwargs: Any) -> Inert:
        """A foreign function's result is as foreign as the function."""
        return self


def check_depth(tree: Any) -> None:
    """Whoever reads the tree may recurse into it, in Python or, comparing and showing it, in C."""
    heights: dict[int, int] = {}  # of what is done, by its id; 0 while it is open, so that a cycle ends where it closes
    path: list[tuple[Any, Iterator[Any]]] = [(tree, iter(_inside(tree)))]
    heights[id(tree)] = 0
    while path:
        node, rest = path[-1]
        for child in rest:
            if isinstance(child, (dict, list, tuple, Inert)) and id(child) not in heights:
                heights[id(child)] = 0
                path.append((child, iter(_inside(child))))
                break
        else:
            path.pop()
            below = (heights.get(id(child), 0) for child in _inside(node))
            heights[id(node)] = 1 + max(below, default=0)
        if len(path) > DEEPEST or heights[id(node)] > DEEPEST:
            raise ValueError(f"more than {DEEPEST} objects inside each other")


def _inside(node: Any) -> Iterable[Any]:
    """What a node holds; keys and elements of sets hold nothing."""
    if isinstance(node, dict):
        return node.values()
    if isinstance(node, Inert):
        return (node.state, node.entries, node.args, node.elements)
    return node if isinstance(node, (list, tuple)) else ()


def find(tree: Any, key: str) -> Any:
    """The first value stored under `key` anywhere in the tree, also inside foreign objects; None when absent.

    omegaconf keeps a scalar as an object with the value in its state's `_val`; that wrapping is taken off.
    """
    queue, seen = deque([tree]), set[int]()
    while queue:
        node = queue.popleft()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            if key in node:
                value = node[key]
                inside = value.state if isinstance(value, Inert) else None
                return inside["_val"] if isinstance(inside, dict) and "_val" in inside else value
            queue.extend(node.values())
        else:
            queue.extend(_inside(node))
    return None
