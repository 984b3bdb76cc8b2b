"""The loop's parts: accumulation, clipping, memory, records, choice of epoch, and what it does when training fails."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipguard.checkpoints import load_checkpoint
from flipguard.data import Batches, DataSet
from flipguard.ensembles import NetworkReference, SingleStudent
from flipguard.methods import NoTreatment, build_method
from flipguard.models import build_model
from flipguard.training import (
    Epoch,
    Job,
    ModelSpec,
    Recipe,
    Seeds,
    TrainingError,
    fit,
    predict_logits,
    train_network,
)
from flipguard.training.memory import recomputed
from flipguard.types import Batch, InputError

C, D = 7, 11
MLP = ModelSpec("mlp", {"input_size": D, "hidden": (13,)})
STEADY = Recipe(epochs=2, batch_size=8, learning_rate=0.05, schedule="constant", warmup=0.0)


def fixed_batches(steps: int, rows: int = 12, dtype: torch.dtype = torch.float64) -> Callable[[int, int], list[Batch]]:
    generator = torch.Generator().manual_seed(3)
    zero = torch.zeros(())
    every = [
        Batch(
            torch.randn(rows, D, generator=generator, dtype=dtype),
            torch.randint(C, (rows,), generator=generator),
            torch.arange(step * rows, (step + 1) * rows),
            zero,
            zero.long(),
        )
        for step in range(steps)
    ]
    return lambda epoch, start: every[start:]


def small(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(seed)
    return build_model("mlp", classes=C, input_size=D, hidden=(13,)).to(dtype)


def trained(recipe: Recipe, *, steps: int = 3, rows: int = 12) -> tuple[dict[str, Tensor], list[Epoch]]:
    records: list[Epoch] = []
    job = Job(fixed_batches(steps, rows), steps, recipe)
    network = fit(SingleStudent(small()), NoTreatment(), job, on_epoch=lambda record, _: records.append(record))
    return network.state_dict(), records


@pytest.mark.parametrize("rows", [12, 10])
def test_accumulation_equals_the_whole_batch(rows: int) -> None:
    """Ten rows in four parts are 3 + 3 + 3 + 1: the mean over rows is not the mean of the parts' means."""
    recipe = replace(STEADY, batch_size=12)
    whole, whole_records = trained(recipe, rows=rows)
    parts, part_records = trained(replace(recipe, accumulate=4), rows=rows)
    for name, value in whole.items():
        assert torch.allclose(value, parts[name], rtol=0, atol=1e-12)
    for one, other in zip(whole_records, part_records, strict=True):
        assert one.terms["cross_entropy"] == pytest.approx(other.terms["cross_entropy"], abs=1e-12)
        assert one.train_error == other.train_error


def test_accumulation_of_a_dict() -> None:
    class FromDict(nn.Module):
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: dict[str, Tensor]) -> Tensor:
            return self.network(x["a"]) * x["scale"][:, None]

    plain = fixed_batches(2)

    def batches(epoch: int, start: int) -> list[Batch]:
        return [replace(b, x={"a": b.x, "scale": torch.full((12,), 0.5)}) for b in plain(epoch, start)]

    ends = []
    for accumulate in (1, 3):
        recipe = replace(STEADY, batch_size=12, accumulate=accumulate)
        network = fit(SingleStudent(FromDict(small())), NoTreatment(), Job(batches, 2, recipe))
        ends.append(network.state_dict())
    for name, value in ends[0].items():
        assert torch.allclose(value, ends[1][name], rtol=0, atol=1e-12)


def test_clipping_scales_the_gradient() -> None:
    recipe = Recipe(
        epochs=1, batch_size=12, learning_rate=1.0, momentum=0.0, weight_decay=0.0, schedule="constant", warmup=0.0
    )
    start = torch.cat([value.flatten() for value in small().state_dict().values()])

    def moved(clip_norm: float | None) -> Tensor:
        end, _ = trained(replace(recipe, clip_norm=clip_norm), steps=1)
        return torch.cat([value.flatten() for value in end.values()]) - start

    free, clipped, loose = moved(None), moved(0.01), moved(1e6)
    assert float(clipped.norm()) == pytest.approx(0.01, rel=1e-3)
    assert torch.allclose(clipped / clipped.norm(), free / free.norm(), atol=1e-9)
    assert torch.allclose(loose, free)


def test_the_schedule_reaches_the_optimiser() -> None:
    recipe = Recipe(epochs=2, batch_size=12, learning_rate=0.4, schedule="cosine", warmup=0.0)
    _, records = trained(recipe, steps=2)
    expected = [0.4 * 0.5 * (1 + math.cos(math.pi * step / 4)) for step in (1, 3)]
    assert [record.learning_rate for record in records] == pytest.approx(expected)


