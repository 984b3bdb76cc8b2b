"""How a run's updates are carried out, and what takes its place where that is not possible.

plain     kernel by kernel, as Python comes to them
captured  the whole step as a CUDA graph, each run's on a stream of its own
compiled  the network through torch.compile, the step then captured
stacked   several networks in one step: torch.func maps one network's forward pass over all their weights
grouped   several networks in one step: one wide network of grouped convolutions and per-channel BatchNorm
paired    two networks in one step, as one where their convolutions are narrow; each pair's captured on its own stream

The last three are for networks of one kind that are trained side by side (`together`). "auto" measures where several
networks share a GPU (`choice`), captures where one has it for itself, and is plain on the CPU.
"""

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import nn

from flipguard.ensembles import NetworkReference, QuickReference, SingleStudent
from flipguard.training.capture import CannotCapture, CapturedStep, Part, Share
from flipguard.training.forwards import compiled, fused
from flipguard.training.recipe import rate
from flipguard.types import InputError, Reference

if TYPE_CHECKING:
    from flipguard.training.loop import Run

LOG = logging.getLogger("flipguard.training")
Engine = Literal["auto", "plain", "captured", "compiled", "stacked", "grouped", "paired"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
JOINT: tuple[Engine, ...] = ("stacked", "grouped", "paired")


def check_engine(engine: str) -> None:
    """Refuses what is no engine."""
    if engine not in ENGINES:
        raise InputError(f"engine must be one of {', '.join(ENGINES)}, got '{engine}'.")


def for_one(engine: Engine) -> Engine:
    """A setting that holds for members and for a network that is trained by itself, as the latter understands it.

    >>> for_one("stacked"), for_one("plain")
    ('auto', 'plain')
    """
    return "auto" if engine in JOINT else engine


def engine_to_use(asked: Engine, stored: str | None) -> Engine:
    """What was asked for; "auto" goes on with what a run was begun with, as that decides its bits on a GPU."""
    if asked == "auto":
        return next((engine for engine in ENGINES if engine == stored), "auto")
    if stored is not None and stored != asked:
        LOG.info("begun by the engine %s, this goes on by %s, as asked.", stored, asked)
    return asked


def own_step(run: "Run", engine: Engine, contexts: ExitStack) -> tuple[Engine, Share | None]:
    """A lone run's step by an engine, or by the next best; the log says why. Without a step the plain loop is left."""
    on_gpu = run.device.type == "cuda"
    if engine == "plain" or (engine == "auto" and not on_gpu):
        return "plain", None
    ways: list[Engine] = ["compiled"] if engine == "compiled" else []
    ways += ["captured"] if on_gpu else []
    try:
        if not ways:
            raise CannotCapture(f"the engine {engine} needs {'other networks' if engine in JOINT else 'a GPU'}")
        check_capturable(run)
    except CannotCapture as reason:
        LOG.warning("plain loop: %s.", reason)
        return "plain", None
    if engine in JOINT:
        LOG.warning("captured: the engine %s is for several networks side by side.", engine)
    for way, instead in zip(ways, [*ways[1:], "plain loop"], strict=True):
        try:
            return way, _step(run, way, contexts)
        except CannotCapture as reason:
            LOG.warning("%s: %s.", instead, reason)
    return "plain", None


def check_capturable(run: "Run") -> None:
    """Raises where a step depends on the host, whatever the engine."""
    if run.team.world > 1:
        raise CannotCapture("several processes train this student together")
    if run.job.resident is None:
        raise CannotCapture("the data does not live on the device")
    if run.job.recipe.checkpoint_activations:
        raise CannotCapture("activations are computed again in the backward pass")
    for name, reference in run.references.items():
        if isinstance(reference, NetworkReference) and not reference.differentiable:
            raise CannotCapture(f"the reference '{name}' runs outside of torch")
    if reason := getattr(run.method, "not_captured", None):
        raise CannotCapture(str(reason))


def _step(run: "Run", way: Engine, contexts: ExitStack) -> Share:
    with ExitStack() as own:
        half = torch.bfloat16 if run.job.recipe.precision == "bf16" else None
        for network in _networks(run.student):
            if way == "compiled":
                own.enter_context(compiled(network))
            elif (casts := own.enter_context(fused(network, half))) is not None:
                own.callback(run.casts.remove, casts)
                run.casts.append(casts)
        part = part_of(run)
        try:
            step = CapturedStep(
                [part],
                lambda batches, references: [run.update(batches[0], references[0])],
                run.autocast,
                run.device,
            )
        finally:
            # What a step that was cut short has left would be added to the next one's gradients.
            run.optimiser.zero_grad(set_to_none=True)
        contexts.push(own.pop_all())
    return Share(step)


def part_of(run: "Run") -> Part:
    """What a step on the device needs of a run; the optimiser's learning rates become tensors."""
    job = run.job
    assert job.resident is not None
    steps = job.recipe.epochs * job.steps_per_epoch
    shares = [rate(job.recipe, step, steps) for step in range(steps)]
    rates = []
    for group in run.optimiser.param_groups:
        factor = job.recipe.learning_rate * group.get("rate", 1.0)
        table = torch.tensor([factor * share for share in shares], dtype=torch.float32, device=run.device)
        group["lr"] = table[0].clone()
        rates.append((group["lr"], table))
    references = {name: _quick(run, reference) for name, reference in run.references.items()}
    return Part(job.resident(), references, run.state.add, run.state.moving, rates)


def _quick(run: "Run", reference: Reference) -> Reference:
    half = run.job.recipe.precision == "bf16" and run.device.type == "cuda"
    if isinstance(reference, NetworkReference) and half:
        return QuickReference(reference, torch.bfloat16, run.device)
    return reference


def _networks(student: nn.Module) -> list[nn.Module]:
    """The plain networks inside the student whose whole forward pass is called, or what it names instead."""
    if isinstance(student, SingleStudent):
        return [student.network]
    return list(getattr(student, "passes", getattr(student, "networks", ())))
