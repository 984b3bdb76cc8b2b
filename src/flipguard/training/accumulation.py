"""A batch in parts, one after another, and their results as the whole batch's."""

from dataclasses import replace

import torch

from flipguard.types import Batch, Step


def parts_of(batch: Batch, number: int) -> list[Batch]:
    """Nearly equal parts of a batch, along its rows."""
    if number == 1:
        return [batch]
    x = batch.x
    pieces = (
        [dict(zip(x, values, strict=True)) for values in zip(*(v.chunk(number) for v in x.values()), strict=True)]
        if isinstance(x, dict)
        else list(x.chunk(number))
    )
    rows = zip(pieces, batch.y.chunk(number), batch.index.chunk(number), strict=True)
    return [replace(batch, x=piece, y=y, index=index) for piece, y, index in rows]


def whole_step(results: list[tuple[float, Step]]) -> Step:
    """The step of the whole batch: terms are means over rows, so each part counts by its share of them."""
    if len(results) == 1:
        return detached(results[0][1])
    loss = sum((share * part.loss.detach() for share, part in results[1:]), results[0][0] * results[0][1].loss.detach())
    logits = torch.cat([part.logits.detach() for _, part in results], dim=1)
    terms = {
        name: torch.stack([share * part.terms[name].detach() for share, part in results]).sum()
        for name in results[0][1].terms
    }
    return Step(loss, logits, terms)


def detached(step: Step) -> Step:
    """A step's figures without what they were computed from."""
    return Step(step.loss.detach(), step.logits.detach(), {name: term.detach() for name, term in step.terms.items()})
