"""Data sets behind one interface: loading by name, splits, batches, augmentation, corruptions."""

from flipguard.data.augment import Augmentation, measure_normalisation, normalise
from flipguard.data.batches import Batches
from flipguard.data.corruptions import CORRUPTIONS, corrupted
from flipguard.data.dataset import DataSet, Split
from flipguard.data.encoders import Encoder, FileEncoder, WordEncoder, read_encoder
from flipguard.data.files import ImageFiles
from flipguard.data.folders import from_timm, in_memory
from flipguard.data.growth import Growth, class_places, draw_growth, grown
from flipguard.data.load import DATA, data_options, load_data
from flipguard.data.randomness import random_bits, random_normal, random_order, random_uniform
from flipguard.data.resident import ResidentBatches
from flipguard.data.shards import ShardImages
from flipguard.data.splits import split_validation, subset
from flipguard.data.text import encode_text, encoded_by

__all__ = [
    "CORRUPTIONS",
    "DATA",
    "Augmentation",
    "Batches",
    "DataSet",
    "Encoder",
    "FileEncoder",
    "Growth",
    "ImageFiles",
    "ResidentBatches",
    "ShardImages",
    "Split",
    "WordEncoder",
    "class_places",
    "corrupted",
    "data_options",
    "draw_growth",
    "encode_text",
    "encoded_by",
    "from_timm",
    "grown",
    "in_memory",
    "load_data",
    "measure_normalisation",
    "normalise",
    "random_bits",
    "random_normal",
    "random_order",
    "random_uniform",
    "read_encoder",
    "split_validation",
    "subset",
]
