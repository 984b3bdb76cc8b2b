"""Members trained side by side are as good as those of the plain loop: accuracy by engine, seed by seed.

    python benchmarks/accuracy.py --folder DATA --engines auto --out results/members_accuracy.json
    python benchmarks/accuracy.py --data digits --model cnn --width 8 --batch-size 64 --engines grouped    # on a CPU

The plain loop trains one network per seed; an engine trains all of them together, with the same seeds. Test accuracy is
compared pair by pair: the mean of the differences, in points, with Student's 95% interval, which is wanted inside of
±0.5. The file is written after every network of the plain loop and every engine; what is there is not trained again.
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from flipguard.checkpoints import load_facts
from flipguard.data import Augmentation, DataSet, load_data
from flipguard.files import whole_file
from flipguard.methods import NoTreatment
from flipguard.statistics import mean_interval
from flipguard.training import ModelSpec, Recipe, Seeds, fit_members, predict_logits, train_network

WITHIN = 0.5
"""Points of accuracy."""


def accuracy(network: nn.Module, data: DataSet, device: str) -> float:
    """In points, on the test part."""
    said = predict_logits(network, data, device=device).argmax(-1)
    return 100 * float((said == data.test.y.cpu().numpy()).mean())


def compared(plain: dict[str, float], others: dict[str, float]) -> dict[str, Any]:
    """The mean difference, engine minus plain, over the seeds that both have, and whether its interval is inside.

    >>> compared({"0": 70.0, "1": 71.0}, {"0": 70.1, "1": 71.3})["mean"]
    0.2
    """
    differences = [others[seed] - plain[seed] for seed in others if seed in plain]
    n, total = len(differences), sum(differences)
    low, high = mean_interval(total, sum(d * d for d in differences), n)
    inside = bool(low >= -WITHIN and high <= WITHIN)
    return {"n": n, "mean": round(total / n, 4), "interval": [float(low), float(high)], "inside": inside}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="cifar100")
    parser.add_argument("--folder", help="where the data is")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--engines", nargs="*", default=["auto"], help="none: the plain loop alone")
    parser.add_argument("--no-plain", action="store_true", help="the engines alone; a later call compares")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=0.4)
    parser.add_argument("--rows", type=int, help="of training, the first so many: a trial")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = device == "cuda"
    data = load_data(given.data, **({"folder": given.folder} if given.folder else {}))
    data = data if given.rows is None else replace(data, train=data.train.select(np.arange(given.rows)))
    images = data.kind == "image"
    model = ModelSpec(given.model, {"width": given.width} if images else {})
    on_gpu = {"precision": "bf16", "channels_last": True} if device == "cuda" else {}
    recipe = Recipe(
        epochs=given.epochs, batch_size=given.batch_size, learning_rate=given.learning_rate, clip_norm=5.0, **on_gpu
    )
    options: dict[str, Any] = {"augmentation": Augmentation() if images else None, "device": device}
    network = f"{given.model} of width {given.width}" if images else given.model
    rows = f"{len(data.train)} rows of {given.data}"
    record: dict[str, Any] = {
        "hardware": torch.cuda.get_device_name(0) if device == "cuda" else "CPU",
        "torch": torch.__version__,
        "what": f"{rows}, {network}, {given.epochs} epochs, batches of {given.batch_size}, rate {given.learning_rate}",
        "plain": {},
        "engines": {},
    }
    if given.out is not None and given.out.exists():
        there = json.loads(given.out.read_text())
        if there["what"] != record["what"] or there["hardware"] != record["hardware"]:
            parser.error(f"{given.out} is about {there['what']} on {there['hardware']}: give another --out.")
        record = there

    def write() -> None:
        if given.out is not None:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(given.out) as beside:
                beside.write_text(json.dumps(record, indent=1))

    seeds = range(given.first, given.first + given.seeds)
    for seed in seeds:
        if str(seed) not in record["plain"] and not given.no_plain:
            network = train_network(model, data, NoTreatment(), recipe, seeds=Seeds.of(seed), engine="plain", **options)
            record["plain"][str(seed)] = accuracy(network, data, device)
            print(f"plain, seed {seed}: {record['plain'][str(seed)]:.2f}", flush=True)
            write()
    for engine in given.engines:
        found = record["engines"].setdefault(engine, {"accuracy": {}})
        missing = [seed for seed in seeds if str(seed) not in found["accuracy"]]
        if missing:
            began = time.perf_counter()
            with tempfile.TemporaryDirectory() as folder:
                members = fit_members(model, data, recipe, missing, engine=engine, folder=folder, **options)
                by = {load_facts(path)["engine"] for path in Path(folder).rglob("member.safetensors")}
            found["accuracy"] |= {
                str(seed): accuracy(m, data, device) for seed, m in zip(missing, members, strict=True)
            }
            took = found.get("seconds", 0.0) + time.perf_counter() - began
            found |= {"trained_by": sorted({*by, *found.get("trained_by", ())}), "seconds": took}
        write()
        if not set(found["accuracy"]) & set(record["plain"]):
            continue
        found["difference"] = compared(record["plain"], found["accuracy"])
        write()
        low, high = found["difference"]["interval"]
        mean, used = found["difference"]["mean"], ", ".join(found["trained_by"])
        print(f"{engine} (by {used}): {mean:+.2f} points [{low:.2f}, {high:.2f}]", flush=True)


if __name__ == "__main__":
    main()
