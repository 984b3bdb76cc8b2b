"""Training a bench's networks: side by side, on the CPU in processes, on a GPU in turns. What is done is kept."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from flipguard.bench.average import averaged
from flipguard.bench.cost import fresh
from flipguard.bench.elsewhere import at_hand
from flipguard.bench.node import Node, waves
from flipguard.bench.shop import LOGITS, RECORD, Shop
from flipguard.checkpoints import load_checkpoint, load_weights, save_checkpoint
from flipguard.files import whole_file
from flipguard.releases import material
from flipguard.releases.folder import write_json
from flipguard.training import begin_network, predict_logits
from flipguard.training.capture import CannotCapture
from flipguard.training.choice import stored_engine
from flipguard.training.engines import JOINT, for_one
from flipguard.training.loop import Run
from flipguard.training.pool import Event, Here, Piece, Pool, Resources
from flipguard.training.processes import Processes
from flipguard.training.state import Epoch
from flipguard.training.threads import one_thread
from flipguard.training.views import Answers, Shared
from flipguard.training.waves import in_groups, in_waves

LOG = logging.getLogger("flipguard.bench")
STATE = "state.safetensors"
OnNetwork = Callable[[Node, float], None]
"""Called with a network that is done and the seconds it took, or its share of what was trained beside it."""
OnTrouble = Callable[[Node, str], None]
"""Called with a network whose worker was lost, or that waits for a machine, and a text that says so."""


def train_all(
    shop: Shop,
    nodes: list[Node],
    *,
    processes: int | None,
    on_network: OnNetwork,
    on_trouble: OnTrouble,
    pool: Pool | None = None,
) -> None:
    """Networks, each after those that it is held to: in turns on a GPU, else in processes of this machine or a pool."""
    if shop.device != "cpu" and pool is None:
        for wave in waves(nodes, {parent for node in nodes for parent in node.parents()} - set(nodes)):
            on_one_device(shop, wave, on_network)
        return
    by_key = {node.key: node for node in nodes}

    def hear(event: Event) -> None:
        if event.kind == "done":
            on_network(by_key[event.key], event.value)
        elif event.kind in ("lost", "waits"):
            on_trouble(by_key[event.key], event.value)

    together = min(processes or torch.get_num_threads(), len(nodes))
    with one_thread():
        (pool or (Processes(together) if together > 1 else Here())).run(
            [_piece(shop, node, by_key) for node in nodes], hear
        )


def _piece(shop: Shop, node: Node, others: Mapping[str, Node]) -> Piece:
    after = frozenset(parent.key for parent in node.parents() if parent.key in others)
    resources = Resources() if node.train.resources is None else Resources(**node.train.resources.model_dump())
    return Piece(node.key, _do, (node,), shop, resources, after)


def _do(shop: Shop, node: Node, *, say: Callable[[Any], None]) -> float:
    """One network, on a GPU where it was given one."""
    given = node.train.resources is not None and node.train.resources.gpus > 0
    with at_hand(shop, node) as here:
        return _train(replace(here, device="cuda") if given else here, node)


def _train(shop: Shop, node: Node) -> float:
    began = time.perf_counter()
    if node.average is not None:
        network = averaged(shop, node)
        return _keep(shop, node, [network], time.perf_counter() - began)
    run = _begin(shop, node)
    for _ in run.updates():
        pass
    return _keep(shop, node, _pieces(shop, node, run), time.perf_counter() - began)


def _begin(shop: Shop, node: Node, answers: Answers | None = None) -> Run:
    home = shop.home(node)
    home.mkdir(parents=True, exist_ok=True)
    asked = shop.asked(node)
    return begin_network(
        node.model,
        shop.set_of(node),
        node.method,
        node.recipe,
        seeds=node.seeds,
        references={need: shop.reference(node, need) for need in node.references},
        augmentation=shop.augmentation_of(node),
        device=shop.device,
        checkpoint=home / STATE,
        checkpoint_every=node.train.checkpoint_every,
        engine=for_one(node.train.engine),
        all_members=node.plan.keeps == "members",
        on_epoch=_Snapshots(home, node) if node.plan.keeps == "snapshots" else None,
        shared=Shared(answers, asked) if answers is not None and asked else None,
    )


@dataclass(frozen=True)
class _Snapshots:
    """Keeps the network at the end of each cycle, in files: a run that is cut off has them when it goes on."""

    home: Path
    node: Node

    def epochs(self) -> list[int]:
        recipe = self.node.recipe
        each = recipe.epochs // recipe.cycles
        return [each * (cycle + 1) - 1 for cycle in range(recipe.cycles)]

    def path(self, epoch: int) -> Path:
        return self.home / f"epoch_{epoch}.safetensors"

    def __call__(self, epoch: Epoch, network: nn.Module) -> None:
        if epoch.epoch in self.epochs():
            save_checkpoint(self.path(epoch.epoch), network.state_dict(), {"epoch": epoch.epoch})

    def networks(self, classes: int) -> list[nn.Module]:
        found = []
        for epoch in self.epochs():
            tensors, _ = load_checkpoint(self.path(epoch))
            found.append(load_weights(fresh(self.node, classes)[0], tensors, self.path(epoch)).eval())
        return found

    def remove(self) -> None:
        for epoch in self.epochs():
            self.path(epoch).unlink(missing_ok=True)


def _pieces(shop: Shop, node: Node, run: Run) -> list[nn.Module]:
    if node.plan.keeps == "members":
        return run.members()
    released = run.released()
    if node.plan.keeps == "release":
        return [released]
    return _Snapshots(shop.home(node), node).networks(len(shop.set_of(node).classes))


def _keep(shop: Shop, node: Node, pieces: list[nn.Module], seconds: float) -> float:
    """Weights, what they say of the parts that were held out, and last the record."""
    home = shop.home(node)
    home.mkdir(parents=True, exist_ok=True)
    said: dict[str, npt.NDArray[np.float32]] = {}
    for place, network in enumerate(pieces):
        save_checkpoint(home / f"{place}.safetensors", network.state_dict(), {"network": node.label, "key": node.key})
        for part in material.held_out(shop.data):
            said[f"{place}.{part}"] = predict_logits(network, shop.data, part, device=shop.device)
    with whole_file(home / LOGITS) as beside, beside.open("wb") as file:
        np.savez(file, **said)  # type: ignore[arg-type]
    facts = {"network": node.label, "key": node.key, "seconds": round(seconds, 3), "hardware": hardware(shop.device)}
    write_json(home / RECORD, facts, sealed=True)
    _Snapshots(home, node).remove()
    (home / STATE).unlink(missing_ok=True)
    return seconds


def hardware(device: str) -> str:
    """What a training ran on."""
    name = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "CPU"
    return f"{name}, torch {torch.__version__.split('+')[0]}"


def on_one_device(shop: Shop, nodes: list[Node], on_network: OnNetwork) -> None:
    """Networks whose references are there, in this process: on a GPU side by side, elsewhere one after another."""
    for node in nodes:
        if node.average is not None:
            on_network(node, _train(shop, node))

    # Students of one ensemble that see the same views of the same samples have it asked once.
    answers = Answers(key for node in nodes for keys in shop.asked(node).values() for key in {*keys})

    def begin(node: Node) -> Run:
        return _begin(shop, node, answers)

    def keep(waves: Iterator[tuple[list[tuple[Node, Run]], float]]) -> None:
        for wave, seconds in waves:
            for node, run in wave:
                on_network(node, _keep(shop, node, _pieces(shop, node, run), seconds / len(wave)))
                # With it goes what it was held to, which may be as large as a card has room for.
                del run

    trained = [node for node in nodes if node.average is None]
    for kind in _kinds(shop, trained):
        try:
            keep(in_groups(kind, begin, kind[0].train.engine, shop.device, shop.turns))
        except CannotCapture as reason:
            LOG.warning("%s and others each by itself: %s.", kind[0].label, reason)
    keep(in_waves([node for node in trained if not shop.is_done(node)], begin, shop.device, shop.turns))


def _kinds(shop: Shop, nodes: list[Node]) -> list[list[Node]]:
    """Networks that differ by their seeds alone, where the spec has an engine that trains several in one step."""
    found: dict[str, list[Node]] = {}
    for node in nodes:
        if node.train.engine in JOINT and not node.references and node.plan.keeps == "release":
            kind = (node.model.described(), node.recipe, node.method, node.part, node.plan.augment, node.train.engine)
            found.setdefault(repr(kind), []).append(node)
    # One that is left of several goes on as it was begun.
    return [
        alike
        for alike in found.values()
        if len(alike) > 1 or stored_engine([shop.home(alike[0]) / STATE]) == alike[0].train.engine
    ]
