"""What lies between two networks: their error and loss along the line through both sets of weights."""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flipguard.analysis.plots import Panel, Plot, Series, floats
from flipguard.types import Batch, InputError

TENTHS = tuple(step / 10 for step in range(11))


@dataclass(frozen=True)
class LinePoint:
    """A place t on the line, and the network's error rate and mean negative log-likelihood there."""

    t: float
    error: float
    nll: float


def loss_along_line(
    a: nn.Module, b: nn.Module, batches: Iterable[Batch], *, points: Sequence[float] = TENTHS
) -> tuple[LinePoint, ...]:
    """Error and loss of the networks θ_t = (1 - t)·θ_a + t·θ_b at each t (LatentBE, Nam et al. 2022, Eq. 15, Fig. 2).

    a stands at t = 0 and b at t = 1; t may lie outside. Both must have the same weights by name and shape. BatchNorm's
    statistics are moved along the line too; in a BatchEnsemble they are shared, and stay. Its members m and n are
    `merge(ensemble, weights=…)` with all the weight on one of them. Rows without a label (-1) are left out. The
    networks themselves are not changed, and are asked in evaluation mode.

    Two networks of one weight: the sign of the logit turns at t = 1/2, where both classes are equally likely.

    >>> a, b = nn.Linear(1, 2, bias=False), nn.Linear(1, 2, bias=False)
    >>> _ = a.weight.data.copy_(torch.tensor([[1.0], [-1.0]])), b.weight.data.copy_(torch.tensor([[-1.0], [1.0]]))
    >>> batch = Batch(torch.ones(1, 1), torch.tensor([0]), torch.arange(1), torch.zeros(()), torch.zeros(()).long())
    >>> [(p.error, round(p.nll, 4)) for p in loss_along_line(a, b, [batch], points=(0.0, 0.5, 1.0))]
    [(0.0, 0.1269), (0.0, 0.6931), (1.0, 2.1269)]
    """
    ends = _state(a), _state(b)
    shapes = [{name: tuple(value.shape) for name, value in end.items()} for end in ends]
    if shapes[0] != shapes[1]:
        names = [name for name in {**shapes[0], **shapes[1]} if shapes[0].get(name) != shapes[1].get(name)]
        raise InputError(f"a line needs two networks with the same weights; they differ in '{names[0]}'.")
    network = copy.deepcopy(a).eval()
    data = list(batches) if isinstance(batches, Iterator) else batches
    found = []
    for t in points:
        network.load_state_dict({name: _between(ends[0][name], ends[1][name], t) for name in ends[0]})
        found.append(LinePoint(float(t), *_scores(network, data)))
    return tuple(found)


def barrier(line: Sequence[LinePoint]) -> float:
    """The most by which the loss between t = 0 and t = 1 exceeds the straight line between their losses.

    Near zero where two networks lie in one low-loss region, as LatentBE's members should. The line must hold both ends.

    >>> barrier([LinePoint(0.0, 0.1, 1.0), LinePoint(0.5, 0.4, 3.0), LinePoint(1.0, 0.1, 2.0)])
    1.5
    """
    losses = {point.t: point.nll for point in line}
    if 0.0 not in losses or 1.0 not in losses:
        raise InputError("a barrier stands between two ends: the line needs points at t=0 and t=1.")
    between = [point for point in line if 0 <= point.t <= 1]
    return max(point.nll - ((1 - point.t) * losses[0.0] + point.t * losses[1.0]) for point in between)


def line_plot(lines: Mapping[str, Mapping[str, Sequence[LinePoint]]]) -> Plot:
    """Error on each part, and loss on the test part, along lines between networks: LatentBE, Fig. 2.

    `lines` holds, for each name, what `loss_along_line` found on each part of the data: "train", "test".
    """
    parts = list(dict.fromkeys(part for found in lines.values() for part in found))
    panels = [_along(f"{part} error", {n: found[part] for n, found in lines.items()}, "error") for part in parts]
    last = {name: found[parts[-1]] for name, found in lines.items()}
    panels.append(_along(f"{parts[-1]} negative log-likelihood", last, "nll"))
    facts: dict[str, float] = {}
    for name, line in last.items():
        ends = [point.nll for point in line if point.t in (0.0, 1.0)]
        inner = min((point for point in line if 0 < point.t < 1), key=lambda point: abs(point.t - 0.5))
        facts |= {f"barrier, {name}": barrier(line), f"mean loss of the ends, {name}": sum(ends) / len(ends)}
        facts[f"loss at t = {inner.t:g}, {name}"] = inner.nll
    return Plot("line", "Along the line between two networks", "LatentBE Fig. 2", tuple(panels), facts)


def _along(title: str, lines: Mapping[str, Sequence[LinePoint]], field: str) -> Panel:
    series = (
        Series(name, floats(p.t for p in line), floats(getattr(p, field) for p in line)) for name, line in lines.items()
    )
    return Panel("t", title, tuple(series))


def _state(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in network.state_dict().items()}


def _between(a: Tensor, b: Tensor, t: float) -> Tensor:
    """Counters, such as BatchNorm's number of batches, are taken from the first."""
    if not a.is_floating_point():
        return a
    return ((1 - t) * a.double() + t * b.to(a.device).double()).to(a.dtype)


def _scores(network: nn.Module, batches: Iterable[Batch]) -> tuple[float, float]:
    """The error rate and the mean negative log-likelihood over the labelled rows."""
    wrong, loss, rows = 0, 0.0, 0
    with torch.no_grad():
        for batch in batches:
            known = batch.y >= 0
            logs = torch.log_softmax(network(batch.x).double(), dim=-1)
            chosen = logs.gather(1, batch.y.clamp(min=0)[:, None])[:, 0]
            wrong += int(((logs.argmax(-1) != batch.y) & known).sum())
            loss -= float((chosen * known).sum())
            rows += int(known.sum())
    if not rows:
        raise InputError("there are no labelled rows to measure along the line.")
    return wrong / rows, loss / rows if math.isfinite(loss) else math.inf
