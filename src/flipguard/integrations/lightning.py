"""Lightning: a module that trains a network by any objective, and a callback that counts flips while it trains."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flipguard.types import Batch, InputError, Method, MissingExtra, Normalisation, Reference

try:
    import lightning
    import torch
    from torch import Tensor, nn

    from flipguard.integrations.torchmetrics import FlipMetrics
except ModuleNotFoundError as error:
    raise MissingExtra(
        f"the Lightning integration needs {error.name}; install it with: pip install 'flipguard[lightning]'"
    ) from error

from flipguard.integrations.answers import OldAnswers
from flipguard.training.given import check_live, index_of, objective_of, references_of, row_of, student_of

LOGGED = ("error_rate_old", "error_rate_new", "negative_flip_rate", "relative_negative_flip_rate", "churn")
Optimiser = Callable[[list[dict[str, Any]]], Any]
ADAMW: Optimiser = partial(torch.optim.AdamW, lr=1e-3)


class FlipModule(lightning.LightningModule):
    """A network trained by a method, held to the old model or to an ensemble, under Lightning's own `Trainer`.

    Batches are (x, y) or (x, y, id); they, and `method`, `old`, `ensemble` and `peers`, are those of `flipguard.fit`.
    Logits that were computed once need ids, the rows' places in the set. `optimiser` makes what `configure_optimizers`
    may return from the parameter groups. Each term of the loss is logged by name; `forward` gives the logits (B, C) of
    the network to deploy, which `release` returns.

    References are copied, moved along to the device, and are no part of a checkpoint.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        method: str | Method = "none",
        old: nn.Module | Reference | None = None,
        ensemble: Sequence[nn.Module] | Reference | None = None,
        peers: Sequence[nn.Module] = (),
        optimiser: Optimiser = ADAMW,
        decay_all: bool = True,
        normalisation: Normalisation | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.method = objective_of(method)
        # Not registered: a checkpoint would carry the old model, and the optimiser would see its weights.
        self._references = references_of(self.method, old, ensemble)
        self.student = student_of(self.method, model, peers, decay_all=decay_all)
        self.optimiser, self.normalisation, self.seed = optimiser, normalisation, seed
        self._updates = 0
        self._total = float("inf")

    def forward(self, x: Any) -> Tensor:
        return self.release()(x)

    def release(self) -> nn.Module:
        """The network to deploy."""
        network: nn.Module = self.student.release()
        return network

    def configure_optimizers(self) -> Any:
        return self.optimiser(self.student.parameter_groups())

    def on_fit_start(self) -> None:
        # Lightning leaves a network in the mode it finds it in, and one that was loaded comes in evaluation mode.
        self.student.train()
        for reference in self._references.values():
            if isinstance(reference, nn.Module):
                reference.to(self.device)
        self._total = self.trainer.estimated_stepping_batches
        if self._total == float("inf"):
            raise InputError("training has no end by which its progress could be told: set max_epochs or max_steps.")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y, ids = row_of(batch)
        if ids is None:
            check_live(self._references)
        done = self.trainer.global_step
        step = self.method(
            self.student,
            self._references,
            Batch(
                x=x,
                y=y,
                index=index_of(ids, batch_idx * len(y), len(y)).to(self.device),
                progress=torch.full((), done / self._total, device=self.device),
                step=torch.full((), done, dtype=torch.int64, device=self.device),
                seed=self.seed,
                normalisation=self.normalisation,
            ),
        )
        self.log("loss", step.loss.detach(), prog_bar=True, batch_size=len(y))
        self.log_dict({f"loss/{name}": term.detach() for name, term in step.terms.items()}, batch_size=len(y))
        return step.loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        after_step, done = getattr(self.student, "after_step", None), self.trainer.global_step
        if after_step is not None and done > self._updates:
            after_step(done)
        self._updates = done

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        x, y, _ = row_of(batch)
        logits = self(x)
        self.log("validation_error", (logits.argmax(-1) != y).float().mean(), batch_size=len(y))
        return {"logits": logits}


class FlipCallback(lightning.Callback):
    """Logs error, negative flip rate, relative NFR and churn of each validation against what the old model said.

    Works with any LightningModule whose validation batches are (x, y, id): logits (B, C) are taken from what
    `validation_step` returns, a tensor or a dict with `logits`, and else from `forward(x)`. `old` is a prediction file,
    or whatever `flipguard.compare` takes, that covers the validation samples by id; without ids in the batches rows are
    numbered in the loader's order, in one process. `classes` are the module's, by the order of its outputs, where the
    file names them. Names logged are `prefix` and the figure's name in JSON, such as `flips/negative_flip_rate`.
    """

    def __init__(self, old: Any, *, classes: Sequence[str] | None = None, prefix: str = "flips/") -> None:
        self.answers = OldAnswers(old, classes=classes)
        self.prefix = prefix
        self.metric = FlipMetrics()
        self._first = 0

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.metric.to(pl_module.device).reset()
        self._first = 0

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        x, y, ids = row_of(batch)
        if ids is None and trainer.world_size > 1:
            raise InputError("several processes share the validation rows: yield (x, y, id), to tell which is which.")
        names = range(self._first, self._first + len(y)) if ids is None else _listed(ids)
        self._first += len(y)
        old = torch.from_numpy(self.answers.of(names)).to(y.device)
        self.metric.update(y, old, _logits(outputs, pl_module, x).argmax(-1))

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return
        found = self.metric.compute()
        pl_module.log_dict({f"{self.prefix}{name}": found[name].float() for name in LOGGED})


def _listed(ids: Any) -> list[Any]:
    return ids.tolist() if isinstance(ids, Tensor) else list(ids)


def _logits(outputs: Any, module: nn.Module, x: Any) -> Tensor:
    if isinstance(outputs, dict) and isinstance(outputs.get("logits"), Tensor):
        return outputs["logits"]
    if isinstance(outputs, Tensor) and outputs.ndim == 2:
        return outputs
    with torch.no_grad():
        found: Tensor = module(x)
    return found
