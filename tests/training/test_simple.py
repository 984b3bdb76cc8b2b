"""The user's own network and DataLoader, in a few lines."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import flipguard
from flipguard.data import DataSet
from flipguard.ensembles import CachedReference, NetworkReference
from flipguard.methods import METHODS, build_method
from flipguard.training import Epoch, Recipe
from flipguard.types import InputError, Output, Step

C, D = 7, 11
SLOW = Recipe(epochs=5, learning_rate=0.05)


class Own(nn.Module):
    """Nothing but a forward: no features, no head."""

    def __init__(self, width: int, classes: int = C) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(D, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def loader(data: DataSet, part: str = "train", *, ids: bool = False, **options: Any) -> DataLoader[Any]:
    split = data.part(part)
    columns = [split.x, split.y] + ([torch.from_numpy(split.ids)] if ids else [])
    return DataLoader(TensorDataset(*columns), **{"batch_size": 16, "shuffle": part == "train", **options})  # type: ignore[arg-type]


def test_an_update_in_a_few_lines(data: DataSet) -> None:
    """Focal distillation on the user's own networks flips fewer samples than no treatment."""
    train, test = loader(data), loader(data, "test")
    torch.manual_seed(0)
    old = flipguard.fit(Own(8), train, epochs=20)
    flips = {}
    for method in ("none", "fd_lm"):
        torch.manual_seed(1)
        recipe = Recipe(learning_rate=0.02, clip_norm=1.0)
        new = flipguard.fit(Own(32), train, method=method, old=old, epochs=20, recipe=recipe)
        said = [flipguard.predict(model, test, classes=data.classes) for model in (old, new)]
        flips[method] = flipguard.compare(*said).negative_flips
    assert flips["fd_lm"] < flips["none"]


OWN = [name for name, card in METHODS.items() if card.kind == "objective" and name not in ("dropout", "bct", "ract")]


@pytest.mark.parametrize("name", ["bct", "ract"])
def test_a_method_on_features_says_how_to_get_them(data: DataSet, name: str) -> None:
    with pytest.raises(
        InputError, match=r"works on features, and Own gives only logits: wrap it in flipguard\.models\.split"
    ):
        flipguard.fit(Own(8), loader(data), method=name, old=Own(8), epochs=1)


@pytest.mark.parametrize("name", OWN)
def test_every_objective_takes_a_plain_network(data: DataSet, name: str) -> None:
    records: list[Epoch] = []
    torch.manual_seed(0)
    network = Own(8)
    returned = flipguard.fit(
        network,
        loader(data),
        method=name,
        old=Own(8),
        ensemble=[Own(8), Own(8), Own(8)],
        peers=[Own(8)],
        options={"members": 2} if name in ("graft", "scion", "twins") else {},
        recipe=Recipe(epochs=4, learning_rate=0.02, clip_norm=1.0),
        on_epoch=lambda record, _: records.append(record),
    )
    # What is merged from several members is another network of the same kind.
    assert returned is network or name in ("latent_be", "batch_ensemble")
    assert not returned.training
    # Some learn from their teachers alone, which here know nothing of the labels.
    term = list(records[-1].terms)[-1] if getattr(build_method(name), "label_weight", 1.0) == 0 else "cross_entropy"
    assert records[-1].terms[term] < records[0].terms[term]


def test_the_seed_decides_a_batch_ensembles_factors(data: DataSet) -> None:
    def trained() -> Tensor:
        torch.manual_seed(0)
        network, teachers = Own(8), [Own(8) for _ in range(3)]
        torch.rand(int(torch.randint(1, 5, ()).item()) if trained.calls else 7)  # type: ignore[attr-defined]
        trained.calls += 1  # type: ignore[attr-defined]
        before = torch.get_rng_state()
        made = flipguard.fit(network, loader(data), method="batch_ensemble", ensemble=teachers, epochs=1, seed=5)
        assert torch.equal(torch.get_rng_state(), before)
        return weights(made)

    trained.calls = 0  # type: ignore[attr-defined]
    assert torch.equal(trained(), trained())


def test_a_method_that_makes_another_network_leaves_the_given_one_alone(data: DataSet) -> None:
    torch.manual_seed(0)
    network = Own(8)
    before = weights(network).clone()
    returned = flipguard.fit(network, loader(data), method="latent_be", ensemble=[Own(8) for _ in range(3)], epochs=1)
    assert type(returned) is Own
    assert torch.equal(weights(network), before)
    assert weights(returned).shape == before.shape
    assert not torch.equal(weights(returned), before)


