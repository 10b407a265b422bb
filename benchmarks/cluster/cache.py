"""vLLM's pool of KV blocks as far as it decides what is cached: the least recently used block is forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockCache:
    """Counts blocks, and knows which are cached.

    Only blocks that rows may share have names. Blocks that no other row can hit, of a row's own text and of its
    answer, are one entry for each row: they only have their place in the order in which blocks are forgotten.

    Like vLLM 0.32's ``BlockPool``: empty blocks are used before cached ones; of a row that ends, the last block is
    forgotten first; a block is cached from the moment when the step that computes it is planned.

    Args:
        blocks: blocks of the pool. vLLM keeps one of them to itself.
    """

    def __init__(self, blocks: int) -> None:
        self._empty = blocks - 1
        self._users: dict[int, int] = {}  # of each cached block with a name
        self._unused: OrderedDict[int, int] = OrderedDict()  # cached blocks without users, those forgotten first first

    def hits(self, names: Sequence[int], limit: int) -> int:
        """Return how many blocks are cached, from the first on, ``limit`` at most; they get one more user."""
        users, found = self._users, 0
        for name in names[:limit]:
            count = users.get(name)
            if count is None:
                break
            if not count:
                del self._unused[name]
            users[name] = count + 1
            found += 1
        return found

    def take(self, blocks: int) -> None:
        """Take blocks that are not in use.

        Raises:
            KeyError: all blocks are in use.
        """
        self._empty -= blocks
        while self._empty < 0:
            self._empty += 1
            name, count = self._unused.popitem(last=False)
            if count > 1:
                self._unused[name] = count - 1
                self._unused.move_to_end(name, last=False)
            else:
                self._users.pop(name, None)

    def put(self, names: Iterable[int]) -> None:
        """Name blocks that were taken: from now on they are hit."""
        for name in names:
            self._users[name] = self._users.get(name, 0) + 1

    def free(self, names: Sequence[int], row: int, own: int, empty: int) -> None:
        """Give back the blocks of a row.

        Args:
            names: its blocks with names.
            row: a name for the others, which nothing else has.
            own: full blocks without names.
            empty: blocks that are not full: they can't be hit, and are used first.
        """
        self._empty += empty
        if own:
            self._unused[row] = own
        users, unused = self._users, self._unused
        for name in reversed(names):
            left = users[name] = users[name] - 1
            if not left:
                unused[name] = 1
