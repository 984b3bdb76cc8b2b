"""What a repository keeps in files: `flipguard.toml` for comparisons, a YAML spec for training."""

from typing import TYPE_CHECKING

from flipguard._lazy import lazily

if TYPE_CHECKING:
    from flipguard.spec.compare import CompareSettings, Settings, Spec, find_config, merge, read_spec
    from flipguard.spec.training import parse_training_spec, read_training_spec, training_schema

_HOME = {
    **dict.fromkeys(
        ("CompareSettings", "Settings", "Spec", "find_config", "merge", "read_spec"), "flipguard.spec.compare"
    ),
    **dict.fromkeys(("parse_training_spec", "read_training_spec", "training_schema"), "flipguard.spec.training"),
}

__all__ = [
    "CompareSettings",
    "Settings",
    "Spec",
    "find_config",
    "merge",
    "parse_training_spec",
    "read_spec",
    "read_training_spec",
    "training_schema",
]

__getattr__ = lazily(__name__, _HOME)