def test_peers(data: DataSet) -> None:
    """Both are trained, the first is returned, and too few are refused, as are the same twice and a copy."""
    torch.manual_seed(0)
    network, peer = Own(8), Own(8)
    before = weights(network).clone(), weights(peer).clone()
    assert flipguard.fit(network, loader(data), method="codistill_skl", peers=[peer], epochs=1) is network
    assert not torch.equal(weights(network), before[0])
    assert not torch.equal(weights(peer), before[1])
    with pytest.raises(InputError, match=r"more networks than the 1 given: pass peers="):
        flipguard.fit(network, loader(data), method="codistill_skl", epochs=1)
    for same in (network, copy.deepcopy(network)):
        with pytest.raises(InputError, match="each with start weights of its own"):
            flipguard.fit(network, loader(data), method="codistill_skl", peers=[same], epochs=1)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def trained(data: DataSet, *, seed: int, **options: Any) -> Tensor:
    torch.manual_seed(0)
    network = Own(8)
    # Where the global generator stands must not matter.
    torch.seed()
    return weights(flipguard.fit(network, loader(data, **options), recipe=SLOW, seed=seed))


def test_the_seed_decides(data: DataSet) -> None:
    first = trained(data, seed=3)
    assert torch.equal(first, trained(data, seed=3))
    assert not torch.equal(first, trained(data, seed=4))


def test_the_caller_s_generator_and_old_model_stay(data: DataSet) -> None:
    old = Own(8).train()
    before, state = weights(old), torch.get_rng_state()
    flipguard.fit(Own(8).requires_grad_(True), [next(iter(loader(data)))], method="kd", old=old, epochs=1)
    assert old.training
    assert all(parameter.requires_grad for parameter in old.parameters())
    assert torch.equal(weights(old), before)
    torch.set_rng_state(state)
    network, rows = Own(8), list(loader(data, shuffle=False))
    state = torch.get_rng_state()
    flipguard.fit(network, rows, epochs=1)
    assert torch.equal(torch.get_rng_state(), state)


def test_held_to_what_it_was(data: DataSet) -> None:
    """`old=model` is the model at the start: with nothing but distillation it stays where it is."""
    network = nn.Linear(D, C)
    before = weights(network).clone()
    only = build_method("kd", alpha=1.0)
    still = Recipe(epochs=2, learning_rate=0.1, weight_decay=0.0)
    flipguard.fit(network, loader(data), method=only, old=network, recipe=still)
    assert torch.allclose(weights(network), before, atol=1e-6)
    flipguard.fit(network, loader(data), method="none", recipe=still)
    assert not torch.allclose(weights(network), before, atol=1e-2)


def test_references_of_the_user_s_making(data: DataSet) -> None:
    torch.manual_seed(0)
    fewer = NetworkReference("old", [Own(8, classes=3)], classes=(4, 1, 6))
    flipguard.fit(Own(8), loader(data), method="fd_kl", old=fewer, epochs=1)
    x = data.train.x
    assert isinstance(x, Tensor)
    cached = CachedReference("old", fewer.networks[0](x).detach()[None], classes=(4, 1, 6))
    ends = []
    for old in (fewer, cached):
        torch.manual_seed(0)
        network = flipguard.fit(nn.Linear(D, C), loader(data, ids=True), method="kd", old=old, recipe=SLOW)
        ends.append(weights(network))
    # Cached logits are found by the rows' ids, which are their places in this training set.
    assert torch.allclose(ends[0], ends[1], atol=1e-5)


