"""The plain network in a form that other programs load, checked against the network that it came from."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, get_args

import torch
from torch import Tensor, nn

from flipguard._version import __version__
from flipguard.checkpoints import load_checkpoint, load_weights, save_checkpoint
from flipguard.data import Batches, Encoder, Split
from flipguard.files import whole_file
from flipguard.models import OnnxNetwork, SplitClassifier
from flipguard.predictions import Predictions
from flipguard.releases.expected_inputs import check_inside, expected_inputs, tokenizer_facts
from flipguard.releases.references import Rescaled
from flipguard.types import InputError, MissingExtra, Normalisation

Format = Literal["safetensors", "onnx", "torchscript", "torch-export"]
ENDINGS: dict[str, str] = {"safetensors": ".safetensors", "onnx": ".onnx", "torchscript": ".pt", "torch-export": ".pt2"}
TOLERANCE = 1e-3
"""How far a logit may move, as a share of the largest: other kernels add up in another order."""

Inputs: TypeAlias = "Tensor | Mapping[str, Tensor]"
Run: TypeAlias = Callable[[Inputs], Tensor]


@dataclass(frozen=True)
class Exported:
    """What was written, and how well it agrees with the network: on every row the same class."""

    path: Path
    format: Format
    rows: int
    largest_difference: float


class Positional(nn.Module):
    """A network that takes a dict of tensors, called with the tensors themselves, in the order of their names here."""

    def __init__(self, network: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.network(dict(zip(self.names, tensors, strict=True)))


def plain_network(network: nn.Module) -> nn.Module:
    """A copy on the CPU in evaluation mode; somebody else's network as its author wrote it, its head back in place."""
    whole = network.whole() if isinstance(network, SplitClassifier) else deepcopy(network)
    return whole.cpu().eval().requires_grad_(False)


