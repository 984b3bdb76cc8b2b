"""A BatchEnsemble in training."""

from typing import Any, Literal, get_args

from torch import Tensor, nn

from flipguard.ensembles.batch import BatchEnsemble, Merge, merge
from flipguard.ensembles.rank_one import factor_parameters
from flipguard.ensembles.students import decay_groups
from flipguard.types import InputError, Output

Released = Literal["merged", "ensemble"]


class BatchStudent(nn.Module):
    """M members in one network, trained side by side; factors start at 1, or normal around it with `std`.

    With the sum of the members' losses, the shared weights move by the mean of the members' gradients and each factor
    by its own member's (Algorithms 1 and 2 of LatentBE): in training the logits pass 1/M of their gradient on, and the
    factors multiply theirs by M. Decay pulls the factors towards 1, by the recipe's `weight_decay` or `factor_decay`,
    also where the recipe decays matrices alone. `factor_rate` multiplies their learning rate.

    Released is the merged network, at the cost of one, or the whole ensemble, which answers by its mean probability.
    """

    def __init__(
        self,
        network: nn.Module,
        members: int,
        *,
        std: float = 0.0,
        released: Released = "merged",
        how: Merge = "mean_of_products",
        factor_rate: float = 1.0,
        factor_decay: float | None = None,
        folded: bool | None = None,
        decay_all: bool = True,
    ) -> None:
        super().__init__()
        if released not in get_args(Released):
            raise InputError(f"released must be one of {', '.join(get_args(Released))}, got '{released}'.")
        self.ensemble = BatchEnsemble(network, members, std=std, folded=folded)
        self.members = members
        self.released, self.how, self.decay_all = released, how, decay_all
        self.factor_rate, self.factor_decay = factor_rate, factor_decay

    def forward(self, x: Any, *, features: bool = False) -> Output:
        """Logits (M, B, C); features (M, B, D) when asked for."""
        answer = self.ensemble.each(x, features=features)
        # In evaluation mode the gradient with respect to x is asked for, and that must be the whole one.
        if not self.training:
            return answer
        found = None if answer.features is None else self._divided(answer.features)
        return Output(self._divided(answer.logits), found)

    @property
    def passes(self) -> list[nn.Module]:
        """What is called as a whole in training, if there is one pass for all members."""
        return [self.ensemble.network] if self.ensemble.folded else []

    def chosen(self, x: Any, which: Tensor) -> Tensor:
        """One member's logits (B, C), by its index in a tensor (1,); their gradient is the whole one."""
        return self.ensemble.chosen(x, which)

    def _divided(self, value: Tensor) -> Tensor:
        """The same value; its gradient divided by M on the way back."""
        return value + (1 / self.members - 1) * (value - value.detach())

    def parameter_groups(self) -> list[dict[str, Any]]:
        factors = factor_parameters(self.ensemble)
        own = {id(parameter) for parameter in factors}
        groups: list[dict[str, Any]] = decay_groups(self.ensemble.network, decay_all=self.decay_all)
        for group in groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in own]
        last: dict[str, Any] = {"params": factors, "rate": self.factor_rate}
        if self.factor_decay is not None:
            last["weight_decay"] = self.factor_decay
        return [*groups, last]

    def release(self) -> nn.Module:
        return merge(self.ensemble, how=self.how) if self.released == "merged" else self.ensemble
