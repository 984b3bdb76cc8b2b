"""An ensemble whose members share the work: each answers for its part of a batch.

A student that is held to the mean of M networks pays for M answers to every row. The squared distance to that mean is,
up to a constant, the mean of the distances to the members, and so is the Kullback-Leibler divergence from the mean of
their probabilities. So one member's answer to each row, whichever it is, gives the same gradient in expectation, for an
M-th of the price: a stochastic gradient over members as it is over samples.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from flipguard.ensembles.combine import features_and_logits, stacked
from flipguard.ensembles.references import NetworkReference
from flipguard.types import Batch, InputError, Output, Reference


class DealtReference(NetworkReference):
    """Networks among which the rows of each batch are dealt out in equal parts, by their place in it.

    Batches come in another order in each epoch, so a row meets one member after another. The reference says of each row
    what one network says, and counts as one member.

    >>> ensemble = [nn.Linear(1, 2, bias=False) for _ in range(2)]
    >>> nothing = torch.zeros(4, dtype=torch.int64)
    >>> said = DealtReference("ensemble", ensemble)(Batch(torch.ones(4, 1), nothing, nothing, nothing[0], nothing[0]))
    >>> [torch.equal(logits, ensemble[row // 2].weight[:, 0]) for row, logits in enumerate(said.logits[0])]
    [True, True, True, True]
    """

    dealt = True

    def __init__(self, name: str, networks: Sequence[nn.Module], *, classes: tuple[int, ...] | None = None) -> None:
        super().__init__(name, networks, classes=classes)
        self.members = 1

    @property
    def heads(self) -> tuple[nn.Linear, ...]:
        """There is none that belongs to every row."""
        raise InputError(f"the reference '{self.name}' is dealt out, and has no head of its own: leave dealt out.")

    def forward(self, batch: Batch, *, features: bool = False) -> Output:
        """Logits (1, B, C')."""
        # Of a batch with fewer rows than networks the last ones see nothing.
        asked = list(zip(self.networks, dealt_out(batch.x, len(self.networks)), strict=False))
        if not features:
            return Output(joined([network(x) for network, x in asked], self.name))
        found, logits = zip(*(features_and_logits(network, x) for network, x in asked), strict=True)
        together = torch.cat(found)[None] if len({f.shape[1:] for f in found}) == 1 else None
        return Output(joined(logits, self.name), together)

    def chosen(self, batch: Batch, which: Tensor) -> Tensor:
        """There is one answer to each row, whichever member is drawn: (B, C')."""
        return self(batch).logits[0]


def deal(references: Mapping[str, Reference], rows: int) -> dict[str, Reference]:
    """The references, those of several networks dealt out among them; `rows` are those of a step."""
    found = dict(references)
    for name, reference in references.items():
        if reference.members == 1:
            continue
        # Not one that is spread over processes, or whose networks read inputs of their own.
        if type(reference) is not NetworkReference:
            raise InputError(
                f"dealt is for networks that one process asks of the student's inputs, which those of '{name}' are "
                "not: leave it out."
            )
        if reference.members > rows:
            raise InputError(f"dealt leaves some of the {reference.members} networks of '{name}' none of {rows} rows.")
        dealt = found[name] = DealtReference(name, list(reference.networks), classes=reference.classes)
        # Where the networks are: a captured step cannot bring it there.
        dealt.columns = reference.columns
    return found


def dealt_out(x: "Tensor | dict[str, Tensor]", parts: int) -> "list[Tensor] | list[dict[str, Tensor]]":
    """Inputs in so many parts of about the same number of rows, or fewer where there are fewer rows.

    >>> [part.tolist() for part in dealt_out(torch.arange(5), 3)], len(dealt_out(torch.arange(2), 3))
    ([[0, 1], [2, 3], [4]], 2)
    """
    if isinstance(x, dict):
        shares = {name: dealt_out(tensor, parts) for name, tensor in x.items()}
        return [dict(zip(shares, part, strict=True)) for part in zip(*shares.values(), strict=True)]
    return list(x.tensor_split(min(parts, len(x))))


def joined(said: Sequence[Tensor], name: str) -> Tensor:
    """The parts' logits one below another: (1, B, C')."""
    if len({part.shape[1:] for part in said}) > 1:
        # Says what is wrong with networks of different classes.
        return stacked(said, name)
    return torch.cat(list(said))[None]
