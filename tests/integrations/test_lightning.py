"""Lightning's own Trainer: the same updates as a plain loop, and the flips that a comparison counts."""

from functools import partial
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import flipguard
from flipguard.ensembles import CachedReference, NetworkReference, SingleStudent
from flipguard.integrations.lightning import LOGGED, FlipCallback, FlipModule
from flipguard.methods import METHODS, build_method
from flipguard.models import build_model
from flipguard.types import Batch, InputError

pytestmark = [
    # Advice about workers, and about validation that a test leaves out.
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),
]

PIXELS, LABEL = load_digits(return_X_y=True)
X, Y = torch.tensor(PIXELS / 16, dtype=torch.float32), torch.tensor(LABEL)
FITTED, HELD = slice(0, 101), slice(101, 414)
OBJECTIVES = [name for name, card in METHODS.items() if card.kind == "objective" and name != "dropout"]
sgd = partial(torch.optim.SGD, lr=0.05)


def network(seed: int, width: int = 11) -> nn.Module:
    torch.manual_seed(seed)
    return build_model("mlp", classes=10, hidden=[width])


def loader(rows: slice = FITTED, *, ids: bool = True, batch_size: int = 17) -> DataLoader[Any]:
    place = torch.arange(len(Y))[rows]
    columns = (X[rows], Y[rows], place) if ids else (X[rows], Y[rows])
    return DataLoader(TensorDataset(*columns), batch_size=batch_size)


def trainer(**options: Any) -> lightning.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return lightning.Trainer(
        **{"accelerator": "cpu", "max_epochs": 2, "enable_checkpointing": False, **quiet, **options}
    )


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def by_hand(name: str, model: nn.Module, old: nn.Module, *, epochs: int) -> Tensor:
    method, student = build_method(name), SingleStudent(model)
    references = {"old": NetworkReference("old", [old])}
    optimiser = sgd(student.parameter_groups())
    batches = [batch for _ in range(epochs) for batch in loader()]
    for step, (x, y, index) in enumerate(batches):
        progress = torch.tensor(step / len(batches))
        batch = Batch(x, y, index, progress, torch.tensor(step))
        method(student, references, batch).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    return weights(model)


@pytest.mark.parametrize("name", ["none", "kd", "fd_kl", "ldi"])
def test_updates_are_those_of_a_plain_loop(name: str) -> None:
    old = network(1)
    module = FlipModule(network(0), method=name, old=old, optimiser=sgd)
    trainer().fit(module, loader())
    assert torch.equal(weights(module.release()), by_hand(name, network(0), old, epochs=2))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_trained_and_its_terms_are_logged(name: str) -> None:
    torch.manual_seed(0)
    module = FlipModule(
        network(0),
        method=build_method(name, members=2) if name in ("graft", "scion", "twins") else name,
        old=network(1),
        ensemble=[network(2), network(3), network(4)],
        peers=[network(5)],
        optimiser=partial(torch.optim.SGD, lr=0.001),
    )
    before = weights(module).clone()
    fitting = trainer(max_steps=3)
    fitting.fit(module, loader())
    assert fitting.global_step == 3
    assert not torch.equal(weights(module), before)
    logged = {key: float(value) for key, value in fitting.callback_metrics.items()}
    assert len([key for key in logged if key.startswith("loss/")]) >= 1
    assert all(value == value for value in logged.values())
    assert module(X[HELD]).shape == (313, 10)


def test_flips_are_those_of_a_comparison(tmp_path: Path) -> None:
    names = [f"digit {c}" for c in range(10)]
    old = network(1)
    trainer(max_epochs=20).fit(FlipModule(old, optimiser=sgd), loader())
    flipguard.predict(old, loader(HELD), classes=names).write(tmp_path / "old.parquet")
    module = FlipModule(network(0), method="kd", old=old, optimiser=sgd)
    fitting = trainer(max_epochs=7, callbacks=[FlipCallback(tmp_path / "old.parquet", classes=names)])
    fitting.fit(module, loader(), loader(HELD))
    new = flipguard.predict(module.release(), loader(HELD), classes=names)
    found = flipguard.compare(tmp_path / "old.parquet", new)
    assert found.negative_flips > 3
    for name in LOGGED:
        expected = getattr(found, name).value
        assert float(fitting.callback_metrics[f"flips/{name}"]) == pytest.approx(expected, rel=1e-5), name
    assert float(fitting.callback_metrics["validation_error"]) == pytest.approx(found.error_rate_new.value, rel=1e-5)


class Bare(lightning.LightningModule):
    """Somebody's own module: its validation step returns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network(0)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass


def test_the_callback_takes_any_module_and_rows_without_ids() -> None:
    old = network(1)
    said = flipguard.predict(old, loader(HELD, ids=False))
    callback = FlipCallback(said, prefix="old_")
    (found,) = trainer(callbacks=[callback]).validate(Bare(), loader(HELD, ids=False), verbose=False)
    expected = flipguard.compare(said, flipguard.predict(network(0), loader(HELD, ids=False)))
    assert found["old_negative_flip_rate"] == pytest.approx(expected.negative_flip_rate.value, rel=1e-5)
    assert found["old_churn"] == pytest.approx(expected.churn.value, rel=1e-5)


def test_a_sample_that_the_file_lacks_is_named() -> None:
    said = flipguard.predict(network(1), loader(slice(101, 200)))
    with pytest.raises(InputError, match=r"no sample with the id 20[0-9]"):
        trainer(callbacks=[FlipCallback(said)]).validate(Bare(), loader(HELD), verbose=False)


def test_references_stay_out_of_the_checkpoint_and_out_of_training(tmp_path: Path) -> None:
    old = network(1)
    before = weights(old).clone()
    module = FlipModule(network(0), method="kd", old=old, optimiser=sgd)
    fitting = trainer(max_epochs=1)
    fitting.fit(module, loader())
    fitting.save_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    stored = torch.load(tmp_path / "a.ckpt", weights_only=True)["state_dict"]
    assert sum(tensor.numel() for tensor in stored.values()) == weights(network(0)).numel()
    assert torch.equal(weights(old), before)


def test_cached_logits_are_found_by_the_rows_ids() -> None:
    old = network(1)
    with torch.no_grad():
        cached = CachedReference("old", old(X)[None])
    held = FlipModule(network(0), method="kd", old=cached, optimiser=sgd)
    trainer().fit(held, loader())
    live = FlipModule(network(0), method="kd", old=old, optimiser=sgd)
    trainer().fit(live, loader())
    torch.testing.assert_close(weights(held.release()), weights(live.release()))
    blind = FlipModule(network(0), method="kd", old=cached, optimiser=sgd)
    with pytest.raises(InputError, match="'old' holds logits by row"):
        trainer().fit(blind, loader(ids=False))


def test_stale_copies_are_refreshed_by_updates_and_not_by_batches() -> None:
    method = build_method("codistill_ce", every=3)
    module = FlipModule(network(0), method=method, peers=[network(1)], optimiser=sgd)
    trainer(max_epochs=1, accumulate_grad_batches=2).fit(module, loader())
    # 6 batches are 3 updates: the copies were refreshed once, after the last.
    assert torch.equal(weights(module.student.stale), weights(module.student.networks))


def test_training_without_an_end_is_refused() -> None:
    with pytest.raises(InputError, match="set max_epochs or max_steps"):
        trainer(max_epochs=-1).fit(FlipModule(network(0), optimiser=sgd), loader())
