"""The model that MLflow runs to load a release: it is stored as this code, beside the release's own files."""

import warnings
from typing import Any

import numpy as np

from flipguard.types import MissingExtra

try:
    import mlflow
    import torch
except ModuleNotFoundError as error:
    raise MissingExtra(f"the MLflow integration needs {error.name}: pip install 'flipguard[mlflow]'") from error

from flipguard.data import Batches, Split
from flipguard.releases import Release, load_release

# MLflow reads the types of `predict` to check rows by, knows no arrays among them, and warns whatever it finds.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)

    class ReleaseModel(mlflow.pyfunc.PythonModel):
        """A release behind MLflow's `predict`."""

        release: Release

        def load_context(self, context: Any) -> None:
            self.release = load_release(context.artifacts["release"])

        def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
            """Class probabilities, a row per input and a column per class name. Inputs are scaled as in training."""
            import pandas as pd

            split = self._split(model_input)
            network, scale = self.release.network, self.release.normalisation
            with torch.inference_mode():
                parts = [network(batch.x).softmax(-1) for batch in Batches.asked(split, normalisation=scale)]
            return pd.DataFrame(torch.cat(parts).numpy(), columns=list(self.release.classes))

        def _split(self, given: Any) -> Split:
            values = given.to_numpy() if hasattr(given, "to_numpy") else np.asarray(given)
            if self.release.encoder is not None:
                x: Any = self.release.encoder([str(text) for text in values.reshape(-1)])
            else:
                x = torch.from_numpy(np.ascontiguousarray(values))
                x = x if x.dtype == torch.uint8 else x.float()
            return Split(x, torch.full((len(values),), -1), np.arange(len(values)))


mlflow.models.set_model(ReleaseModel())