def test_records_are_means_over_the_epoch(data: DataSet) -> None:
    """With a rate of almost nothing the network stays as it was, and the epoch's means can be computed outside."""
    recipe = replace(STEADY, learning_rate=1e-30, batch_size=16, epochs=1)
    records: list[Epoch] = []
    network = train_network(
        MLP, data, NoTreatment(), recipe, seeds=Seeds.of(2), on_epoch=lambda record, _: records.append(record)
    )
    rows = torch.cat([batch.index for batch in Batches(data.train, 16, order_seed=2, drop_last=True)])
    logits, y = torch.from_numpy(predict_logits(network, data, "train"))[rows], data.train.y[rows]
    assert len(rows) == 80
    assert records[0].train_error == pytest.approx(float((logits.argmax(-1) != y).double().mean()))
    assert records[0].terms["cross_entropy"] == pytest.approx(float(nn.functional.cross_entropy(logits, y)), rel=1e-5)
    assert (records[0].epoch, records[0].epochs, records[0].validation_error) == (0, 1, None)
    assert records[0].seconds > 0


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_it_learns(data: DataSet, precision: Any) -> None:
    recipe = Recipe(epochs=30, batch_size=16, learning_rate=0.1, precision=precision)
    network = train_network(MLP, data, NoTreatment(), recipe, seeds=Seeds.of(1))
    wrong = predict_logits(network, data, "train").argmax(-1) != data.train.y.numpy()
    assert wrong.mean() < 0.1
    assert all(parameter.dtype == torch.float32 for parameter in network.parameters())


def test_precision_is_used(data: DataSet) -> None:
    seen = []

    def spy(student: Any, references: Any, batch: Batch) -> Any:
        step = NoTreatment()(student, references, batch)
        seen.append(step.logits.dtype)
        return step

    for precision in ("float32", "bf16"):
        recipe = replace(STEADY, epochs=1, batch_size=83, precision=precision)  # type: ignore[arg-type]
        train_network(MLP, data, spy, recipe, seeds=Seeds.of(1))
    assert seen == [torch.float32, torch.bfloat16]


def image_batch(rows: int = 6) -> Batch:
    torch.manual_seed(1)
    zero = torch.zeros(())
    return Batch(torch.randn(rows, 3, 16, 16), torch.randint(C, (rows,)), torch.arange(rows), zero, zero.long())


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec("resnet20", {"dropout": 0.3}),
        ModelSpec("cnn", {"in_channels": 3, "dropout": 0.3}),
        ModelSpec("mlp", {"input_size": 768, "hidden": (32, 32, 32, 32), "dropout": 0.3}),
    ],
    ids=lambda spec: spec.name,
)
def test_checkpointed_activations_give_the_same_bits(spec: ModelSpec) -> None:
    """With BatchNorm's statistics, dropout, and three steps, so that a statistic that moved twice would show."""
    ends = []
    for on in (False, True):
        student = SingleStudent(spec.build(C, 4))
        names = list(student.state_dict())
        torch.manual_seed(9)
        recipe = replace(STEADY, epochs=3, batch_size=6, checkpoint_activations=on)
        network = fit(student, NoTreatment(), Job(lambda epoch, start: [image_batch()], 1, recipe))
        assert list(student.state_dict()) == names
        assert not any("forward" in vars(module) for module in network.modules())
        ends.append(network.state_dict())
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name


@pytest.mark.parametrize("name", ["resnet20", "cnn"])
def test_checkpointed_activations_keep_less(name: str) -> None:
    """What autograd stores for the backward pass, in bytes."""

    def stored(on: bool) -> int:
        network = build_model(name, classes=C, **({"in_channels": 3} if name == "cnn" else {}))
        kept: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with recomputed(network, on=on), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            network(image_batch(16).x).sum()
        return sum(kept.values())

    assert stored(True) < 0.6 * stored(False)


