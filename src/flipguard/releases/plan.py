"""The training spec as types: data, versions, method, training. Needs no torch, so that a schema can be printed.

A plan says what is wanted and may leave out the rest; `flipguard.releases.resolved` fills it in and holds it against
what the methods, models and loaders take.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from flipguard.comparison.gate import GateSettings


def _named(value: Any) -> Any:
    """A name alone is short for a mapping with nothing but that name."""
    return {"name": value} if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    return value if value is None or isinstance(value, list) else [value]


def _run(value: Any) -> Any:
    """A path alone is short for a version that another run has released."""
    return {"run": value} if isinstance(value, str) else value


def _seed(value: Any) -> Any:
    several = value if isinstance(value, list) else [value]
    if not several or any(not isinstance(one, int) or isinstance(one, bool) for one in several):
        raise ValueError("a whole number, or a list of them for several runs")
    if len(set(several)) != len(several):
        raise ValueError("different numbers, one for each run")
    return value


class _OrText:
    """In the JSON Schema, a text may stand in the value's place: its short form."""

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(core)]}


class _OrItem:
    """In the JSON Schema, one item may stand in a list's place."""

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        listed = handler(core)
        return {"anyOf": [listed["anyOf"][0]["items"], *listed["anyOf"]]}


class Strict(BaseModel):
    """Nothing is converted, and no key is taken that is not known."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Named(Strict):
    """A name from a registry and, beside the keys below, the options of what is behind that name."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    name: str

    @property
    def options(self) -> dict[str, Any]:
        """What belongs to the name, in the order of the spec."""
        return dict(self.model_extra or {})


class AugmentPlan(Strict):
    """A random crop out of the padded image, and a mirror image."""

    crop_padding: int = 4
    flip: bool = True
    padding_mode: Literal["zero", "reflect"] = "zero"


class NormalisationPlan(Strict):
    """How inputs are scaled before a network sees them, by channel: (x - mean) / std, of pixels in [0, 1]."""

    mean: Annotated[list[float], Field(min_length=1)]
    std: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]

    @model_validator(mode="after")
    def _alike(self) -> "NormalisationPlan":
        if len(self.mean) != len(self.std):
            raise ValueError(f"{len(self.mean)} means and {len(self.std)} stds: one of each for every channel")
        return self

    @classmethod
    def of(cls, stored: Any) -> "NormalisationPlan | None":
        """From what an export says of itself; ValueError when that is something else."""
        return None if stored is None else cls.model_validate(stored)


KeptClasses = Annotated[
    int | float | list[str] | None, Field(description="keep so many classes, a fraction of them, or these")
]
KeptRows = Annotated[int | float | None, Field(description="keep so many training rows of each class, or a fraction")]
SubsetSeed = Annotated[int, Field(description="draws the classes and rows that are kept")]
"""Which part of a data set a model is trained on: a spec's `data` and a bench's networks say it alike."""


class DataChanges(_Named):
    """What a version's data has in place of the spec's: any of the keys of `data`."""

    name: str = ""
    folder: Annotated[str | None, Field(description="where the files are; else FLIPGUARD_DATA")] = None
    validation: Annotated[
        int | float | None, Field(description="training rows held out: a number, or a fraction below 1")
    ] = None
    validation_seed: Annotated[int, Field(description="draws the rows held out")] = 0
    classes: KeptClasses = None
    per_class: KeptRows = None
    subset_seed: SubsetSeed = 0
    augment: Annotated[AugmentPlan | None, Field(description="crops and mirror images, for images only")] = None
    normalisation: Annotated[
        NormalisationPlan | Literal["none"] | None,
        Field(description="how inputs are scaled, if not by the data's own mean and std"),
    ] = None

    @property
    def options(self) -> dict[str, Any]:
        """The loader's own options; null takes one away, as when a change on the command line names another loader."""
        return {name: value for name, value in super().options.items() if value is not None}


class DataPlan(DataChanges):
    """A data set by name, the loader's own options, and which part of it is used."""

    name: Annotated[str, Field(description="a data set that flipguard.data knows")]


class ModelPlan(_Named):
    """A network by name, with its options."""

    name: Annotated[str, Field(description="a network that flipguard.models knows, or package.module:factory")]


