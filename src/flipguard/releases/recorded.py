"""A model that is gone, of which a prediction file is left: it can be compared with, and held to by its logits."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flipguard.data import DataSet
from flipguard.ensembles import CachedReference
from flipguard.predictions import Predictions, read_predictions
from flipguard.releases import material
from flipguard.releases.folder import CARD, PREDICTIONS, made, write_json
from flipguard.types import InputError

SOURCE = "source.parquet"


@dataclass(frozen=True)
class Recorded:
    """A version that is known by what it said. Rows are found by id."""

    name: str
    file: str
    said: Predictions

    @classmethod
    def read(cls, name: str, path: str | Path, *, shown: str | None = None) -> "Recorded":
        return cls(name, shown or str(path), read_predictions(path))

    @classmethod
    def load(cls, home: Path, file: str) -> "Recorded":
        """From its folder, whatever has become of the file that it came from."""
        return cls.read(home.name, home / PREDICTIONS / SOURCE, shown=file)

    @cached_property
    def _places(self) -> dict[Any, int]:
        return {name: row for row, name in enumerate(self.said.table(["id"])["id"].to_pylist())}

    def rows(self, data: DataSet, part: str) -> tuple[npt.NDArray[np.int64], list[Any]]:
        """The file's row of each sample of a part, and the ids that it lacks."""
        ids = data.part(part).ids.tolist()
        missing = [name for name in ids if name not in self._places]
        return np.array([self._places[name] for name in ids if name in self._places], np.int64), missing

    def classes(self, data: DataSet) -> tuple[str, ...]:
        if self.said.classes is not None:
            return self.said.classes
        width = self.said.class_count
        if width not in (None, len(data.classes)):
            raise InputError(
                f"{self.file} names no classes and has {width} scores a row, where {data.name} has "
                f"{len(data.classes)} classes: add class names to it."
            )
        return data.classes

    def says(self, data: DataSet, part: str, *, device: str = "cpu") -> npt.NDArray[np.int64] | None:
        """The class codes (N,) that it predicted, as the data numbers them; None when it lacks samples."""
        rows, missing = self.rows(data, part)
        if missing:
            return None
        mapping = material.class_map(self.classes(data), data, f"the prediction file {self.file}")
        if self.said.scores is not None:
            return material.as_codes(self._scores(self.said.scores)[rows].argmax(axis=-1), mapping)
        places = {name: code for code, name in enumerate(data.classes)}
        told = self.said.table(["prediction"])["prediction"].to_pylist()
        codes = [places.get(one, -1) if isinstance(one, str) else -1 if one is None else int(one) for one in told]
        whole = np.array(codes, np.int64)[rows]
        return np.where(whole < 0, -1, material.as_codes(np.maximum(whole, 0), mapping))

    def reference(self, name: str, data: DataSet, method: str, *, device: str = "cpu") -> CachedReference:
        """Its logits over the training set, as what a student is held to."""
        if self.said.scores != "logits":
            raise InputError(
                f"{self.file} has no logits: {method} cannot be held to it. Take method none to only compare with it."
            )
        rows, missing = self.rows(data, "train")
        if missing:
            raise InputError(
                f"{self.file} lacks {len(missing):,} of the {len(data.train):,} training ids (first: {missing[0]}), "
                f"and {method} needs logits for each. Take method none to only compare with it."
            )
        mapping = material.class_map(self.classes(data), data, f"the prediction file {self.file}")
        logits = torch.from_numpy(self._scores("logits")[rows])[None]
        return CachedReference(name, logits.to(device), classes=mapping)

    def _scores(self, column: str) -> npt.NDArray[np.float32]:
        values = self.said.table([column])[column].combine_chunks()
        return np.asarray(values.flatten().to_numpy(zero_copy_only=False), np.float32).reshape(self.said.rows, -1)

    def check(self, data: DataSet) -> None:
        """Refuses a file that has nothing to do with the data."""
        if all(self.rows(data, part)[1] for part in data.parts() if len(data.part(part))):
            raise InputError(
                f"{self.file} covers no part of {data.name}: it lacks, for one, the test id {data.test.ids[0]}. Its "
                "ids must be the data's."
            )

    def keep(self, home: Path, data: DataSet) -> None:
        """Copy the rows into a version's folder; those of the held-out parts, where all are there, to files apart."""
        folder = made(home / PREDICTIONS)
        self.said.write(folder / SOURCE)
        for part in ("validation", "test"):
            rows, missing = self.rows(data, part) if part in data.parts() else (np.empty(0, np.int64), [part])
            if not missing:
                known: dict[str, Any] = {"classes": self.said.classes, "model": self.said.model, "version": self.name}
                taken = Predictions.from_table(self.said.table().take(rows), name=self.file, **known)
                taken.write(folder / f"{part}.parquet")
        write_json(home / CARD, {"format": 1, "version": self.name, "kind": "predictions", "source": self.file})
