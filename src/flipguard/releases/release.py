"""A released network and what it takes to use it: classes, normalisation, how it came about."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from flipguard.checkpoints import load_checkpoint, load_weights, save_checkpoint
from flipguard.data import DataSet, Encoder, encoded_by, read_encoder
from flipguard.ensembles import BatchEnsemble, Combination, DeepEnsemble, batch_ensemble
from flipguard.predictions import Predictions
from flipguard.releases import material
from flipguard.releases.folder import CARD, MODEL, read_json, version_home, write_json
from flipguard.releases.plan import DataPlan
from flipguard.releases.resolved import check_data
from flipguard.releases.trust import check_name
from flipguard.training import ModelSpec, as_predictions, predict_logits
from flipguard.types import DamagedFile, InputError, Normalisation

FORMAT, TOKENIZER = 1, "tokenizer.json"


@dataclass(frozen=True)
class Release:
    """A network in evaluation mode with what goes with it.

    `members` is above 1 for the ensemble itself, which answers as one network. `facts` say where it comes from: data,
    method, seeds, versions of what was used. `called` is the network's name where it was first made; the `model` of a
    release that was read may go by the place that it was read from.
    """

    name: str
    network: nn.Module
    model: ModelSpec
    classes: tuple[str, ...]
    normalisation: Normalisation | None = None
    members: int = 1
    combination: Combination = "logits"
    facts: Mapping[str, Any] = field(default_factory=dict)
    encoder: Encoder | None = None
    called: str | None = None

    def known(self, data: DataSet) -> DataSet:
        """The data with its texts as this network knows them: by the tokenizer that came with it."""
        return data if self.encoder is None else encoded_by(data, self.encoder)

    def logits(self, data: DataSet, part: str = "test", *, device: str = "cpu") -> npt.NDArray[np.float32]:
        """(N, C) over a part of any data, its inputs scaled and its texts encoded as this network knows them."""
        data = replace(self.known(data), normalisation=self.normalisation)
        return predict_logits(self.network, data, part, device=device)

    def says(self, data: DataSet, part: str, *, device: str = "cpu") -> npt.NDArray[np.int64] | None:
        """The class codes (N,) that it predicts, as the data numbers them."""
        mapping = material.class_map(self.classes, data, f"the version '{self.name}'")
        return material.as_codes(self.logits(data, part, device=device).argmax(axis=-1), mapping)

    def predictions(self, data: DataSet, part: str = "test", *, device: str = "cpu") -> Predictions:
        """What it says about a part of the data, as a prediction file's rows.

        The data may have other classes, as after growth: labels are then written by name.
        """
        called = self.called or self.model.name
        facts: dict[str, Any] = {"model": called, "version": self.name, "metadata": dict(self.facts)}
        if not set(data.classes) & set(self.classes):
            raise InputError(
                f"{data.name} has none of the {len(self.classes)} classes that '{self.name}' knows (it has "
                f"'{data.classes[0]}', not '{self.classes[0]}')."
            )
        logits = self.logits(data, part, device=device)
        if data.classes == self.classes:
            return as_predictions(logits, data, part, **facts)
        split = data.part(part)
        names = [data.classes[code] if code >= 0 else None for code in split.y.tolist()]
        rows: dict[str, Any] = {"id": split.ids, "label": names, "logits": logits, "slices": dict(split.slices)}
        return Predictions.from_arrays(**rows, classes=self.classes, **facts)

    def save(self, home: Path) -> None:
        """Weights now; `finish` writes model.json, by which a version counts as done."""
        save_checkpoint(home / MODEL, self.network.state_dict(), self.card())
        self.model.carry(home)
        if self.encoder is not None:
            self.encoder.write(home / TOKENIZER)

    def card(self) -> dict[str, Any]:
        """model.json: everything but the weights."""
        return {
            "format": FORMAT,
            "version": self.name,
            "kind": self._kind(),
            "model": {"name": self.called or self.model.name, "options": dict(self.model.options)},
            "members": self.network.members if isinstance(self.network, BatchEnsemble) else self.members,
            "combination": self.combination,
            "classes": list(self.classes),
            "normalisation": None if self.normalisation is None else asdict(self.normalisation),
            **self.facts,
        }

    def _kind(self) -> str:
        if isinstance(self.network, BatchEnsemble):
            return "batch_ensemble"
        return "network" if self.members == 1 else "ensemble"

    def finish(self, home: Path) -> None:
        write_json(home / CARD, self.card())


def load_release(path: str | Path, version: str | None = None, *, trust: bool = False) -> Release:
    """The released network of a run folder (by default its last version), or of one version's own folder.

    A network that is made by code of its author's, which the folder only names, is built with `trust` alone.
    """
    home = version_home(Path(path), version)
    card = read_json(home / CARD)
    if card.get("kind") == "predictions":
        raise InputError(f"{home} holds a model's predictions only: there is no network to load.")
    try:
        model = ModelSpec(card["model"]["name"], card["model"]["options"]).bare(home)
        classes, members = tuple(card["classes"]), int(card["members"])
        scale = card["normalisation"]
        normalisation = None if scale is None else Normalisation(tuple(scale["mean"]), tuple(scale["std"]))
        combination = card["combination"]
    except (KeyError, TypeError) as error:
        raise InputError(f"{home / CARD} is no release's: {error} is missing or of another kind.") from error
    check_name(model.name, str(home), trust=trust)
    if card.get("kind") == "batch_ensemble":
        network: nn.Module = batch_ensemble(material.build(model, len(classes), 0, str(home)), members)
        members = 1
    else:
        build = [material.build(model, len(classes), 0, str(home)) for _ in range(members)]
        network = build[0] if members == 1 else DeepEnsemble(build, combination=combination)
    tensors, sealed = load_checkpoint(home / MODEL)
    if sealed != card:
        raise DamagedFile(f"{home / CARD} is damaged: it differs from what {MODEL} holds of it.", home / CARD)
    load_weights(network, tensors, home / MODEL).eval()
    own = {"format", "version", "kind", "model", "members", "combination", "classes", "normalisation"}
    facts = {name: value for name, value in card.items() if name not in own}
    encoder = read_encoder(home / TOKENIZER) if (home / TOKENIZER).is_file() else None
    name = str(card.get("version"))
    called = str(card["model"]["name"])
    return Release(name, network, model, classes, normalisation, members, combination, facts, encoder, called)


def predict_release(
    path: str | Path,
    plan: DataPlan,
    *,
    version: str | None = None,
    part: str = "test",
    device: str = "auto",
    trust: bool = False,
) -> Predictions:
    """What a released network says about a part of any data whose classes it knows; `trust` as for `load_release`."""
    release = load_release(path, version, trust=trust)
    check_data(plan, "data")
    data = material.load(plan, encoder=release.encoder)
    data.part(part)
    try:
        return release.predictions(data, part, device=material.device_of(device))
    except RuntimeError as error:
        shape = release.facts.get("data", {}).get("input_shape")
        raise InputError(
            f"{release.model.name} cannot take the inputs of {data.name} (it was trained on {shape}): "
            f"{' '.join(str(error).split())[:150]}"
        ) from error