class ResourcesPlan(Strict):
    """What one training takes of a cluster's machine."""

    cpus: Annotated[float, Field(gt=0, description="cores; a network on the CPU is trained with so many threads")] = 1.0
    gpus: Annotated[float, Field(ge=0, description="GPUs, or the share of one")] = 0.0

    @model_validator(mode="after")
    def _whole_gpus(self) -> "ResourcesPlan":
        if self.gpus > 1 and not self.gpus.is_integer():
            raise ValueError("a share of a GPU, or whole ones")
        return self


class TrainPlan(Strict):
    """How a network is trained: the fields of `Recipe`, and how the run goes about it."""

    epochs: int = 16
    batch_size: int = 128
    optimiser: Literal["sgd", "adamw"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    decay_all: Annotated[bool, Field(description="decay BatchNorm and biases too")] = True
    schedule: Literal["constant", "step", "cosine", "one_cycle"] = "one_cycle"
    warmup: Annotated[float, Field(description="the share of all steps over which the rate rises")] = 0.2
    cycles: Annotated[int, Field(description="how often the whole schedule is gone through")] = 1
    floor: Annotated[float, Field(description="where the rate's fall ends, as a share of its peak")] = 0.0
    tail: Annotated[float, Field(description="the share of a cycle's steps, the last ones, taken at the floor")] = 0.0
    average: Annotated[int, Field(description="release the mean of the weights after each of the last epochs")] = 0
    views: Annotated[
        int, Field(description="augmented forms of each sample, of which the references are asked once; 0: new ones")
    ] = 0
    dealt: Annotated[bool, Field(description="deal the rows of each batch out among the networks of a reference")] = (
        False
    )
    scales: Annotated[
        list[float], Field(description="shares of the images' sides, in equal parts of the epochs; the last is 1")
    ] = []
    precision: Literal["float32", "bf16"] = "float32"
    channels_last: bool = False
    accumulate: Annotated[int, Field(description="parts of a batch, one after another, for less memory")] = 1
    checkpoint_activations: bool = False
    sharded: Annotated[
        bool, Field(description="under a launcher, each process holds its share of the weights, for less memory")
    ] = False
    clip_norm: Annotated[float | None, Field(description="scale gradients down to at most this norm")] = None
    label_smoothing: Annotated[
        float | None, Field(description="given to the method, and to the members' cross-entropy")
    ] = None
    choose_epoch: Annotated[
        Literal["last", "validation"], Field(description="release the last epoch, or the best on validation")
    ] = "last"
    checkpoint_every: Annotated[int, Field(ge=1, description="steps between two saved states")] = 200
    device: Annotated[str, Field(description="cpu, cuda, cuda:1, or auto")] = "auto"
    engine: Annotated[
        Literal["auto", "plain", "captured", "compiled", "stacked", "grouped", "paired"],
        Field(description="how updates are carried out; auto measures where members share a GPU"),
    ] = "auto"
    processes: Annotated[int | None, Field(ge=1, description="members trained side by side on the CPU")] = None
    resources: Annotated[ResourcesPlan | None, Field(description="what it takes of a cluster's machine (--on)")] = None


class EnsemblePlan(Strict):
    """The ensemble that a method is held to: members that differ by seed, kept and reused."""

    members: Annotated[int, Field(ge=1, le=900)] = 8
    combination: Annotated[
        Literal["logits", "probabilities"], Field(description="the mean of logits, or of probabilities")
    ] = "logits"
    offline: Annotated[bool, Field(description="logits extracted once, without augmentation")] = False
    spread: Annotated[
        bool, Field(description="under a launcher, each process holds its share of the members, for less memory")
    ] = False
    calibrated: Annotated[
        bool, Field(description="each member's logits over the temperature that fits the validation part")
    ] = False
    model: Annotated[
        list[Annotated[ModelPlan, BeforeValidator(_named), _OrText()]] | None,
        BeforeValidator(_listed),
        _OrItem(),
        Field(description="other networks than the version's own; several take turns"),
    ] = None
    train: Annotated[TrainPlan | None, Field(description="what differs from the version's training")] = None


class MethodPlan(_Named):
    """A method by name, with the options of its card, and the ensemble if it needs one."""

    name: Annotated[str, Field(description="a method that `flipguard methods` lists, or recommended")] = "none"
    ensemble: EnsemblePlan | None = None


NamedModel = Annotated[ModelPlan, BeforeValidator(_named), _OrText()]
NamedMethod = Annotated[MethodPlan, BeforeValidator(_named), _OrText()]
NamedData = Annotated[DataPlan, BeforeValidator(_named), _OrText()]


class SeedStreams(Strict):
    """One seed for each stream of randomness; any of them can be held fixed alone."""

    initialisation: int = 0
    order: int = 0
    augment: int = 0


class VersionPlan(Strict):
    """A version that is trained (`model`), or there already (`run`, `checkpoint`, `factory`, `predictions`)."""

    name: Annotated[str | None, Field(description="the version's folder; v0, v1, … by default")] = None
    model: Annotated[ModelPlan | None, BeforeValidator(_named), _OrText()] = None
    method: Annotated[MethodPlan | None, BeforeValidator(_named), _OrText(), Field(description="else the spec's")] = (
        None
    )
    data: Annotated[DataChanges | None, Field(description="what differs from the spec's data")] = None
    train: Annotated[TrainPlan | None, Field(description="what differs from the spec's training")] = None
    seed: Annotated[int | None, Field(description="else the spec's")] = None
    seeds: SeedStreams | None = None
    references: Annotated[
        Literal["chain", "radial", "full", "ensemble"],
        Field(
            description="what is `old`: the closest version, the first, all, or the ensemble the closest learned from"
        ),
    ] = "chain"
    run: Annotated[str | None, Field(description="a run folder, or the folder of one of its versions")] = None
    checkpoint: Annotated[
        str | None, Field(description="a .safetensors file, and `model` says what it holds; or an .onnx file")
    ] = None
    factory: Annotated[
        ModelPlan | None,
        BeforeValidator(_named),
        _OrText(),
        Field(description="package.module:factory that returns the finished network"),
    ] = None
    classes: Annotated[
        list[str] | None, Field(description="the classes of a checkpoint or factory, if not the data's")
    ] = None
    normalisation: Annotated[
        NormalisationPlan | Literal["none"] | None,
        Field(description="how a checkpoint's or factory's inputs are scaled, if not as the data's"),
    ] = None
    output: Annotated[str | None, Field(description="of an .onnx file with several outputs, the logits")] = None
    predictions: Annotated[str | None, Field(description="a prediction file: all that is left of a model")] = None


class TrainSpec(Strict):
    """What `flipguard train` reads: an update (`old`, `new`) or a chain of versions, the oldest first."""

    data: Annotated[DataPlan, BeforeValidator(_named), _OrText()]
    old: Annotated[VersionPlan | None, BeforeValidator(_run), _OrText()] = None
    new: VersionPlan | None = None
    versions: list[Annotated[VersionPlan, BeforeValidator(_run), _OrText()]] | None = None
    method: Annotated[MethodPlan, BeforeValidator(_named), _OrText()] = MethodPlan()
    train: TrainPlan = TrainPlan()
    seed: Annotated[
        int | list[int], BeforeValidator(_seed), Field(description="a list gives a run for each, and mean ± std")
    ] = 0
    seeds: SeedStreams | None = None
    members: Annotated[str | None, Field(description="a folder for ensemble members that several runs share")] = None
    artifacts: Annotated[
        str | None, Field(description="an address (s3://…, file://…) for machines of a cluster that share no disk")
    ] = None
    gate: Annotated[GateSettings | None, Field(description="judges the last version against the one before")] = None

    @model_validator(mode="after")
    def _one_form(self) -> "TrainSpec":
        if self.versions is not None and (self.old is not None or self.new is not None):
            raise ValueError("a spec has `old` and `new`, or `versions`, not both")
        if self.versions is None and self.new is None:
            raise ValueError("a spec needs `new` (and `old`), or a list of `versions`")
        if self.versions is not None and not self.versions:
            raise ValueError("`versions` is empty: list at least one")
        if self.seeds is not None and "seed" in self.model_fields_set:
            raise ValueError("a spec has `seed` or `seeds`, not both")
        return self
