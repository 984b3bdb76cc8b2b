"""Decode rate against step rate: whether loading keeps a device busy. One run, on this machine.

    python benchmarks/loading.py                       # what there is here: all cores, a GPU if there is one
    python benchmarks/loading.py --workers 0 2 8 16 --model resnet50 --batch 256 --short 320 --out loading.json

Images are made once: JPEG files of ImageNet's usual size (500 × 375, about 100 KB), smooth with noise, in WebDataset
shards. They are decoded and cut at random to 224 × 224 as in training, by so many worker processes; beside that stands
how many images a second the network takes in plain training steps, on random images that are already there, and last
both at once: the same steps on what the most workers decode meanwhile. With `--short` the same images are packed by
`flipguard shards` to that shorter side, too, and both are measured.
"""

import argparse
import io
import json
import os
import platform
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from flipguard.data import Augmentation, Batches, DataSet, Split, load_data
from flipguard.data.packing import Packing, images_in, pack
from flipguard.methods import NoTreatment
from flipguard.training import ModelSpec, Recipe, Seeds
from flipguard.training.network import begin_network
from flipguard.types import Normalisation


def photograph(rng: np.random.Generator) -> bytes:
    """A JPEG with edges and noise, which takes as many bytes as photographs do."""
    coarse = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).resize(
        (500, 375), Image.Resampling.BICUBIC
    )
    noisy = np.asarray(coarse, np.int16) + rng.integers(-24, 25, (375, 500, 1), dtype=np.int16)
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=88)
    return file.getvalue()