def test_predictions(data: DataSet) -> None:
    network = Own(8)
    test = data.test
    said = flipguard.predict(
        network, loader(data, "test", ids=True, shuffle=True), classes=data.classes, model="own", version="7"
    )
    table = said.table(["id", "logits"]).to_pydict()
    assert isinstance(test.x, Tensor)
    expected = dict(zip(test.ids.tolist(), network.eval()(test.x).tolist(), strict=True))
    assert table["id"] != test.ids.tolist()
    assert sorted(table["id"]) == test.ids.tolist()
    for number, logits in zip(table["id"], table["logits"], strict=True):
        assert logits == pytest.approx(expected[number], abs=1e-5)
    # The same samples with the same labels, whatever their order.
    assert said.data_fingerprint() == data.fingerprint("test")
    assert not network.training


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "kd"}, "needs a reference: pass old= to fit"),
        ({"method": "elodi"}, "needs a reference: pass ensemble= to fit"),
        ({"method": "dropout"}, "'dropout' changes the network itself"),
        ({"method": "paragon"}, "'paragon' is not trained by fit"),
        ({"method": "kdd"}, "there is no method 'kdd'"),
        ({"method": "kd", "old": nn.Linear(D, 3)}, "has 3 classes and the student 7"),
    ],
)
def test_bad_calls(data: DataSet, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        flipguard.fit(Own(8), loader(data), epochs=1, **arguments)


def test_bad_loaders(data: DataSet) -> None:
    rows = list(loader(data))
    with pytest.raises(InputError, match="has no length"):
        flipguard.fit(Own(8), iter(rows), epochs=1)
    with pytest.raises(InputError, match=r"must yield \(x, y\) or \(x, y, id\), got Tensor"):
        flipguard.fit(Own(8), [x for x, _ in rows], epochs=1)
    with pytest.raises(InputError, match="got 1 parts"):
        flipguard.predict(Own(8), [(x,) for x, _ in rows])
    with pytest.raises(InputError, match="shuffles and gives no ids"):
        flipguard.predict(Own(8), loader(data))
    with pytest.raises(InputError, match="no batches"):
        flipguard.predict(Own(8), [])


def test_a_method_of_the_user_s_own(data: DataSet) -> None:
    """Any function of (student, references, batch) will do."""
    rows: list[Tensor] = []

    def mine(student: Any, references: Any, batch: Any) -> Step:
        answer: Output = student(batch.x)
        rows.append(batch.index)
        return Step(nn.functional.cross_entropy(answer.logits[0], batch.y), answer.logits)

    flipguard.fit(Own(8), loader(data), method=mine, epochs=1)
    assert torch.cat(rows).tolist() == list(range(len(data.train)))


def test_options_reach_the_method(data: DataSet) -> None:
    seen: list[Epoch] = []
    for strength in (0.0, 0.5):
        torch.manual_seed(0)
        flipguard.fit(
            Own(8),
            loader(data),
            method="fd_lm",
            options={"strength": strength},
            old=Own(8),
            epochs=2,
            on_epoch=lambda record, _: seen.append(record),
        )
    assert seen[1].terms["focal_distillation"] > seen[3].terms["focal_distillation"]
    with pytest.raises(InputError, match="has no option 'strenght'"):
        flipguard.fit(Own(8), loader(data), method="fd_lm", options={"strenght": 1.0}, old=Own(8))
    with pytest.raises(InputError, match="built already"):
        flipguard.fit(Own(8), loader(data), method=build_method("kd"), options={"alpha": 1.0}, old=Own(8))


def test_what_is_no_network_and_no_loader_is_said(data: DataSet) -> None:
    with pytest.raises(InputError, match=r"old must be a network or a reference, it is a str"):
        flipguard.fit(Own(8), loader(data), method="kd", old="old.parquet")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"a data set, not a loader: wrap it in torch\.utils\.data\.DataLoader"):
        flipguard.fit(Own(8), loader(data).dataset)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"the model must be a torch\.nn\.Module, it is a str"):
        flipguard.fit("resnet18", loader(data))  # type: ignore[arg-type]


def test_a_class_name_for_each_logit(data: DataSet) -> None:
    with pytest.raises(InputError, match=f"{C - 1} class names for {C} logits"):
        flipguard.predict(Own(8), loader(data, "test"), classes=[str(c) for c in range(C - 1)])


@pytest.mark.parametrize("method", ["none", "kd"])
def test_a_label_that_is_no_output_is_said(method: str) -> None:
    rows = TensorDataset(torch.randn(11, 3), torch.arange(11) % 7)
    old = nn.Linear(3, 5) if method == "kd" else None
    with pytest.raises(InputError, match=r"the loader has the label [56], which is no output of the network"):
        flipguard.fit(nn.Linear(3, 5), DataLoader(rows, batch_size=11), method=method, old=old, epochs=1)


def test_an_error_of_the_loader_s_own_stays_what_it_is() -> None:
    class Short(TensorDataset):
        def __len__(self) -> int:
            return 2 * super().__len__()

    rows = Short(torch.randn(5, 3), torch.arange(5) % 2)
    with pytest.raises(IndexError, match="out of bounds"):
        flipguard.fit(nn.Linear(3, 2), DataLoader(rows, batch_size=3), epochs=1)