def test_the_best_epoch_is_released(data: DataSet, tmp_path: Path) -> None:
    """A rate that grows useless late: the chosen epoch is the first of the lowest validation errors."""
    recipe = Recipe(epochs=6, batch_size=16, learning_rate=0.9, momentum=0.0, schedule="constant", warmup=0.0)
    seen: list[tuple[Epoch, dict[str, Tensor]]] = []

    def look(record: Epoch, network: nn.Module) -> None:
        seen.append((record, {name: value.clone() for name, value in network.state_dict().items()}))

    chosen = train_network(
        MLP, data, NoTreatment(), recipe, seeds=Seeds.of(1), choose_epoch="validation", on_epoch=look
    )
    errors = [record.validation_error for record, _ in seen]
    assert None not in errors
    assert data.validation is not None
    best = errors.index(min(errors))  # type: ignore[type-var]
    assert best != len(errors) - 1, "the last epoch is the best: this test needs another seed"
    for name, value in chosen.state_dict().items():
        assert torch.equal(value, seen[best][1][name])
    found = predict_logits(chosen, data, "validation").argmax(-1) != data.validation.y.numpy()
    assert found.mean() == pytest.approx(errors[best])
    last = train_network(MLP, data, NoTreatment(), recipe, seeds=Seeds.of(1))
    assert torch.equal(last.head.weight, seen[-1][1]["head.weight"])
    _resumes_with_its_best(data, recipe, tmp_path / "state.safetensors", chosen)


def _resumes_with_its_best(data: DataSet, recipe: Recipe, path: Path, chosen: nn.Module) -> None:
    class Stop(Exception):
        pass

    def stop(record: Epoch, _: nn.Module) -> None:
        if record.epoch == recipe.epochs - 1:
            raise Stop

    arguments: dict[str, Any] = {"seeds": Seeds.of(1), "choose_epoch": "validation", "checkpoint": path}
    with pytest.raises(Stop):
        train_network(MLP, data, NoTreatment(), recipe, **arguments, on_epoch=stop)
    resumed = train_network(MLP, data, NoTreatment(), recipe, **arguments)
    for name, value in chosen.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name])


@pytest.mark.parametrize(("errors", "best"), [([0.3, 0.2, 0.2, 0.4], 1), ([0.5, 0.5, 0.5, 0.5], 0)])
def test_the_first_of_several_best_epochs(errors: list[float], best: int) -> None:
    left, ends = list(errors), []
    recipe = replace(STEADY, epochs=4, batch_size=12)
    job = Job(fixed_batches(2), 2, recipe, validate=lambda network: left.pop(0))
    chosen = fit(
        SingleStudent(small()),
        NoTreatment(),
        job,
        on_epoch=lambda _, net: ends.append(net.head.weight.detach().clone()),
    )
    assert [torch.equal(chosen.head.weight, end) for end in ends] == [epoch == best for epoch in range(4)]


def test_no_validation_part(data: DataSet) -> None:
    with pytest.raises(InputError, match="toy has no validation part to choose an epoch by"):
        train_network(
            MLP, replace(data, validation=None), NoTreatment(), STEADY, seeds=Seeds.of(1), choose_epoch="validation"
        )


def poisoned(data: DataSet, row: int) -> DataSet:
    x = data.train.x.clone()  # type: ignore[union-attr]
    x[row] = float("nan")
    return replace(data, train=replace(data.train, x=x))


@pytest.mark.parametrize("every", [1, 4, 1000])
def test_a_loss_that_is_not_finite(data: DataSet, tmp_path: Path, every: int) -> None:
    path, step = tmp_path / "state.safetensors", 6
    arguments: dict[str, Any] = {"seeds": Seeds.of(1), "checkpoint": path, "checkpoint_every": every}
    order = torch.cat([batch.index for batch in Batches(data.train, 8, order_seed=1, epoch=0)])
    row = int(order[8 * step + 3])
    with pytest.raises(TrainingError) as error:
        train_network(MLP, poisoned(data, row), NoTreatment(), STEADY, **arguments)
    text = str(error.value)
    assert f"not finite at epoch 0, step {step} (training rows " in text
    assert str(row) in text.split("training rows ")[1].split(")")[0].split(", ")
    assert text.endswith("Nothing was saved." if every == 1000 else f"The last good state is {path}.")
    assert path.exists() is (every < 1000)
    if every < 1000:
        tensors, facts = load_checkpoint(path)
        assert facts["step"] == {1: step, 4: 4}[every]
        assert all(bool(torch.isfinite(value).all()) for value in tensors.values() if value.is_floating_point())
    mended = train_network(MLP, data, NoTreatment(), STEADY, **arguments)
    fresh = train_network(MLP, data, NoTreatment(), STEADY, seeds=Seeds.of(1))
    assert torch.equal(mended.head.weight, fresh.head.weight)


def test_a_late_loss_names_its_epoch(data: DataSet) -> None:
    def breaks(student: Any, references: Any, batch: Batch) -> Any:
        step = NoTreatment()(student, references, batch)
        return replace(step, loss=step.loss / (batch.step != 13))

    with pytest.raises(TrainingError, match="at epoch 1, step 3 "):
        train_network(MLP, data, breaks, STEADY, seeds=Seeds.of(1))


