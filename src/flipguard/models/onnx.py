"""An ONNX file as a network: the old model of a team that kept nothing else of it."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from flipguard.types import InputError, MissingExtra

_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


class OnnxNetwork(nn.Module):
    """`forward(x)` runs the file on the CPU by onnxruntime and gives its logits (B, C), where x is.

    x is a tensor for a file of one input, or a dict of tensors with the names of the file's inputs; what the file does
    not ask for is left out. `output` names the logits when the file has several outputs; `classes` is how many there
    must be. A file with a fixed batch size is fed in parts of that size. It has no weights that torch knows of: nothing
    flows back through it, its features are not to be had, and it cannot be part of a captured step (extract its logits
    once instead, see `extract_logits`).
    """

    differentiable = False

    def __init__(self, path: str | Path, *, classes: int | None = None, output: str | None = None) -> None:
        super().__init__()
        self.path, self.classes = Path(path), classes
        self._session = _open(self.path)
        self._inputs = {each.name: each for each in self._session.get_inputs()}
        self.output = _logits(self._session.get_outputs(), self.path, output, classes)

    def __reduce__(self) -> tuple[Any, ...]:
        """A session lives in one process; a copy, or another process, opens the file again."""
        return _again, (self.path, self.classes, self.output)

    def forward(self, x: "Tensor | Mapping[str, Tensor]") -> Tensor:
        """(B, …) -> (B, C)."""
        feed = self._feed(x)
        rows = len(next(iter(feed.values())))
        size = self._batch_size() or max(1, rows)
        parts = [
            self._run({name: value[i : i + size] for name, value in feed.items()}, size) for i in range(0, rows, size)
        ]
        logits = np.concatenate(parts) if parts else np.zeros((0, self.classes or 0), np.float32)
        if logits.ndim != 2 or (self.classes is not None and logits.shape[1] != self.classes):
            raise _wrong_output(self.path, self.output, logits.shape, self.classes)
        where = next(iter(x.values())) if isinstance(x, Mapping) else x
        return torch.from_numpy(logits.astype(np.float32)).to(where.device)

    def _run(self, feed: Mapping[str, npt.NDArray[Any]], size: int) -> npt.NDArray[Any]:
        """One call; a last part that is too short for a fixed batch size is filled up by its first row, then cut."""
        rows = len(next(iter(feed.values())))
        if self._batch_size() and rows < size:
            feed = {name: np.concatenate([v, np.repeat(v[:1], size - rows, 0)]) for name, v in feed.items()}
        try:
            found: npt.NDArray[Any] = self._session.run([self.output], dict(feed))[0]
        except Exception as error:
            raise InputError(f"{self.path} cannot be run on this data ({_first_line(error)}).") from error
        return found[:rows]

    def _batch_size(self) -> int | None:
        """The batch size that the file insists on, if it does."""
        first = next(iter(self._inputs.values())).shape
        return first[0] if first and isinstance(first[0], int) else None

    def _feed(self, x: "Tensor | Mapping[str, Tensor]") -> dict[str, npt.NDArray[Any]]:
        if isinstance(x, Tensor):
            if len(self._inputs) != 1:
                names = ", ".join(self._inputs)
                raise InputError(f"{self.path} takes the inputs {names}, and the data has one tensor.")
            x = {next(iter(self._inputs)): x}
        feed = {}
        for name, wanted in self._inputs.items():
            if name not in x:
                raise InputError(f"{self.path} takes the input '{name}', and the data has {', '.join(x)}.")
            shape = tuple(x[name].shape)
            fixed = zip(wanted.shape[1:], shape[1:], strict=False)
            if len(wanted.shape) != len(shape) or any(isinstance(w, int) and w != s for w, s in fixed):
                asked = ", ".join(str(side) for side in wanted.shape[1:])
                raise InputError(f"{self.path} takes inputs of shape ({asked}) a sample, and the data has {shape[1:]}.")
            if wanted.type not in _TYPES:
                raise InputError(f"{self.path}: its input '{name}' has type {wanted.type}, which no data here has.")
            # NumPy has no bfloat16.
            given = x[name].float() if x[name].dtype == torch.bfloat16 else x[name]
            feed[name] = given.detach().cpu().numpy().astype(_TYPES[wanted.type])
        return feed


def onnx_model(name: str, *, classes: int, output: str | None = None) -> OnnxNetwork:
    """The network in a file, with as many outputs as there are classes."""
    return OnnxNetwork(name, classes=classes, output=output)


def whole_onnx(path: Path) -> bytes:
    """An ONNX file with its weights inside: torch's exporter puts them into a file beside it, unless told not to."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    # The key under which a tensor says which file its values are in; without it there is nothing to look for.
    if b"location" not in content:
        return content
    try:
        library = import_module("onnx")
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{path} has its weights in another file, and needs onnx: pip install 'flipguard[onnx]'"
        ) from error
    try:
        model = library.load(str(path))
        whole: bytes = model.SerializeToString()
    except Exception as error:
        # A weight file that is gone, cut short or outside of the folder; or a whole above protobuf's two gigabytes.
        raise InputError(f"the weights of {path} cannot be put into one file ({_first_line(error)}).") from error
    return whole


def _again(path: Path, classes: int | None, output: str) -> OnnxNetwork:
    return OnnxNetwork(path, classes=classes, output=output)


def _open(path: Path) -> Any:
    try:
        runtime = import_module("onnxruntime")
    except ModuleNotFoundError as error:
        raise MissingExtra("an ONNX file needs onnxruntime: pip install 'flipguard[onnx]'") from error
    if not path.is_file():
        raise InputError(f"the ONNX file {path} does not exist.")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Warnings about the graph are its author's business, and errors come as exceptions.
    options.log_severity_level = 4
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise InputError(f"{path} cannot be read as an ONNX file ({_first_line(error)}).") from error


def _logits(outputs: list[Any], path: Path, name: str | None, classes: int | None) -> str:
    """The name of the output that holds the logits, by name or because it is the only one."""
    found = {each.name: each for each in outputs}
    if name is None and len(found) != 1:
        raise InputError(
            f"{path} has {len(found)} outputs ({', '.join(found)}): say which one holds the logits, by output."
        )
    name = name or next(iter(found))
    if name not in found:
        raise InputError(f"{path} has no output '{name}'; it has {', '.join(found)}.")
    shape, kind = found[name].shape, found[name].type
    width = shape[-1] if shape else None
    if kind not in ("tensor(float)", "tensor(float16)", "tensor(double)"):
        raise InputError(f"{path}: its output '{name}' has type {kind}; logits are numbers with a fraction.")
    if shape and (len(shape) != 2 or (classes is not None and isinstance(width, int) and width != classes)):
        raise _wrong_output(path, name, shape, classes)
    return name


def _wrong_output(path: Path, name: str, shape: Any, classes: int | None) -> InputError:
    wanted = "one number per class" if classes is None else f"{classes} classes"
    return InputError(f"{path}: its output '{name}' has shape {tuple(shape)}; logits are (batch, {wanted}).")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
