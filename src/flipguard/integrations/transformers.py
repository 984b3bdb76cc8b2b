"""transformers: its `Trainer` with any of our objectives, and flips among its evaluation's metrics."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from flipguard.types import Batch, InputError, Method, MissingExtra, Reference, Student

try:
    import torch
    import transformers
    from torch import Tensor, nn
    from torch.nn import functional
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"the transformers integration needs {error.name}; install it with: pip install 'flipguard[transformers]'"
    ) from error

import numpy as np

from flipguard.ensembles import SingleStudent
from flipguard.integrations.answers import OldAnswers
from flipguard.metrics import FIGURES, tally
from flipguard.models.adapters import Keywords
from flipguard.training.given import check_live, index_of, objective_of, references_of, student_of

REPORTED = ("error_rate_old", "error_rate_new", "negative_flip_rate", "relative_negative_flip_rate", "churn")
INDEX = "index"


class FlipTrainer(transformers.Trainer):
    """A `Trainer` whose loss is a method's, held to the old model or to an ensemble of sequence classifiers.

    `method`, `old`, `ensemble` and `peers` are those of `flipguard.fit`, with transformers' own models for networks;
    everything else is the Trainer's. Terms of the loss are logged by name beside it. The loss of an evaluation is
    cross-entropy. A column `index` of the data, the rows' places in the set, is what cached logits are found by.

    A method that trains several networks, or needs features of one that `flipguard.models` built, has a student of its
    own in `trainer.model`; `release` gives the network to deploy in either case.
    """

    def __init__(
        self,
        model: nn.Module,
        *positional: Any,
        method: str | Method = "none",
        old: nn.Module | Reference | None = None,
        ensemble: Sequence[nn.Module] | Reference | None = None,
        peers: Sequence[nn.Module] = (),
        **options: Any,
    ) -> None:
        self.method = objective_of(method)
        self._references = references_of(self.method, _called_by_dict(old), _called_by_dict(ensemble))
        self._inputs = _inputs(model)
        plain = getattr(self.method, "student", None) is None and isinstance(_called_by_dict(model), Keywords)
        student = (
            None
            if plain
            else student_of(
                self.method, _called_by_dict(model), [_called_by_dict(peer) for peer in peers], decay_all=True
            )
        )
        super().__init__(model if student is None else student, *positional, **options)
        # A method's loss is a mean over the batch, whatever the model could do with the number of items.
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = False
        self.label_names = ["labels"]
        self._own_student = student is not None
        self._terms: dict[str, Tensor] = {}
        self._counted = 0
        for reference in self._references.values():
            if isinstance(reference, nn.Module):
                reference.to(self.args.device)
        after_step = getattr(student, "after_step", None)
        if after_step is not None:
            self.add_callback(_AfterStep(after_step))

    def release(self) -> nn.Module:
        """The network to deploy, such as one that `save_pretrained` writes."""
        trained = self.accelerator.unwrap_model(self.model)
        released: nn.Module = trained.release() if self._own_student else trained
        return released.network if isinstance(released, Keywords) else released

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **scaling: Any
    ) -> Any:
        """The method's loss in training; cross-entropy of the network to deploy in evaluation."""
        x = {name: value for name, value in inputs.items() if name not in ("labels", INDEX)}
        y = _class_codes(inputs)
        if not model.training:
            return self._evaluated(model, x, y, return_outputs=return_outputs)
        index = inputs.get(INDEX)
        if index is None:
            check_live(self._references)
        student: Student = model if self._own_student else SingleStudent(Keywords(model))
        step = self.method(
            student,
            self._references,
            Batch(
                x=x,
                y=y,
                index=index_of(index, 0, len(y)).to(y.device),
                progress=torch.full((), self.state.global_step / self.state.max_steps, device=y.device),
                step=torch.full((), self.state.global_step, dtype=torch.int64, device=y.device),
                seed=self.args.seed,
            ),
        )
        for name, term in step.terms.items():
            self._terms[name] = self._terms.get(name, 0) + term.detach()
        self._counted += 1
        return (step.loss, {"loss": step.loss, "logits": step.logits[0]}) if return_outputs else step.loss

    def _evaluated(self, model: nn.Module, x: dict[str, Tensor], y: Tensor, *, return_outputs: bool) -> Any:
        network = self.accelerator.unwrap_model(model).release() if self._own_student else Keywords(model)
        logits = network(x)
        loss = functional.cross_entropy(logits.float(), y)
        return (loss, {"loss": loss, "logits": logits}) if return_outputs else loss

    def log(self, logs: dict[str, float], *positional: Any, **options: Any) -> None:
        """The Trainer's own, with the terms' means since the last time beside its loss."""
        if "loss" in logs and self._counted:
            logs |= {f"loss_{name}": float(total) / self._counted for name, total in self._terms.items()}
            self._terms, self._counted = {}, 0
        super().log(logs, *positional, **options)

    def _set_signature_columns_if_needed(self) -> None:
        self._signature_columns = [*self._inputs, "label", "label_ids", "labels", INDEX]


