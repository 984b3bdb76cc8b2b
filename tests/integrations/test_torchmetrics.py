"""The metric against the NumPy tally of the same rows: in batches, in two processes, in a collection."""

import pickle
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from flipguard.integrations.torchmetrics import FlipMetrics
from flipguard.metrics import FIGURES, figures, tally
from flipguard.types import InputError

N, C, CUTS = 307, 7, (0, 101, 104, 211, 307)
TEMPERATURE = (1.4, 0.8)

torch.set_num_threads(1)


def sample() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(8)
    label = rng.integers(-1, C, N)
    common = rng.normal(size=(N, C)) + 2 * np.eye(C)[label]
    old, new = (common + rng.normal(size=(N, C)) for _ in range(2))
    return {"label": label, "old_logits": old, "new_logits": new, "weight": rng.random(N)}


def batches() -> list[dict[str, torch.Tensor]]:
    return [
        {name: torch.from_numpy(value[start:stop]) for name, value in sample().items()}
        for start, stop in pairwise(CUTS)
    ]


def whole(data: dict[str, np.ndarray]) -> Any:
    return tally(data.pop("label"), None, None, temperature=TEMPERATURE, **data)


def assert_same(metric: FlipMetrics, expected: Any) -> None:
    found = metric.tally.numpy().leaves()
    assert found.keys() == expected.leaves().keys()
    for name, leaf in expected.leaves().items():
        if leaf.dtype == np.int64:
            np.testing.assert_array_equal(found[name], leaf, err_msg=name)
        else:
            np.testing.assert_allclose(found[name], leaf, rtol=1e-9, atol=1e-9, err_msg=name)


def filled(**options: Any) -> FlipMetrics:
    metric = FlipMetrics(temperature=TEMPERATURE, **options)
    for batch in batches():
        metric.update(**batch)
    return metric


def test_batches_give_the_tally_of_all_rows() -> None:
    expected = whole(sample())
    metric = filled()
    assert_same(metric, expected)
    computed = metric.compute()
    assert computed.keys() == {name for name in FIGURES if name not in ("logit_displacement_by_outcome", "flip_rank")}
    for name, value in computed.items():
        assert value.shape == ()
        assert value.dtype == torch.float64
        np.testing.assert_allclose(value.item(), figures(expected)[name], rtol=1e-9, err_msg=name)


def test_predictions_alone_give_the_plain_figures() -> None:
    metric = FlipMetrics()
    metric.update(torch.tensor([0, 1, 1, -1]), torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]))
    assert metric.tally.models is metric.tally.pair is metric.tally.weight is metric.tally.calibrated is None
    computed = metric.compute()
    assert computed["negative_flip_rate"].item() == pytest.approx(1 / 3)
    assert computed["churn"].item() == pytest.approx(2 / 4)
    assert "nll_old" not in computed
    assert "weighted_negative_flip_rate" not in computed


def test_forward_gives_the_batch_and_keeps_the_sum() -> None:
    metric = FlipMetrics(temperature=TEMPERATURE)
    for batch in batches():
        value = metric(**batch)
        alone = whole({name: tensor.numpy() for name, tensor in batch.items()})
        for name, figure in value.items():
            np.testing.assert_allclose(figure.item(), figures(alone)[name], rtol=1e-9, err_msg=name)
    assert_same(metric, whole(sample()))


def test_reset_forgets_everything() -> None:
    metric = filled()
    metric.reset()
    batch = batches()[1]
    metric.update(**batch)
    assert_same(metric, whole({name: tensor.numpy() for name, tensor in batch.items()}))


def test_pickles_and_clones_with_its_sums() -> None:
    for copy in (pickle.loads(pickle.dumps(filled())), filled().clone()):
        assert_same(copy, whole(sample()))


def test_weights_come_always_or_never() -> None:
    metric = FlipMetrics()
    codes = torch.tensor([0, 1, 1])
    metric.update(codes, codes, codes, weight=torch.ones(3))
    metric.update(codes, codes, codes)
    with pytest.raises(InputError, match="3 of 6 rows came with weights"):
        metric.compute()


def test_bfloat16_logits_and_module_casts_keep_double_sums() -> None:
    batch = batches()[0]
    metric = FlipMetrics(temperature=TEMPERATURE).to(torch.bfloat16).half()
    short = {name: batch[name].bfloat16() for name in ("old_logits", "new_logits")}
    metric.update(batch["label"], **short)
    exact = {name: value.double().numpy() for name, value in short.items()}
    expected = tally(batch["label"].numpy(), None, None, temperature=TEMPERATURE, **exact)
    assert metric.models_nll.dtype == torch.float64
    for name, value in metric.compute().items():
        np.testing.assert_allclose(value.item(), figures(expected)[name], rtol=1e-5, atol=1e-7, err_msg=name)


class NewAccuracy(MulticlassAccuracy):
    """Accuracy of the new model, from the arguments that flip metrics take."""

    def update(self, label: Any, new_logits: Any) -> None:
        super().update(new_logits, label)


def test_lives_in_a_collection() -> None:
    collection = MetricCollection({"flips": FlipMetrics(), "accuracy": NewAccuracy(C, average="micro")})
    for batch in batches():
        known = batch["label"] >= 0
        collection.update(
            label=batch["label"][known], old_logits=batch["old_logits"][known], new_logits=batch["new_logits"][known]
        )
    computed = collection.compute()
    assert computed["error_rate_new"].item() == pytest.approx(1 - computed["accuracy"].item(), rel=1e-6)
    assert 0 < computed["negative_flip_rate"].item() < computed["error_rate_new"].item()


RANK_PROGRAM = """
    import runpy, sys
    import torch, torch.distributed as dist

    rank, store, out, source = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    module = runpy.run_path(source)
    metric = module["FlipMetrics"](temperature=module["TEMPERATURE"])
    for batch in module["batches"]()[rank::2]:
        metric.update(**batch)
    with metric.sync_context():
        torch.save(metric.tally.leaves(), f"{out}/{rank}.pt")
    value = metric.compute()["negative_flip_rate"].item()
    torch.save(value, f"{out}/value{rank}.pt")
    dist.destroy_process_group()
"""


def test_two_processes_give_the_tally_of_one(tmp_path: Path) -> None:
    program = textwrap.dedent(RANK_PROGRAM)
    ranks = [
        subprocess.Popen([sys.executable, "-c", program, str(rank), str(tmp_path / "store"), str(tmp_path), __file__])
        for rank in range(2)
    ]
    assert [process.wait(timeout=300) for process in ranks] == [0, 0]
    expected = whole(sample())
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        assert found.keys() == expected.leaves().keys()
        for name, leaf in expected.leaves().items():
            if leaf.dtype == np.int64:
                np.testing.assert_array_equal(found[name].numpy(), leaf, err_msg=name)
            np.testing.assert_allclose(found[name].numpy(), leaf, rtol=1e-9, atol=1e-9, err_msg=name)
        assert torch.load(tmp_path / f"value{rank}.pt") == pytest.approx(float(figures(expected)["negative_flip_rate"]))


def test_without_torchmetrics_the_extra_is_named() -> None:
    program = (
        "import sys\n"
        "sys.modules['torchmetrics'] = None\n"
        "from flipguard.types import MissingExtra\n"
        "try:\n"
        "    import flipguard.integrations.torchmetrics\n"
        "except MissingExtra as error:\n"
        "    assert 'flipguard[torchmetrics]' in str(error), error\n"
        "else:\n"
        "    raise AssertionError('imported')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
