"""flipguard's figures as a torchmetrics metric: its states are the tally's sums, so batches and ranks add up."""

from typing import Any

from flipguard.metrics import Tally, figures, tally
from flipguard.metrics.sums import INTEGER_LEAVES, LEAF_SHAPES
from flipguard.types import InputError, MissingExtra

try:
    import torch
    import torchmetrics
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"the torchmetrics integration needs {error.name}; install it with: pip install 'flipguard[torchmetrics]'"
    ) from error


class FlipMetrics(torchmetrics.Metric):
    """All figures of an update from an old to a new classifier, batch by batch.

    `compute` gives the figures that the batches so far allow, as tensors under their JSON names: those of scores only
    once logits came, the weighted ones only once weights came, the calibrated ones only with `temperature` (old, new).
    Figures that are not single numbers (`logit_displacement_by_outcome`, `flip_rank`) follow from `tally`. Nothing
    waits for the device before `compute`.

    >>> metric = FlipMetrics()
    >>> metric.update(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0]), torch.tensor([0, 0, 1]))
    >>> round(metric.compute()["negative_flip_rate"].item(), 4)
    0.3333
    """

    full_state_update = False
    is_differentiable = False
    weighted: Any

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        temperature: tuple[float, float] | None = None,
        **torchmetrics_options: Any,
    ) -> None:
        super().__init__(**torchmetrics_options)
        self.alpha = alpha
        self.temperature = temperature
        for name, shape in LEAF_SHAPES.items():
            dtype = torch.int64 if name in INTEGER_LEAVES else torch.float64
            self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")
        self.add_state("weighted", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(
        self,
        label: Any,
        old: Any = None,
        new: Any = None,
        *,
        old_logits: Any = None,
        new_logits: Any = None,
        weight: Any = None,
    ) -> None:
        """Adds a batch: (B,) labels and predictions (-1 for none), (B, C) logits, (B,) weights.

        Predictions may be left out where logits are given. Weights come with every batch or with none.
        """
        batch = tally(
            label,
            old,
            new,
            old_logits=old_logits,
            new_logits=new_logits,
            weight=weight,
            alpha=self.alpha,
            temperature=self.temperature,
        )
        for name, leaf in batch.leaves().items():
            setattr(self, name, getattr(self, name) + leaf)
        if weight is not None:
            self.weighted = self.weighted + label.shape[0]

    @property
    def tally(self) -> Tally:
        """The sums so far; the parts of which no row came are None."""
        rows = int(self.count.sum())
        weighted = int(self.weighted)
        if weighted not in (0, rows):
            raise InputError(
                f"{weighted:,} of {rows:,} rows came with weights; pass weight= with every batch or with none."
            )
        empty = {
            "weight": weighted == 0,
            "models": not bool(self.models_n.any()),
            "pair": not bool(self.pair_n.any()),
            "calibrated": not bool(self.calibrated_n.any()),
        }
        names = [name for name in LEAF_SHAPES if not empty.get(name.partition("_")[0], False)]
        return Tally.from_leaves({name: getattr(self, name) for name in names})

    def compute(self) -> dict[str, Any]:
        """The figures by name, as 0-d float64 tensors."""
        return {name: figure for name, figure in figures(self.tally).items() if figure.ndim == 0}
