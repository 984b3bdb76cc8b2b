"""Fine-tune a text classifier with transformers' Trainer, held to the one in use.

    python examples/transformers_update.py

The networks are tiny, their weights are random and nothing is downloaded: put your own model, tokeniser and rows in
their place. Flips against the old model's prediction file are among the metrics of every evaluation.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from flipguard import Predictions
from flipguard.integrations.transformers import FlipTrainer, flip_metrics

KINDS = {
    "billing": "bill refund charge invoice price",
    "access": "login password locked account code",
    "delivery": "parcel late courier address lost",
}
WORDS = ["<pad>", *" ".join(KINDS.values()).split(), "my", "the", "is", "please", "help"]
LENGTH = 8


def requests(seed: int, number: int) -> list[dict[str, Any]]:
    """Short requests: two words of their kind and one of another's, among words that say nothing."""
    random, rows = np.random.default_rng(seed), []
    kinds = [words.split() for words in KINDS.values()]
    for label in random.integers(0, len(kinds), number):
        others = [word for place, kind in enumerate(kinds) if place != label for word in kind]
        words = [*random.choice(kinds[label], 2), random.choice(others), *random.choice(WORDS[-5:], 3)]
        codes = [WORDS.index(word) for word in random.permutation(words)]
        rest = LENGTH - len(codes)
        rows.append(
            {"input_ids": codes + [0] * rest, "attention_mask": [1] * len(codes) + [0] * rest, "labels": int(label)}
        )
    return rows


def network(width: int) -> Any:
    torch.manual_seed(width)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=LENGTH,
        num_labels=len(KINDS),
    )
    return transformers.BertForSequenceClassification(config)


def main() -> None:
    train, held, ids = requests(0, 200), requests(1, 500), [f"request {i}" for i in range(500)]
    label = [row["labels"] for row in held]
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "old.parquet"

        def trained(width: int, **options: Any) -> FlipTrainer:
            arguments = transformers.TrainingArguments(
                output_dir=folder,
                max_steps=100,
                per_device_train_batch_size=20,
                per_device_eval_batch_size=100,
                learning_rate=0.01,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
                dataloader_pin_memory=False,
                log_level="error",
            )
            trainer = FlipTrainer(network(width), arguments, train_dataset=train, eval_dataset=held, **options)
            trainer.train()
            return trainer

        old = trained(12)
        logits = old.predict(held).predictions
        Predictions.from_arrays(id=ids, label=label, logits=logits, classes=list(KINDS)).write(said)
        metrics = flip_metrics(said, ids, classes=list(KINDS))
        for method in ("none", "kd"):
            found = trained(24, method=method, old=old.release(), compute_metrics=metrics).evaluate()
            print(
                f"{method}: error {found['eval_error_rate_new']:.1%} (was {found['eval_error_rate_old']:.1%}), "
                f"negative flip rate {found['eval_negative_flip_rate']:.2%}"
            )


if __name__ == "__main__":
    main()
