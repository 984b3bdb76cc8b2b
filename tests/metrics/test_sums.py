"""The tally: adding, picking, summing, and its named arrays."""

import numpy as np
import pytest
import torch

from flipguard.metrics import Tally, tally
from flipguard.metrics.sums import INTEGER_LEAVES, LEAF_SHAPES
from flipguard.types import InputError

N, C, GROUPS = 53, 5, 3


def full(*, kind: str = "numpy", grouped: bool = True) -> Tally:
    rng = np.random.default_rng(2)
    label, group = rng.integers(0, C, N), rng.integers(0, GROUPS, N)
    old, new = rng.normal(size=(2, N, C))
    convert = torch.from_numpy if kind == "torch" else np.asarray
    return tally(
        convert(label),
        None,
        None,
        weight=convert(rng.random(N)),
        old_logits=convert(old),
        new_logits=convert(new),
        temperature=(2.0, 0.5),
        group=convert(group) if grouped else None,
        groups=GROUPS if grouped else None,
    )


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("grouped", [False, True])
def test_every_array_has_its_shape_and_type(kind: str, grouped: bool) -> None:
    leaves = full(kind=kind, grouped=grouped).leaves()
    assert leaves.keys() == LEAF_SHAPES.keys()
    for name, leaf in leaves.items():
        assert tuple(leaf.shape) == ((GROUPS,) if grouped else ()) + LEAF_SHAPES[name], name
        assert str(leaf.dtype).endswith("int64" if name in INTEGER_LEAVES else "float64"), name


def test_named_arrays_go_there_and_back() -> None:
    leaves = full().leaves()
    assert Tally.from_leaves(leaves).leaves() == leaves
    plain = Tally.from_leaves({name: leaves[name] for name in ("count", "missing")})
    assert plain.weight is plain.models is plain.pair is plain.calibrated is None


def test_half_a_part_is_refused() -> None:
    leaves = full().leaves()
    del leaves["pair_rank"]
    with pytest.raises(InputError, match="lacking: pair_rank"):
        Tally.from_leaves(leaves)


def test_tallies_add_leaf_by_leaf() -> None:
    twice = (full() + full()).leaves()
    for name, leaf in full().leaves().items():
        np.testing.assert_array_equal(twice[name], 2 * leaf)


def test_picking_groups_and_summing_them() -> None:
    t = full()
    assert t.groups == (GROUPS,)
    np.testing.assert_array_equal(t[1].count, t.count[1])
    np.testing.assert_array_equal(t[[2, 0]].count, t.count[[2, 0]])
    np.testing.assert_array_equal(t[t.count[:, 0] >= 0].count, t.count)
    total, whole = t.total(), full(grouped=False)
    for name, leaf in whole.leaves().items():
        np.testing.assert_allclose(total.leaves()[name], leaf, rtol=1e-12, err_msg=name)


def test_a_tally_without_groups_has_none_to_pick() -> None:
    for wrong in (lambda t: t[0], lambda t: t.total()):
        with pytest.raises(InputError, match="without groups"):
            wrong(full(grouped=False))


def test_torch_leaves_become_numpy() -> None:
    for name, leaf in full(kind="torch").numpy().leaves().items():
        assert isinstance(leaf, np.ndarray)
        np.testing.assert_allclose(leaf, full().leaves()[name], rtol=1e-12, atol=1e-12, err_msg=name)


def test_different_parts_and_different_groups_do_not_add() -> None:
    plain = Tally(count=np.zeros((GROUPS, 7), dtype=np.int64), missing=np.zeros((GROUPS, 2), dtype=np.int64))
    with pytest.raises(InputError, match=r"same sums; in one of them only: .*models_nll.*weight"):
        full() + plain
    with pytest.raises(InputError, match=r"shapes \(3,\) and \(2,\)"):
        plain + plain[:2]
    with pytest.raises(TypeError):
        plain + 1  # type: ignore[operator]
