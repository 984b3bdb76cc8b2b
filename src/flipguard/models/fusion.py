"""A network's graph rewritten so that one module does what a layer, a sum and a ReLU did."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import fx, nn
from torch.nn import functional as F

_IN_PLACE = {name for name in dir(operator) if name.startswith("i") and hasattr(operator, f"__{name}__")} | {"setitem"}
UNTRACEABLE = (fx.proxy.TraceError, TypeError, ValueError, RuntimeError, AttributeError, KeyError, NotImplementedError)
"""What tracing raises for a network whose path depends on its data."""


def fuse_layers(
    network: nn.Module,
    wanted: Callable[[nn.Module], bool],
    fused: Callable[[nn.Module, bool], nn.Module],
    *,
    alone: bool = False,
) -> fx.GraphModule:
    """The network's graph over its own modules, with each `relu(layer(x))` and `relu(layer(x) + z)` as one module.

    `fused(layer, relu)` makes it; it is called with (x) or (x, z). With `alone`, a wanted layer that no ReLU follows is
    replaced too, with relu=False. The layers stay those of the network: its weights are shared, not copied. A network
    that changes a value in passing, with no use of the result, is refused (ValueError): its graph would lose that.
    """
    traced = network if isinstance(network, fx.GraphModule) else fx.symbolic_trace(network)
    modules = dict(traced.named_modules())
    if any(changes_input(node, modules) and not node.users for node in traced.graph.nodes):
        raise ValueError("a layer changes its input and its result is not used")

    def is_wanted(node: Any) -> bool:
        # What was put in itself is not in `modules`.
        layer = modules.get(str(node.target)) if isinstance(node, fx.Node) and node.op == "call_module" else None
        return layer is not None and len(node.args) == 1 and wanted(layer)

    for node in list(traced.graph.nodes):
        if _is_relu(node, modules):
            layer, rest = _before(node.args[0], is_wanted)
            if layer is not None:
                _replace(traced, node, layer, rest, fused(modules[layer.target], True))
    traced.graph.eliminate_dead_code()
    if alone:
        for node in list(traced.graph.nodes):
            if is_wanted(node):
                _replace(traced, node, node, (), fused(modules[node.target], False))
        traced.graph.eliminate_dead_code()
    traced.recompile()
    return cast(fx.GraphModule, traced)


def _replace(traced: fx.GraphModule, node: fx.Node, layer: fx.Node, rest: tuple[Any, ...], module: nn.Module) -> None:
    name = f"fused_{node.name}"
    traced.add_submodule(name, module)
    with traced.graph.inserting_before(node):
        together = traced.graph.call_module(name, (layer.args[0], *rest))
    node.replace_all_uses_with(together)


def _before(node: Any, is_wanted: Callable[[Any], bool]) -> tuple[Any, tuple[Any, ...]]:
    """The layer that alone feeds a ReLU, and what is added to it in between, if anything."""
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return None, ()
    if is_wanted(node):
        return node, ()
    if is_sum(node):
        first, second = node.args
        for layer, other in ((first, second), (second, first)):
            if isinstance(other, fx.Node) and is_wanted(layer) and len(layer.users) == 1:
                return layer, (other,)
    return None, ()


def is_sum(node: fx.Node) -> bool:
    """Whether a node adds two others."""
    adds = node.op == "call_function" and node.target in (operator.add, operator.iadd, torch.add)
    return adds and len(node.args) == 2 and not node.kwargs


def changes_input(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a node works in place on what it reads."""
    if node.op == "call_module":
        return bool(getattr(modules.get(str(node.target)), "inplace", False))
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    if node.op != "call_function":
        return False
    name = getattr(node.target, "__name__", "")
    in_place = node.kwargs.get("inplace", node.args[1:2] == (True,) and node.target is F.relu)
    return bool(in_place) or node.kwargs.get("out") is not None or name in _IN_PLACE or name.endswith("_")


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(modules.get(str(node.target)), nn.ReLU)
    return node.op == "call_function" and node.target in (F.relu, torch.relu)
