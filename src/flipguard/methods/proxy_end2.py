"""Proxy-EnD²: the student's logits as a Dirichlet, held to one that stands for the members' answers."""

from dataclasses import dataclass

from flipguard.losses import proxy_dirichlet
from flipguard.methods.card import Card
from flipguard.methods.checks import check_shares
from flipguard.methods.objective import Distilling, Seen
from flipguard.methods.terms import Terms


@dataclass(frozen=True)
class ProxyDirichlet(Distilling):
    """L = (1 - α)·CE + α·the reverse KL from the student's Dirichlet to the ensemble's proxy (LatentBE Eq. 30-33).

    Ryabinin et al. 2021. The papers have α = 1. The estimate of the proxy is poor with few members (LatentBE, Section
    5.3). `proxy_dirichlet` says where its form departs from Eq. 33.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(alpha=self.alpha)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("ensemble",)

    @property
    def label_weight(self) -> float:
        return 1 - self.alpha

    def terms(self, seen: Seen) -> Terms:
        return {"proxy_dirichlet": (self.alpha, proxy_dirichlet(*seen.members_of("ensemble")))}


CARDS = (
    Card(
        name="proxy_end2",
        summary="Learns, as a Dirichlet, what an ensemble says and how far its members disagree.",
        kind="objective",
        paper="Ryabinin et al. 2021; Nam et al. 2022 (LatentBE)",
        equation="30-33",
        training_cost="1 + 4m/3",
        references=("ensemble",),
        factory=ProxyDirichlet,
        departures={"agreement": "the divergence of two Dirichlet distributions is left without its constant"},
    ),
)