class _AfterStep(transformers.TrainerCallback):
    """Tells a student after each update how many there have been."""

    def __init__(self, after_step: Callable[[int], None]) -> None:
        self.after_step = after_step

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.after_step(state.global_step)


def flip_metrics(
    old: Any, ids: Sequence[Any], *, classes: Sequence[str] | None = None
) -> Callable[[Any], dict[str, float]]:
    """For `compute_metrics`: error, negative flip rate, relative NFR and churn against what the old model said.

    `old` is a prediction file, or whatever `flipguard.compare` takes; `ids` are those of the evaluation's rows, in
    their order. `classes` are the model's, in the order of its outputs, where the file names them.

    >>> said = {"id": [7, 8, 9], "prediction": [0, 1, 1]}
    >>> logits = np.array([[2.0, 1.0], [3.0, 0.0], [0.0, 1.0]])
    >>> found = flip_metrics(said, [7, 8, 9])(transformers.EvalPrediction(logits, np.array([0, 1, 0])))
    >>> round(found["negative_flip_rate"], 4), round(found["error_rate_new"], 4)
    (0.3333, 0.6667)
    """
    before = OldAnswers(old, classes=classes).of(ids)

    def measured(evaluated: Any) -> dict[str, float]:
        logits = evaluated.predictions[0] if isinstance(evaluated.predictions, tuple) else evaluated.predictions
        if len(logits) != len(before):
            raise InputError(f"{len(logits):,} rows were evaluated, and flip_metrics was given {len(before):,} ids.")
        label = np.maximum(np.asarray(evaluated.label_ids, np.int64), -1)
        counted = tally(label, before, np.asarray(logits).argmax(-1))
        return {name: float(FIGURES[name](counted)) for name in REPORTED}

    return measured


def _called_by_dict(given: Any) -> Any:
    """transformers' models take their inputs by name, ours as one dict; references are taken as they are."""
    if isinstance(given, list | tuple):
        return [_called_by_dict(network) for network in given]
    if not isinstance(given, nn.Module) or isinstance(given, Reference) or hasattr(given, "feature_width"):
        return given
    return Keywords(given)


def _inputs(model: nn.Module) -> list[str]:
    """The columns of the data that the model takes; ours takes what the tokeniser gives."""
    if hasattr(model, "feature_width"):
        return ["input_ids", "attention_mask", "token_type_ids"]
    return list(inspect.signature(model.forward).parameters)


def _class_codes(inputs: dict[str, Any]) -> Tensor:
    y = inputs.get("labels")
    if y is None:
        raise InputError("the data has no column labels: classes are learned from their codes.")
    if y.ndim != 1 or y.is_floating_point():
        raise InputError(f"labels must be one class code a row, they are {y.dtype} of shape {tuple(y.shape)}.")
    return y
