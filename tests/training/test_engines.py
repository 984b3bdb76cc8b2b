"""A lone run's engine: what is asked for, what is stored, and what takes its place."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from flipguard.checkpoints import load_facts
from flipguard.data import DataSet
from flipguard.methods import NoTreatment
from flipguard.training import ModelSpec, Recipe, Run, Seeds, begin_network
from flipguard.training.capture import CannotCapture, CapturedStep
from flipguard.training.engines import engine_to_use, part_of
from flipguard.types import InputError

MLP = ModelSpec("mlp", {"input_size": 11, "hidden": (13,)})
RECIPE = Recipe(epochs=2, batch_size=16, learning_rate=0.05)


def begun(data: DataSet, **options: Any) -> Run:
    return begin_network(MLP, data, NoTreatment(), RECIPE, seeds=Seeds.of(1), **options)


def trained(run: Run) -> dict[str, torch.Tensor]:
    for _ in run.updates():
        pass
    return dict(run.released().state_dict())


def test_a_step_that_fails_leaves_everything_as_it_was(data: DataSet) -> None:
    """It fails after an update, as a capture does that warm-up went well for; the plain loop then begins where it
    should, with no gradient left over."""
    run = begun(data)
    before = {name: value.clone() for name, value in run.student.state_dict().items()}

    def update(batches: Any, references: Any) -> Any:
        run.update(batches[0], references[0])
        assert not torch.equal(run.student.network.head.weight, before["network.head.weight"])
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    with pytest.raises(CannotCapture, match=r"the step fails \(operation not permitted when stream is capturing\)$"):
        CapturedStep([part_of(run)], update, run.autocast, run.device)
    assert all(torch.equal(value, before[name]) for name, value in run.student.state_dict().items())
    wanted = trained(begun(data))
    assert all(torch.equal(value, wanted[name]) for name, value in trained(run).items())


def test_a_step_on_the_device_is_the_plain_loops(data: DataSet) -> None:
    """What a GPU captures, called as it is: the same batches, learning rates and sums."""
    run, plain = begun(data), begun(data)
    wanted = trained(plain)
    step = CapturedStep([part_of(run)], lambda b, r: [run.update(b[0], r[0])], run.autocast, run.device)
    run.student.train()
    for epoch in range(RECIPE.epochs):
        step.seek(epoch, 0)
        for _ in range(run.job.steps_per_epoch):
            step.replay()
        record = run.state.epoch_record(epoch, RECIPE.epochs, None)
    assert step.first_bad(0) is None
    assert 0 < record.terms["cross_entropy"] < 2
    for name, value in run.released().state_dict().items():
        torch.testing.assert_close(value, wanted[name])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiler_that_is_missing_is_no_end(data: DataSet, caplog: pytest.LogCaptureFixture) -> None:
    from torch._inductor import config

    with config.patch({"cpp.cxx": (None, "/no/such/compiler")}):
        run = begun(data, engine="compiled")
        found = trained(run)
    assert run.engine == "plain"
    said = [record.getMessage() for record in caplog.records if record.name == "flipguard.training"]
    assert len(said) == 1
    assert said[0].startswith("plain loop: the step fails (")
    wanted = trained(begun(data))
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())


def test_the_engine_is_stored_and_reused(data: DataSet, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flipguard.training")
    path = tmp_path / "state.safetensors"
    updates = begun(data, checkpoint=path, checkpoint_every=1).updates()
    next(updates)
    assert load_facts(path)["engine"] == "plain"
    next(updates)
    updates.close()
    rest = begun(data, checkpoint=path, checkpoint_every=1)
    assert sum(1 for _ in rest.updates()) == 2 * 5 - 2
    assert rest.engine == "plain"
    assert not caplog.messages
    assert load_facts(path)["engine"] == "plain"


def test_a_stored_engine_that_is_not_there(data: DataSet, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Begun on a GPU, gone on with on a machine without: one line."""
    path = tmp_path / "state.safetensors"
    run = begun(data, checkpoint=path)
    run.state.engine = "captured"
    run.state.save(path, 0, 0, run.job.facts)
    rest = begun(data, checkpoint=path)
    trained(rest)
    assert rest.engine == "plain"
    assert caplog.messages == ["plain loop: the engine captured needs a GPU."]


def test_which_engine_to_use(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flipguard.training")
    assert engine_to_use("auto", None) == "auto"
    assert engine_to_use("auto", "compiled") == "compiled"
    # One that a later version knows, or a damaged header: as if nothing was stored.
    assert engine_to_use("auto", "warp") == "auto"
    assert engine_to_use("plain", "plain") == "plain"
    assert not caplog.messages
    assert engine_to_use("plain", "captured") == "plain"
    assert caplog.messages == ["begun by the engine captured, this goes on by plain, as asked."]


def test_no_such_engine(data: DataSet) -> None:
    with pytest.raises(
        InputError, match="engine must be one of auto, plain, captured, compiled, stacked, grouped, paired, got 'f"
    ):
        begun(data, engine="fast")