def export(
    network: nn.Module,
    example: Inputs,
    *,
    format: Format,
    path: str | Path,
    expected: Tensor | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Exported:
    """Write a network to a file, read it back, and check that it says the same of `example`.

    `example` is a batch (B, …) of network inputs, B at least 2, or a dict of them; the exported network takes batches
    of any size. `expected` are the logits (B, C) that it must give, those of `network` unless they come from elsewhere
    (the run's own prediction file). When the two name another class for a row, or differ by more than a thousandth of
    the largest logit, nothing is left behind. `facts` (classes, normalisation) are written beside, as FILE.json,
    together with the inputs' names and shapes and the largest difference found.

    safetensors holds the weights by name; onnx, torchscript and torch-export the graph as well. A dict's tensors are
    inputs by name in ONNX, and positional in the two other graphs.
    """
    if format not in get_args(Format):
        raise InputError(f"a network is exported as {', '.join(get_args(Format))}, not as '{format}'.")
    target = Path(path)
    if target.suffix != ENDINGS[format]:
        raise InputError(f"{target}: the name of a file in the form {format} ends in {ENDINGS[format]}.")
    inputs = _named(example)
    rows = len(next(iter(inputs.values())))
    if rows < 2:
        raise InputError(
            "an export is checked on at least 2 samples: with one, the batch size would become part of it."
        )
    plain = plain_network(network)
    with torch.no_grad():
        logits = plain(example) if expected is None else expected.cpu()
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as beside:
        # The exporters tell of deprecations inside torch itself, which nobody here can mend.
        with warnings.catch_warnings(), _only_errors():
            warnings.simplefilter("ignore")
            again = _WRITERS[format](plain, inputs, beside)
            with torch.no_grad():
                said = again(example)
        difference = _difference(said, logits, target)
    found = Exported(target, format, rows, difference)
    _write_facts(found, inputs, facts or {})
    return found


class Released(Protocol):
    """As much of a release as an export needs."""

    @property
    def name(self) -> str: ...

    @property
    def network(self) -> nn.Module: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def normalisation(self) -> Normalisation | None: ...

    @property
    def encoder(self) -> Encoder | None: ...


def export_release(
    release: Released,
    split: Split,
    *,
    format: Format,
    path: str | Path,
    said: Predictions | None = None,
    rows: int = 256,
    normalisation_inside: bool = False,
) -> Exported:
    """A release's network, checked on the first rows of a split; `said` are the run's own predictions over it.

    Only rows that `said` has are taken, as a version may have been measured on a part of them. Without it the check is
    against the network itself. With `normalisation_inside` the graph begins with the normalisation, and takes pixels
    from 0 to 1, or features as they are. A tokenizer is written beside, as FILE.tokenizer.json.
    """
    if normalisation_inside:
        check_inside(split, format)
    stored = None if said is None else _stored(said)
    known = [row for row, identity in enumerate(split.ids.tolist()) if stored is None or identity in stored]
    if not known:
        raise InputError(
            f"{'the split' if said is None else said.name} has none of the samples to check the export on."
        )
    few = split.select(known[:rows])
    network, scale = release.network, release.normalisation
    if normalisation_inside and scale is not None:
        network = Rescaled(plain_network(network), None, scale)
    taken = None if normalisation_inside else scale
    example = next(iter(Batches(few, len(few), normalisation=taken))).x
    target = Path(path)
    found = export(
        network,
        example,
        format=format,
        path=target,
        expected=None if stored is None else torch.tensor([stored[identity] for identity in few.ids.tolist()]),
        facts={
            "version": release.name,
            "classes": list(release.classes),
            "normalisation": None if scale is None else asdict(scale),
            "preprocessing": {
                **expected_inputs(split, scale, inside=normalisation_inside),
                **tokenizer_facts(release.encoder, target.name),
            },
        },
    )
    if release.encoder is not None:
        release.encoder.write(target.with_name(f"{target.name}.tokenizer.json"))
    return found


def _stored(said: Predictions) -> dict[Any, list[float]]:
    """The logits of a prediction file by id."""
    if "logits" not in said.columns:
        raise InputError(f"{said.name} has no logits to check an export against.")
    table = said.table(["id", "logits"])
    return dict(zip(table["id"].to_pylist(), table["logits"].to_pylist(), strict=True))


def _named(example: Inputs) -> dict[str, Tensor]:
    inputs = dict(example) if isinstance(example, Mapping) else {"x": example}
    return {name: tensor.cpu() for name, tensor in inputs.items()}


def _difference(said: Tensor, logits: Tensor, path: Path) -> float:
    if said.shape != logits.shape:
        raise InputError(f"{path} gives {tuple(said.shape)} and the run {tuple(logits.shape)}: it is another network.")
    other = (said.argmax(-1) != logits.argmax(-1)).nonzero()
    largest = float((said - logits).abs().max())
    allowed = TOLERANCE * max(1.0, float(logits.abs().max()))
    if len(other) or not largest <= allowed:
        raise InputError(
            f"{path} would not say what the run says: {len(other)} of {len(said)} samples get another class, and the "
            f"largest difference of a logit is {largest:.3g} (allowed: {allowed:.3g}). Nothing was written."
        )
    return largest


def _write_facts(found: Exported, inputs: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    described = {
        **facts,
        "format": found.format,
        "inputs": {
            n: {"shape": list(t.shape[1:]), "type": str(t.dtype).removeprefix("torch.")} for n, t in inputs.items()
        },
        "checked_on": found.rows,
        "largest_difference": found.largest_difference,
        "versions": {"flipguard": __version__, "torch": str(torch.__version__)},
    }
    with whole_file(found.path.with_name(f"{found.path.name}.json")) as beside:
        beside.write_text(json.dumps(described, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _safetensors(network: nn.Module, inputs: Mapping[str, Tensor], path: Path) -> Run:
    save_checkpoint(path, network.state_dict(), {})
    blank = deepcopy(network)
    # Tables that the code makes anew (positions of tokens) are no part of a file, and stay.
    for tensor in blank.state_dict().values():
        tensor.zero_()
    return load_weights(blank, load_checkpoint(path)[0], path)


def _callable(network: nn.Module, inputs: Mapping[str, Tensor]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    if tuple(inputs) == ("x",):
        return network, (inputs["x"],)
    return Positional(network, tuple(inputs)), tuple(inputs.values())


def _by_position(graph: Callable[..., Tensor]) -> Run:
    return lambda x: graph(*_named(x).values())


def _torchscript(network: nn.Module, inputs: Mapping[str, Tensor], path: Path) -> Run:
    traced = torch.jit.trace(*_callable(network, inputs))
    torch.jit.save(traced, str(path))
    return _by_position(torch.jit.load(str(path)))


def _any_batch_size(network: nn.Module, inputs: Mapping[str, Tensor]) -> Any:
    called, example = _callable(network, inputs)
    batch = torch.export.Dim("batch")
    each = tuple({0: batch} for _ in example)
    # Several tensors arrive as one variadic argument.
    return torch.export.export(called, example, dynamic_shapes=each if called is network else (each,))


def _torch_export(network: nn.Module, inputs: Mapping[str, Tensor], path: Path) -> Run:
    with path.open("wb") as file:
        torch.export.save(_any_batch_size(network, inputs), file)
    with path.open("rb") as file:
        return _by_position(torch.export.load(file).module())


def _onnx(network: nn.Module, inputs: Mapping[str, Tensor], path: Path) -> Run:
    for library in ("onnxscript", "onnxruntime"):
        try:
            import_module(library)
        except ModuleNotFoundError as error:
            raise MissingExtra(f"an ONNX export needs {error.name}: pip install 'flipguard[onnx]'") from error
    torch.onnx.export(
        _any_batch_size(network, inputs),
        f=str(path),
        dynamo=True,
        input_names=list(inputs),
        output_names=["logits"],
        external_data=False,
        verbose=False,
    )
    return OnnxNetwork(path)


@contextmanager
def _only_errors() -> Iterator[None]:
    """The exporters' logs tell of operators of libraries that are not installed, of constants that they do not fold, of
    losses that nobody asked for: nothing that a reader could do anything about, as what is written is checked."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "transformers")]
    before = [log.level for log in logs]
    try:
        for log in logs:
            log.setLevel(logging.ERROR)
        yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)


_WRITERS: dict[str, Callable[[nn.Module, Mapping[str, Tensor], Path], Run]] = {
    "safetensors": _safetensors,
    "onnx": _onnx,
    "torchscript": _torchscript,
    "torch-export": _torch_export,
}
