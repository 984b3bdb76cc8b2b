"""A bench of texts: inputs by name, AdamW, a pretrained-like network with a rate of its own for the body."""

from pathlib import Path

import numpy as np
import pytest
from small_bench import parsed

from flipguard.bench.run import Bench

WORDS = {"sun": "warm bright day", "rain": "wet cold drops", "wind": "strong loud gust"}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    kinds = list(WORDS)

    def part(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, 3, n)
        # Two words of the own class and two of any.
        pool = " ".join(WORDS.values()).split()
        said = [" ".join([*rng.choice(WORDS[kinds[c]].split(), 2), *rng.choice(pool, 2)]) for c in y]
        return np.array(said), y

    (x, y), (x_test, y_test) = part(90), part(31)
    np.savez(tmp_path / "weather.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test, classes=np.array(kinds))
    return tmp_path


def test_texts_are_trained_counted_and_compared(texts: Path) -> None:
    network = {"name": "text_transformer", "vocabulary": 20, "length": 7, "width": 8, "layers": 1, "heads": 2}
    spec = parsed(
        data={
            "name": "npz",
            "file": "weather.npz",
            "folder": str(texts),
            "validation": 30,
            "encode": {"words": 20, "length": 7},
        },
        old={**network, "backbone_rate": 0.5},
        new={**network, "backbone_rate": 0.5},
        train={"epochs": 15, "batch_size": 10, "optimiser": "adamw", "learning_rate": 0.01, "weight_decay": 0.01},
        seeds=[3],
        networks={
            "single": {"copies": 2},
            "elodi": {"method": "elodi", "references": {"ensemble": "single"}},
            "latent_be": {"method": {"name": "latent_be", "members": 2}, "references": {"ensemble": "single"}},
            "few": {"data": {"per_class": 11}},
        },
        rows={"none": "single.0", "elodi": "elodi", "latent_be": "latent_be", "few": "few", "paragon": "single"},
    )
    rows = {row.name: row for row in Bench(spec, texts / "out").run(processes=1)}
    assert rows["none"].cells["error_rate_new"].mean < 0.4
    assert rows["none"].training_cost == pytest.approx(1)
    # Two members, the student, and two answers for each of its steps: of a transformer's step forward is a third.
    assert rows["elodi"].training_cost == pytest.approx(3 + 2 / 3, abs=0.1)
    assert rows["few"].training_cost == pytest.approx(3 / 6)
