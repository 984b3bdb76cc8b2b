"""What `flipguard figure` draws from: prediction files by side, or run folders, which have both sides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flipguard.types import InputError

if TYPE_CHECKING:
    from flipguard.analysis.members import Members
    from flipguard.analysis.planes import Embedded
    from flipguard.analysis.runs import FinishedRun

Files = Sequence[str | Path]


@dataclass(frozen=True)
class Sources:
    """The arguments of the command.

    A run stands for its last version (new) and the one before (old); a folder of runs by several seeds for all of them.
    """

    figure: str
    runs: Sequence[str] = ()
    old: Files = ()
    new: Files = ()
    treated: Files = ()
    outside: Files = ()
    values: Sequence[float] = ()
    sizes: Sequence[int] = ()
    sample: Sequence[str] = ()
    key: str | None = None
    column: str | None = None
    apart: bool = False
    same: bool = False

    def files(self) -> list[str | Path]:
        return [*self.old, *self.new, *self.treated, *self.outside]

    def needed(self, *options: str) -> None:
        for option in options:
            if not getattr(self, option):
                runs = " or run folders" if option in ("old", "new") else ""
                raise InputError(f"the figure {self.figure} needs --{option}{runs}.")

    def chosen_sizes(self) -> dict[str, Any]:
        return {"sizes": tuple(self.sizes)} if self.sizes else {}

    def chosen_samples(self, members: "Members") -> dict[str, Any]:
        ids = {str(id_): place for place, id_ in enumerate(members.ids)}
        for wanted in self.sample:
            if wanted not in ids:
                raise InputError(f"--sample {wanted}: no such id; the first is {next(iter(ids))}.")
        return {"samples": tuple(ids[wanted] for wanted in self.sample)} if self.sample else {}

    def groups(self) -> dict[str, list["FinishedRun"]]:
        """The runs by the folder that was given, named by as much of its path as tells it from the others."""
        from flipguard.analysis.runs import read_runs

        if self.runs and (self.old or self.new):
            raise InputError("run folders have both sides: give run folders, or --old and --new.")
        paths = [Path(run) for run in self.runs]
        short = [path.resolve().name for path in paths]
        names = short if len(set(short)) == len(short) else [str(path) for path in paths]
        return {name: read_runs(path) for name, path in zip(names, paths, strict=True)}

    def sides(self) -> "Sources":
        """With the files of the runs' updates for --old and --new."""
        if not self.runs:
            self.needed("old", "new")
            return self
        updates = [run.update for group in self.groups().values() for run in group]
        return replace(self, runs=(), old=[old for old, _ in updates], new=[new for _, new in updates])

    def versions(self, *, of_one_run: bool = False) -> tuple[Files, dict[str, Any]]:
        """Files of every version, the oldest first, and options to compare them with: data that grew share a part."""
        runs = [run for group in self.groups().values() for run in group]
        if of_one_run and len(runs) > 1:
            came = f"{len(runs)} came: give one of them, such as {runs[0].path}"
            raise InputError(f"the figure {self.figure} takes the versions of one run, {came}.")
        found = [*self.old, *self.new, *(file for run in runs for file in run.said)]
        if len(found) < 2:
            raise InputError(f"the figure {self.figure} needs every version's file, the oldest first: --new V1 V2 …")
        return found, {} if all(run.same_test for run in runs) else {"on_missing": "drop"}

    def members(self) -> tuple["Members", "Members"]:
        """All old models as members of one ensemble, and all new ones."""
        from flipguard.analysis.members import read_members

        sides = self.sides()
        old = read_members(sides.old, column=self.column)
        return old, read_members(sides.new, like=old, column=self.column)

    def embedded(self) -> tuple["Embedded", "Embedded"]:
        """Members with the features of the same rows."""
        from flipguard.analysis.members import read_members
        from flipguard.analysis.planes import Embedded

        sides, both = self.sides(), replace(self, column=None).members()
        columns = (read_members(files, like=both[0], column="features") for files in (sides.old, sides.new))
        old, new = (Embedded(side, found.logits) for side, found in zip(both, columns, strict=True))
        return old, new

    def updates(self) -> dict[str, Sequence[tuple[Any, Any]]]:
        """Pairs of old and new by name: a run folder's, or the one --old with each --new."""
        if self.runs:
            return {name: [run.update for run in group] for name, group in self.groups().items()}
        self.needed("old", "new")
        if len(self.old) not in (1, len(self.new)):
            raise InputError(
                f"--old is one file for all --new or one for each; {len(self.old)} and {len(self.new)} came."
            )
        old = list(self.old) if len(self.old) > 1 else [self.old[0]] * len(self.new)
        return {name: [(old[i], self.new[i])] for i, name in enumerate(named(self.new))}

    def valued(self) -> dict[float, list[tuple[Any, Any]]]:
        """Pairs by the number that sets them apart: --values, or a key of the runs' specs."""
        found: dict[float, list[tuple[Any, Any]]] = {}
        if self.runs:
            key = self._key()
            for run in (run for group in self.groups().values() for run in group):
                found.setdefault(run.setting(key), []).append(run.update)
            return found
        pairs = [pair for each in self.updates().values() for pair in each]
        for value, pair in zip(self._values(), pairs, strict=True):
            found.setdefault(value, []).append(pair)
        return found

    def sweeps(self) -> dict[str, Mapping[float, "Members"]]:
        """New models by the number that sets them apart, runs of several methods by method."""
        from flipguard.analysis.churn import swept
        from flipguard.analysis.members import read_members

        if not self.runs:
            self.needed("new")
            return {self.key or "value": swept(read_members(self.new), self._values())}
        key, found = self._key(), dict[str, list["FinishedRun"]]()
        for run in (run for group in self.groups().values() for run in group):
            method = run.spec["versions"][-1].get("method", {}).get("name", "none")
            found.setdefault(f"{key.rpartition('.')[2]} of {method}", []).append(run)
        return {
            name: swept(read_members([run.update[1] for run in each]), tuple(run.setting(key) for run in each))
            for name, each in found.items()
        }

    def models(self) -> tuple[dict[str, "Members"], dict[str, "Members"]]:
        """What is asked for its entropy or confidence, and what the same say of foreign samples.

        All --new are members of one model, unless they are to be looked at apart.
        """
        from flipguard.analysis.members import read_members

        if self.runs:
            groups = {name: [run.update[1] for run in group] for name, group in self.groups().items()}
            return {name: read_members(files) for name, files in groups.items()}, {}
        self.needed("new")
        if not self.apart:
            outside = {"model": read_members(self.outside)} if self.outside else {}
            return {"model": read_members(self.new)}, outside
        if self.outside and len(self.outside) != len(self.new):
            raise InputError(
                f"--apart needs an --outside for each --new, {len(self.outside)} and {len(self.new)} came."
            )
        names = named(self.new)
        sides = [
            {n: read_members([file]) for n, file in zip(names, files, strict=False)}
            for files in (self.new, self.outside)
        ]
        return sides[0], sides[1]

    def _key(self) -> str:
        if self.key is None:
            raise InputError(
                f"the figure {self.figure} needs --key, the spec's number that sets runs apart: method.alpha."
            )
        return self.key

    def _values(self) -> tuple[float, ...]:
        self.needed("values")
        if len(self.values) != len(self.new):
            raise InputError(f"each of the {len(self.new)} --new needs a value, {len(self.values)} came.")
        return tuple(self.values)


def named(files: Files) -> list[str]:
    """Models' names and versions where they tell the files apart, else the files' own."""
    from flipguard.predictions import read_predictions

    read = [read_predictions(file) for file in files]
    titles = [" ".join(filter(None, (file.model, file.version))) for file in read]
    stems = [Path(file).stem for file in files]
    for names in (titles, stems):
        if all(names) and len(set(names)) == len(names):
            return names
    return [str(file) for file in files]
