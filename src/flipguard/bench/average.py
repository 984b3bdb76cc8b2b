"""Networks that are averages of others' weights: soups, and points between an old and a new one."""

from dataclasses import replace

from torch import nn

from flipguard.bench.node import Node
from flipguard.bench.shop import Shop
from flipguard.data import Batches
from flipguard.ensembles import average_weights
from flipguard.methods import Soup, choose_alpha


def averaged(shop: Shop, node: Node) -> nn.Module:
    """The mean that the node stands for; α is chosen on the validation part where its method says so."""
    method = node.average
    assert method is not None
    old = shop.networks(node, "old")[0] if "old" in node.references else None
    new = shop.networks(node, "ensemble" if isinstance(method, Soup) else "new")
    # What BatchNorm's statistics are measured on.
    scale, size = shop.data.normalisation, node.recipe.batch_size
    batches = Batches(shop.set_of(node).train, size, normalisation=scale, device=shop.device)
    if method.alpha == "validation":
        assert old is not None
        part = shop.data.part("validation")
        validation = list(Batches.asked(part, normalisation=scale, device=shop.device))
        chosen = choose_alpha(old, average_weights(new), validation, batches=batches)
        method = replace(method, alpha=chosen.alpha)
    if isinstance(method, Soup):
        return method(new, old=old, batches=batches)
    assert old is not None
    return method(old, new[0], batches=batches)
