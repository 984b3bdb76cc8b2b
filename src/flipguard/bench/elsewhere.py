"""A bench's networks at an address that every machine reaches, where the machines share no disk."""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from flipguard.bench.node import Node
from flipguard.bench.shop import RECORD, Shop
from flipguard.training.kept import SCRATCH, kept_at, put_folder
from flipguard.training.storage import Storage, joined


@contextmanager
def at_hand(shop: Shop, node: Node) -> Iterator[Shop]:
    """A shop on this machine: it has the networks that `node` learns from, and what it keeps of `node` is mirrored."""
    if shop.kept is None:
        yield shop
        return
    with tempfile.TemporaryDirectory(prefix=f"{SCRATCH}{os.getpid()}-") as place:
        here = replace(shop, folder=Path(place))
        for parent in node.parents():
            _storage(shop, parent).fetch(here.home(parent))
        with kept_at(joined(str(shop.kept), node.folder)) as home:
            here.home(node).symlink_to(home, target_is_directory=True)
            yield here


def bring(shop: Shop, nodes: Iterable[Node], repaired: Callable[[str], None] | None = None) -> None:
    """Networks that are finished there, and not here, into the shop's own folder.

    With `repaired` what is damaged there is told and taken away first; it comes back from here, or is to be trained.
    """
    for node in nodes:
        storage = _storage(shop, node)
        if repaired is not None and (lost := storage.repair({}, marked=False)):
            for each in lost:
                repaired(f"{each} is gone, or does not fit its checksum: it is made again.")
            # What has lost a file is not finished any more.
            number, files = storage.index()
            storage.commit({name: facts for name, facts in files.items() if name != RECORD}, {}, (number, files))
            if shop.is_done(node):
                put(shop, [node])
        if not shop.is_done(node) and is_there(shop, node):
            storage.fetch(shop.home(node))


def is_there(shop: Shop, node: Node) -> bool:
    """Whether a network is finished at the address."""
    return RECORD in _storage(shop, node).index()[1]


def put(shop: Shop, nodes: Iterable[Node]) -> None:
    """Networks that are finished here, and not there, to the address: other machines learn from them."""
    for node in nodes:
        if not is_there(shop, node):
            put_folder(_storage(shop, node), shop.home(node))


def _storage(shop: Shop, node: Node) -> Storage:
    return Storage(joined(str(shop.kept), node.folder))