def write_shards(folder: Path, images: int) -> float:
    """Shards of the real format; returns the mean size of an image in bytes."""
    rng, sizes = np.random.default_rng(0), []
    pool = [photograph(rng) for _ in range(64)]
    for part, number in (("train", images), ("val", 64)):
        with tarfile.open(folder / f"made-{part}-000000.tar", "w") as tar:
            for i in range(number):
                content = pool[i % len(pool)]
                sizes.append(len(content))
                for extension, data in (("jpg", content), ("cls", str(i % 1000).encode())):
                    member = tarfile.TarInfo(f"{part}{i:07d}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return float(np.mean(sizes))


def decode_rate(folder: Path, workers: int, batch: int, seconds: float) -> float:
    """Images a second that come out of `workers` processes, the first batch not counted; 0 is this process alone."""
    split = load_data({"name": "webdataset", "workers": workers}, folder=folder).train
    batches = Batches(split, batch, order_seed=0, drop_last=True, augmentation=Augmentation(crop_padding=0))
    rows = [index.tolist() for index in batches.indices()]
    stream = split.x.stream(rows, seed=0)  # type: ignore[union-attr]
    # With workers several batches are there at once when the first is: they are waited for, and not counted.
    for _ in range(1 + 2 * workers):
        next(stream)
    began, done = time.perf_counter(), 0
    for images in stream:
        done += len(images)
        if time.perf_counter() - began > seconds:
            break
    return done / (time.perf_counter() - began)


def core_rate(folder: Path, images: int = 600, seed: int | None = 0) -> float:
    """Images that one core decodes in a second of its own time, whatever else runs on the machine.

    With a seed random parts, scaled by torch, as in training; without one the middle, scaled by Pillow, as models are
    judged.
    """
    split = load_data({"name": "webdataset"}, folder=folder).train
    stream = split.x.stream([range(i, i + 20) for i in range(0, images, 20)], seed=seed)  # type: ignore[union-attr]
    torch.set_num_threads(1)
    began = time.process_time()
    done = sum(len(batch) for batch in stream)
    return done / (time.process_time() - began)


def step_rate(model: str, batch: int, device: str, steps: int) -> float:
    """Images a second in plain training steps, after two that warm up."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (batch * (steps + 2), 3, 224, 224), dtype=torch.uint8, generator=generator)
    split = Split(x, torch.randint(0, 1000, (len(x),), generator=generator), np.arange(len(x)))
    scale = Normalisation((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    data = DataSet("random", split, split, tuple(map(str, range(1000))), "image", scale)
    return _trained(data, model, batch, device, steps)


def fed_rate(folder: Path, workers: int, model: str, batch: int, device: str, steps: int) -> float:
    """The same steps on images that so many workers decode meanwhile; what they had ready before is not counted."""
    data = load_data({"name": "webdataset", "workers": workers}, folder=folder)
    ready = 2 + 2 * workers
    steps = min(steps, len(data.train) // batch - ready)
    if steps < 2:
        raise SystemExit(f"{len(data.train)} images are used up before {workers} workers are at work: more --images.")
    return _trained(data, model, batch, device, steps, Augmentation(crop_padding=0), ready)


def _trained(
    data: DataSet,
    model: str,
    batch: int,
    device: str,
    steps: int,
    augmentation: Augmentation | None = None,
    warm: int = 2,
) -> float:
    bf16 = "bf16" if device != "cpu" else "float32"
    recipe = Recipe(epochs=1, batch_size=batch, precision=bf16, channels_last=True)  # type: ignore[arg-type]
    spec = ModelSpec(model, {"stem": "imagenet"})
    run = begin_network(
        spec,
        data,
        NoTreatment(),
        recipe,
        seeds=Seeds.of(0),
        augmentation=augmentation,
        device=device,
        engine="plain",
    )
    updates = run.updates()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    for _ in range(warm):
        next(updates)
    _wait(device)
    began = time.perf_counter()
    for _ in range(steps - 1):
        next(updates)
    _wait(device)
    return batch * (steps - 1) / (time.perf_counter() - began)


def packed(folder: Path, workers: int, options: Any, device: str) -> dict[str, Any]:
    """The rates on the same images with a shorter side of so many pixels."""
    with tempfile.TemporaryDirectory() as small:
        found = pack(images_in(folder), Path(small), Packing(options.short))
        some = min(600, options.images // 20 * 20)
        return {
            "short": options.short,
            "image_bytes": round(found.bytes / found.images),
            "decoded_per_core_second": round(core_rate(Path(small), some), 1),
            "decoded_per_second": {
                str(workers): round(decode_rate(Path(small), workers, min(options.batch, 64), options.seconds), 1)
            },
            "trained_while_decoding": {
                str(workers): round(
                    fed_rate(Path(small), workers, options.model, options.batch, device, 2 * options.steps), 1
                )
            },
        }


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def main() -> None:
    cores, gpu = len(os.sched_getaffinity(0)), torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=sorted({0, 1, cores}))
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=256 if gpu else 16)
    parser.add_argument("--images", type=int, default=25_000 if gpu else 4_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=30 if gpu else 4)
    parser.add_argument("--short", type=int, help="a shorter side to pack the images to, and measure again")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = "cuda" if gpu else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        size = write_shards(Path(folder), options.images)
        some = min(600, options.images // 20 * 20)
        core, judged = core_rate(Path(folder), some), core_rate(Path(folder), some, seed=None)
        rates = {w: decode_rate(Path(folder), w, min(options.batch, 64), options.seconds) for w in options.workers}
        steps = step_rate(options.model, options.batch, device, options.steps)
        most = max(options.workers)
        fed = fed_rate(Path(folder), most, options.model, options.batch, device, 2 * options.steps)
        small = packed(Path(folder), most, options, device) if options.short else None
    name = torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine()
    figures: dict[str, Any] = {
        "device": name,
        "cores": cores,
        "load_average": os.getloadavg()[0],
        "image_bytes": round(size),
        "decoded_per_core_second": round(core, 1),
        "decoded_by_pillow_alone": round(judged, 1),
        "decoded_per_second": {str(workers): round(rate, 1) for workers, rate in rates.items()},
        "model": options.model,
        "batch": options.batch,
        "trained_per_second": round(steps, 1),
        "trained_while_decoding": {str(most): round(fed, 1)},
    }
    if small is not None:
        figures["packed"] = small
    print(f"{name}, {cores} cores, images of {size / 1000:.0f} KB, load {figures['load_average']:.1f} before the steps")
    print(f"decoded by one core      {core:10.1f} images a second of its own time")
    print(
        f"as models are judged     {judged:10.1f} images a second of its own time, by Pillow alone: {core / judged:.2f}"
    )
    for workers, rate in rates.items():
        print(f"decoded by {workers} workers   {rate:10.1f} images/s   {rate / steps:6.2f} of the step rate")
    print(f"{options.model}, batch {options.batch}     {steps:10.1f} images/s in training steps")
    print(f"fed by {most} workers        {fed:10.1f} images/s   {fed / steps:6.2f} of the step rate")
    if small is not None:
        faster, rate = small["decoded_per_core_second"] / core, small["decoded_per_second"][str(most)]
        again = small["trained_while_decoding"][str(most)]
        print(f"packed to {options.short} pixels     {small['image_bytes'] / 1000:10.0f} KB an image")
        print(f"decoded by one core      {small['decoded_per_core_second']:10.1f}          {faster:6.2f} of the above")
        print(f"decoded by {most} workers   {rate:10.1f} images/s   {rate / steps:6.2f} of the step rate")
        print(f"fed by {most} workers        {again:10.1f} images/s   {again / steps:6.2f} of the step rate")
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
