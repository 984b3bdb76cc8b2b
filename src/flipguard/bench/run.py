"""A bench from its spec to its tables. What is there is not made again."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from flipguard._nearest import nearest
from flipguard.bench.corrupted import kinds_of, on_corrupted
from flipguard.bench.cost import Costs
from flipguard.bench.elsewhere import bring, is_there, put
from flipguard.bench.evaluate import Pair, pairs_of
from flipguard.bench.graph import Graph
from flipguard.bench.node import Node, with_parents
from flipguard.bench.pairs import PAIRS, Records
from flipguard.bench.plan import BenchSpec
from flipguard.bench.repair import clear_network, clear_pair
from flipguard.bench.shop import Shop
from flipguard.bench.tables import RUNS, Row, other_condition, read_facts
from flipguard.bench.work import train_all
from flipguard.bench.written import write_tables
from flipguard.data.corruptions import corrupted
from flipguard.releases import material
from flipguard.releases.folder import RunFolder
from flipguard.releases.repair import is_broken, repairable, told
from flipguard.training.pool import Pool
from flipguard.training.signals import Stopped
from flipguard.training.turns import Turns
from flipguard.types import DamagedFile, InputError

Note = Callable[[str], None]


@dataclass(frozen=True)
class Progress:
    """A network is done: which, how many of how many, and how long it took."""

    network: str
    done: int
    total: int
    seconds: float


@dataclass(frozen=True)
class Count:
    """What a bench has still to train: networks, and their operations in plain trainings of the new model."""

    networks: int
    trainings: float
    flops: float
    rows: int


@dataclass
class Bench:
    """A spec at work in a folder, for some of its rows and seeds; all of them when none are named.

    `networks` is a folder that several benches share: what one has trained, another finds. Machines that share no disk
    keep them at the address `kept`, from where they come into the folder. Benches that share a GPU and name one file as
    their `turns` train one at a time (`flipguard.training.turns`).
    """

    spec: BenchSpec
    out: Path
    device: str = "cpu"
    rows: Sequence[str] = ()
    seeds: Sequence[int] = ()
    networks: Path | None = None
    kept: str | None = None
    turns: Path | None = None
    _graph: Graph | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for row in self.rows:
            if row not in self.spec.every_row:
                raise InputError(f"there is no row '{row}'{nearest(row, self.spec.every_row)}")
        for seed in self.seeds:
            if seed not in self.spec.seeds:
                raise InputError(f"there is no seed {seed}; the bench has {', '.join(map(str, self.spec.seeds))}.")

    @property
    def records(self) -> Records:
        return Records(self.spec, self.out)

    @property
    def graph(self) -> Graph:
        """Every row is looked at, also those that are not asked for: what cannot work is said at once."""
        if self._graph is None:
            data = material.load(self.spec.data)
            if "test" not in material.held_out(data):
                raise InputError(f"data: {self.spec.data.name} has no test part to compare models on.")
            graph = Graph(self.spec, data)
            for pair in (pair for row in self.spec.every_row for pair in pairs_of(graph, row, self.spec.seeds[0])):
                for node in with_parents(pair.nodes()):
                    rows = len(graph.set_of(node).train)
                    if node.recipe.batch_size > rows:
                        raise InputError(
                            f"networks.{node.name}: a batch of {node.recipe.batch_size} is above the {rows:,} training "
                            "samples."
                        )
            self._check_corruptions(graph)
            self._graph = graph
        return self._graph

    def _check_corruptions(self, graph: Graph) -> None:
        if self.spec.corruptions is None:
            return
        corrupted(graph.data.test.select([]), kinds_of(self.spec.corruptions)[0], 1)
        if any(data.classes != graph.data.classes for data in graph.sets.values()):
            raise InputError("corruptions: every network of such a bench knows all classes.")

    def pairs(self) -> list[Pair]:
        return [
            pair
            for seed in self.seeds or self.spec.seeds
            for row in self.rows or self.spec.every_row
            for pair in pairs_of(self.graph, row, seed)
        ]

    def _every_pair(self) -> list[Pair]:
        """Of all rows and seeds, also those that are not asked for."""
        rows, seeds = self.spec.every_row, self.spec.seeds
        return [pair for row in rows for seed in seeds for pair in pairs_of(self.graph, row, seed)]

    def _collect(self) -> None:
        """runs.parquet and predictions.parquet of all pairs that are there, of any rows and seeds."""
        self.records.collect(self._every_pair(), self.graph.data.part("test"))

    def count(self) -> Count:
        """What `run` would train."""
        with repairable(self.out):
            missing = self._missing()
        costs, todo = Costs(self.graph), self._todo(missing)
        flops = sum(costs.training(node) for node in todo)
        return Count(len(todo), flops / costs.one_training(), flops, len(missing))

    def run(
        self,
        *,
        processes: int | None = None,
        on_network: Callable[[Progress], None] | None = None,
        on_note: Note | None = None,
        pool: Pool | None = None,
        repair: bool = False,
    ) -> list[Row]:
        """Train what is missing, compare, and write the tables; returns the test part's rows.

        `on_note` is told of a network whose worker died, or that waits for a machine, and of files that were damaged.
        A `pool` trains elsewhere than in processes of this machine; all of its machines must see the networks' folder,
        or reach `kept`.
        `repair` looks through every file of the bench and makes again what is damaged, of any rows and seeds.
        """
        note = on_note or (lambda text: None)
        if self.kept is not None and pool is None:
            raise InputError(f"{self.kept}: networks are kept at an address by machines of a cluster, as with --on.")
        if self.turns is not None and torch.device(self.device).type == "cpu":
            raise InputError("turns are for benches that share a GPU, and this one has none: leave them out.")
        Turns(self.turns).check()
        if not repair:
            self._check_sources()
        with RunFolder(self.out).held(), repairable(self.out, self._networks):
            self._check_conditions(note, repair=repair)
            nodes, pairs = self._clear_damage(note) if repair else ([], [])
            missing = list({pair.column: pair for pair in (*self._missing(), *pairs)}.values())
            if self.kept is not None:
                wanted = with_parents(
                    node for pair in (self._every_pair() if repair else missing) for node in pair.nodes()
                )
                bring(self._looked_at(), wanted, note if repair else None)
            todo = self._todo(missing, nodes)
            if missing or todo:
                costs = Costs(self.graph)
                # Counting runs a step of each kind of network: what cannot work is said before any is trained.
                for node in with_parents([*todo, *(node for pair in missing for node in pair.nodes())]):
                    costs.training(node)
                self._make(missing, todo, costs, processes, on_network, note, pool)
            self._collect()
        return write_tables(self.out)

    def _make(
        self,
        missing: list[Pair],
        todo: list[Node],
        costs: Costs,
        processes: int | None,
        on_network: Callable[[Progress], None] | None,
        note: Note,
        pool: Pool | None,
    ) -> None:
        """Train, and measure each pair as soon as its networks are there: a call that is told to stop leaves them."""
        shop, waiting, plan = self._shop(), list(missing), self.spec.corruptions

        def measure_what_is_there() -> None:
            for pair in [pair for pair in waiting if all(map(shop.is_done, with_parents(pair.nodes())))]:
                self.records.measure(pair, shop, costs)
                waiting.remove(pair)

        # Corrupted samples are made once for all networks, and those of other machines come in the end.
        on_the_way = measure_what_is_there if plan is None and self.kept is None else None
        if self.kept is not None:
            put(shop, {parent for node in todo for parent in node.parents()} - set(todo))
        try:
            self._train(shop, todo, processes, on_network, note, pool, on_the_way)
        except Stopped:
            if self.records.folder.is_dir():
                self._collect()
            raise
        if self.kept is not None:
            bring(shop, todo)
        extra = on_corrupted(waiting, shop, plan) if plan is not None and waiting else {}
        for pair in waiting:
            self.records.measure(pair, shop, costs, extra.get(pair.column, ()))

    def _clear_damage(self, note: Note) -> tuple[list[Node], list[Pair]]:
        """The networks and pairs that are to be made again."""
        every, shop = self._every_pair(), self._looked_at()
        nodes: list[Node] = []
        pairs: list[Pair] = []
        for node in with_parents(node for pair in every for node in pair.nodes()):
            if damaged := clear_network(shop, node):
                nodes.append(node)
                _tell(damaged, note)
        for pair in every:
            if damaged := clear_pair(self.records.path(pair)):
                pairs.append(pair)
                _tell(damaged, note)
        return nodes, pairs

    def _check_conditions(self, note: Note, *, repair: bool) -> None:
        """Rows and seeds may come and go; under other conditions a table would lose all that it has."""
        if not (self.out / RUNS).exists():
            return
        try:
            before = read_facts(self.out)
        except DamagedFile as damage:
            self._check_keys(damage, repair=repair)
            note(told(self.out / RUNS))
            return
        if other := other_condition(before, self.spec.facts):
            key, there, here = other
            raise InputError(
                f"{self.out} was begun with {key} {there}, and this bench has {here}: use the same, or another --out."
            )

    def _check_sources(self) -> None:
        """Results are gathered from pairs; those that have none, as `--add` leaves them, would be written over."""
        if not (self.out / RUNS).exists() or self.records.folder.is_dir():
            return
        # One that is damaged is told of as such.
        with suppress(DamagedFile):
            read_facts(self.out)
            raise InputError(
                f"{self.out} holds results and no {PAIRS}/ that they come from, and this would write over them: use "
                "another --out, and --add to put both together."
            )

    def _check_keys(self, damage: DamagedFile, *, repair: bool) -> None:
        """Where runs.parquet cannot say the conditions, one pair that was measured under them is enough."""
        there = [pair for pair in self._every_pair() if self.records.path(pair).exists()]
        readable = [pair for pair in there if not (repair and is_broken(self.records.path(pair)))]
        if not there and not repair:
            raise damage
        if readable and not any(map(self.records.is_measured, readable)):
            raise InputError(
                f"{self.out / RUNS} is damaged, and no pair in {self.records.folder} was measured as this bench says: "
                "use the spec that they were measured by, or another --out."
            )

    def _shop(self) -> Shop:
        sets = {name: data.to(self.device) for name, data in self.graph.sets.items()}
        turns = Turns(self.turns)
        return Shop(sets, self.graph.augmentation(), self._networks, self.device, self.kept, turns)

    @property
    def _networks(self) -> Path:
        return (self.networks or self.out / "networks").resolve()

    def _train(
        self,
        shop: Shop,
        todo: list[Node],
        processes: int | None,
        tell: Callable[[Progress], None] | None,
        note: Note,
        pool: Pool | None,
        on_the_way: Callable[[], None] | None,
    ) -> None:
        done = 0

        def one_more(node: Node, seconds: float) -> None:
            nonlocal done
            done += 1
            if tell is not None:
                tell(Progress(node.label, done, len(todo), seconds))
            if on_the_way is not None:
                on_the_way()

        def trouble(node: Node, text: str) -> None:
            note(f"{node.label}: {text}")

        train_all(shop, todo, processes=processes, on_network=one_more, on_trouble=trouble, pool=pool)

    def _missing(self) -> list[Pair]:
        return [pair for pair in self.pairs() if not self.records.is_measured(pair)]

    def _looked_at(self) -> Shop:
        """What is there already; nothing is loaded."""
        return Shop(self.graph.sets, None, self._networks, "cpu", self.kept)

    def _todo(self, pairs: list[Pair], lost: Sequence[Node] = ()) -> list[Node]:
        """Networks that are not there and are wanted: lost, or by a pair, or by another that is not there."""
        folder = self._looked_at()
        wanted: dict[Node, None] = {}

        def want(node: Node) -> None:
            if node not in wanted and not folder.is_done(node) and not (self.kept and is_there(folder, node)):
                for parent in node.parents():
                    want(parent)
                wanted[node] = None

        for node in (*(node for pair in pairs for node in pair.nodes()), *lost):
            want(node)
        return list(wanted)


def _tell(damaged: list[Path], note: Note) -> None:
    for path in damaged:
        note(told(path))
