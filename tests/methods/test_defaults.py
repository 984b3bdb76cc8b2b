"""The papers' settings, and what each method costs: facts that no formula would notice if they changed."""

from typing import Any

import pytest

from flipguard.methods import METHODS, build_method

FACTS: dict[str, dict[str, Any]] = {
    "kd": {"alpha": 0.5, "temperature": 4.0},
    "ensemble_kd": {"alpha": 0.5, "temperature": 4.0},
    # PCT Eq. 4 and the released code: α = 1, β = 5, λ = 1, τ = 100.
    "fd_kl": {"distance": "kl", "alpha": 1.0, "beta": 5.0, "strength": 1.0, "temperature": 100.0},
    "fd_lm": {"distance": "logits", "alpha": 1.0, "beta": 5.0, "strength": 1.0},
    "naive": {"strength": 1.0},
    "dropout": {"p": 0.2},
    # ELODI: α = 0.8 and no margin from an ensemble, α = 0.5 and a margin of 0.5 from a single old model.
    "elodi": {"alpha": 0.8, "mix": 1.0, "difference.margin": 0.0, "difference.p": 2.0, "difference.k": None},
    "ldi": {"alpha": 0.5, "difference.margin": 0.5},
    "heir": {"alpha": 0.5, "difference.margin": 0.0},
    # The choice of results/README.md, "New images, and branches".
    "scion": {"members": 3, "own": 0.5, "strength": 0.1, "unity": 1.0, "temperature": 3.0, "old_temperature": 100.0},
    # results/README.md, "Twins": what did good on both texts; on one of them 20 does better, on the other harm.
    "twins": {"members": 2, "own": 1.0, "strength": 0.3, "unity": 4.0, "temperature": 1.0, "old_temperature": 100.0},
    "bct": {"strength": 1.0},
    "ract": {"strength": 1.0, "temperature": 0.01, "hardest": 10, "form": "classifier"},
    "bu_cr": {"cost_ratio": 5.0},
    # LatentBE, Eq. 26 for CIFAR-100; factors around 1 by a std of 0.5 in a plain BatchEnsemble.
    "latent_be": {"alpha": 1.0, "temperature": 4.0, "how": "mean_of_products"},
    "batch_ensemble": {"alpha": 1.0, "temperature": 4.0, "std": 0.5},
    "ae_kd": {"alpha": 1.0, "temperature": 4.0, "cap": 0.6},
}

# Single-model trainings: a forward pass is a third of a step. ELODI trains m members and runs all at every step.
COSTS = {
    "none": "1",
    "dropout": "1",
    "entropy": "1",
    "skl": "1",
    "naive": "1 + 1/3",
    "kd": "1 + 1/3",
    "fd_kl": "1 + 1/3",
    "fd_lm": "1 + 1/3",
    "ldi": "1 + 1/3",
    "heir": "1 + m/3",
    # b branches over half of the blocks; the m members are there, and answer at every step.
    "scion": "1/2 + b/2 + m/3",
    # m whole networks, and one old model.
    "twins": "m + 1/3",
    "elodi": "1 + 4m/3",
    "ensemble_kd": "1 + 4m/3",
    "ensemble_fd": "1 + 4m/3",
    "ae_kd": "1 + 4m/3",
    "proxy_end2": "1 + 4m/3",
    # m members are trained, run at every step (a third each), and m passes of the student learn from them.
    "latent_be": "7m/3",
    "batch_ensemble": "7m/3",
    "paragon": "m",
}


@pytest.mark.parametrize("name", FACTS)
def test_defaults_are_the_papers(name: str) -> None:
    method = build_method(name)
    for place, expected in FACTS[name].items():
        value: Any = method
        for part in place.split("."):
            value = getattr(value, part)
        assert value == expected, place


@pytest.mark.parametrize("name", COSTS)
def test_costs_are_counted_in_single_trainings(name: str) -> None:
    assert METHODS[name].training_cost == COSTS[name]


def test_the_settings_of_other_data_sets_are_the_papers() -> None:
    settings = METHODS["ensemble_kd"].settings
    assert {key: settings[key]["temperature"] for key in ("cifar10", "cifar100", "imagenet")} == {
        "cifar10": 3.0,
        "cifar100": 4.0,
        "imagenet": 1.0,
    }
    assert settings["elodi_table_10"] == {"temperature": 100.0}
    assert METHODS["ensemble_fd"].settings["elodi_table_10"] == {"distance": "kl", "temperature": 100.0}
    assert METHODS["latent_be"].settings["tinyimagenet"] == {"alpha": 0.9, "temperature": 20.0}
    for name, card in METHODS.items():
        for options in card.settings.values():
            build_method(name, **options)
