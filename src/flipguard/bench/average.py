"""Networks that are averages of others' weights: soups, and points between an old and a new one."""

from dataclasses import replace

from torch import nn

from flipguard.bench.node import Node
from flipguard.bench.shop import Shop
from flipguard.data import Batches, Split
from flipguard.ensembles import average_weights
from flipguard.methods import Soup, choose_alpha


def averaged(shop: Shop, node: Node) -> nn.Module:
    """The mean that the node stands for; α is chosen on the validation part where its method says so."""
    method = node.average
    assert method is not None
    old = shop.networks(node, "old")[0] if "old" in node.references else None
    new = shop.networks(node, "ensemble" if isinstance(method, Soup) else "new")
    # What BatchNorm's statistics are measured on.
    batches = _batches(shop, shop.set_of(node).train, node.recipe.batch_size)
    if method.alpha == "validation":
        assert old is not None
        validation = list(_batches(shop, shop.data.part("validation"), 1024))
        chosen = choose_alpha(old, average_weights(new), validation, batches=batches)
        method = replace(method, alpha=chosen.alpha)
    if isinstance(method, Soup):
        return method(new, old=old, batches=batches)
    assert old is not None
    return method(old, new[0], batches=batches)


def _batches(shop: Shop, part: Split, size: int) -> Batches:
    return Batches(part, size, normalisation=shop.data.normalisation, device=shop.device)