def test_weights_that_are_not_finite_are_never_saved(data: DataSet, tmp_path: Path) -> None:
    """The loss was computed before the step that broke the weights, and was fine."""
    path = tmp_path / "state.safetensors"

    def steep(student: Any, references: Any, batch: Batch) -> Any:
        step = NoTreatment()(student, references, batch)
        return replace(step, loss=step.loss * 1e9)

    recipe = replace(STEADY, learning_rate=1e35)
    with pytest.raises(TrainingError, match=r"is not finite before epoch 0, step 1, though the loss still was.*clip"):
        train_network(MLP, data, steep, recipe, seeds=Seeds.of(1), checkpoint=path, checkpoint_every=1)
    assert not path.exists()


def test_focal_distillation_that_overshoots(data: DataSet) -> None:
    """FD-LM in the paper's form, at a rate that suits cross-entropy: it stops, and clip_norm is the way out."""
    confident = nn.Linear(D, C)
    with torch.no_grad():
        confident.weight.mul_(30)
    old = {"old": NetworkReference("old", [confident])}
    recipe = Recipe(epochs=12, batch_size=8, learning_rate=0.3)
    with pytest.raises(TrainingError, match="set clip_norm"):
        train_network(MLP, data, build_method("fd_lm"), recipe, seeds=Seeds.of(1), references=old)
    terms: list[float] = []
    train_network(
        MLP,
        data,
        build_method("fd_lm"),
        replace(recipe, clip_norm=1.0),
        seeds=Seeds.of(1),
        references=old,
        on_epoch=lambda record, _: terms.append(record.terms["focal_distillation"]),
    )
    assert terms[-1] < 0.5 * terms[0]


class Greedy(nn.Module):
    """Asks for four petabytes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.empty(2**50) * self.weight


def test_out_of_memory_names_the_knobs() -> None:
    job = Job(fixed_batches(1, dtype=torch.float32), 1, replace(STEADY, batch_size=12, accumulate=2))
    with pytest.raises(TrainingError) as error:
        fit(SingleStudent(Greedy()), NoTreatment(), job)
    assert str(error.value) == (
        "out of memory at epoch 0, step 0 with batches of 12: set accumulate above 2 (parts of a batch, one after "
        "another), or checkpoint_activations=True, or precision='bf16', or a smaller batch_size. Nothing was saved."
    )


def test_other_errors_pass_through() -> None:
    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("of another kind")

    with pytest.raises(RuntimeError, match="of another kind"):
        fit(SingleStudent(Broken(D, C)), NoTreatment(), Job(fixed_batches(1), 1, replace(STEADY, batch_size=12)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": replace(STEADY, epochs=3)}, 'was begun with recipe .*"epochs": 2'),
        ({"seeds": Seeds(1, 2, 1)}, 'begun with seeds .*"order": 1'),
        ({"model": ModelSpec("mlp", {"input_size": D, "hidden": (17,)})}, "begun with model"),
        ({"method": NoTreatment(label_smoothing=0.1)}, "begun with method"),
    ],
)
def test_a_state_of_another_run_is_refused(data: DataSet, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "state.safetensors"
    start: dict[str, Any] = {"model": MLP, "method": NoTreatment(), "recipe": STEADY, "seeds": Seeds.of(1)}
    train_network(data=data, checkpoint=path, **start)
    train_network(data=data, checkpoint=path, **start)
    with pytest.raises(InputError, match=message) as error:
        train_network(data=data, checkpoint=path, **{**start, **change})
    assert "\n" not in str(error.value)


def test_weights_alone_are_no_state(data: DataSet, tmp_path: Path) -> None:
    from flipguard.checkpoints import save_checkpoint

    path = tmp_path / "state.safetensors"
    save_checkpoint(path, MLP.build(C, 1).state_dict(), {})
    with pytest.raises(InputError, match="holds no training state"):
        train_network(MLP, data, NoTreatment(), STEADY, seeds=Seeds.of(1), checkpoint=path)


def test_dropout_asks_for_the_network_s_dropout(data: DataSet) -> None:
    seen: list[nn.Module] = []
    train_network(
        MLP,
        data,
        build_method("dropout", p=0.4),
        replace(STEADY, epochs=1),
        seeds=Seeds.of(1),
        on_epoch=lambda _, network: seen.append(network.dropout),
    )
    assert isinstance(seen[0], nn.Dropout)
    assert seen[0].p == 0.4
