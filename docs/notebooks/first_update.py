# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # A first update
#
# A small network on scikit-learn's digits is in production. A larger one is to replace it. How many answers that were
# right will be wrong, and how many fewer can it be?

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flipguard
from flipguard.training import Recipe

torch.set_num_threads(1)
digits = load_digits()
pixels = torch.tensor(digits.data / 16, dtype=torch.float32)
label = torch.tensor(digits.target)
order = torch.randperm(len(label), generator=torch.Generator().manual_seed(0))
train, test = order[:600], order[600:]
seen, held_out = (TensorDataset(pixels[rows], label[rows]) for rows in (train, test))
train_loader = DataLoader(seen, batch_size=50, shuffle=True)
test_loader = DataLoader(held_out, batch_size=200)


def network(hidden, seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


recipe = Recipe(epochs=30, batch_size=50, learning_rate=0.1, clip_norm=5.0)
names = [str(digit) for digit in range(10)]

# %% [markdown]
# ## The model in use, and its successor as usual
# `flipguard.fit` trains a network of yours on a loader of yours; without a treatment it is plain cross-entropy.

# %%
old = flipguard.fit(network(12, seed=0), train_loader, method="none", recipe=recipe)
plain = flipguard.fit(network(96, seed=1), train_loader, method="none", recipe=recipe)


def answers(model, name):
    return flipguard.predict(model, test_loader, classes=names, model=name)


def tell(found):
    rate = found.negative_flip_rate
    print(f"error {float(found.error_rate_old):.2%} → {float(found.error_rate_new):.2%}")
    print(f"{found.negative_flips} of {found.n} were right and are now wrong:")
    print(f"NFR {rate.value:.2%}, 95 % interval {rate.low:.2%} to {rate.high:.2%}")


usual = flipguard.compare(answers(old, "old"), answers(plain, "plain"))
tell(usual)

# %% [markdown]
# ## Held to the old model
# Focal distillation (`fd_lm`) asks the new network for the old one's logits, harder where the old one was right.

# %%
focal = flipguard.fit(
    network(96, seed=1),
    train_loader,
    method="fd_lm",
    options={"strength": 0.1},
    old=old,
    recipe=recipe,
)
targeted = flipguard.compare(answers(old, "old"), answers(focal, "focal"))
tell(targeted)

# %% [markdown]
# ## Held to an ensemble of its own kind
# ELODI needs no old model: each network learns from an ensemble of networks like itself, and what ensembles agree on
# changes little from one to the next. Both versions are treated.


# %%
def treated(hidden, seed):
    starts = [network(hidden, seed=100 * seed + k) for k in range(1, 5)]
    members = [flipguard.fit(start, train_loader, method="none", recipe=recipe) for start in starts]
    student = network(hidden, seed)
    return flipguard.fit(student, train_loader, method="elodi", ensemble=members, recipe=recipe)


elodi_old, elodi_new = treated(12, seed=2), treated(96, seed=3)
elodi = flipguard.compare(answers(elodi_old, "elodi old"), answers(elodi_new, "elodi new"))
tell(elodi)

# %% [markdown]
# ## Side by side
# The bars are the intervals. One seed and 1,197 samples separate little: `flipguard demo` repeats this over six pairs,
# and the tutorial for researchers over as many as you like.

# %%
found = {"none": usual, "fd_lm": targeted, "elodi": elodi}
rates = [each.negative_flip_rate for each in found.values()]
reach = [[rate.value - rate.low for rate in rates], [rate.high - rate.value for rate in rates]]
figure, axes = plt.subplots(figsize=(6, 2.6))
middle = [100 * rate.value for rate in rates]
axes.errorbar(middle, list(found), xerr=100 * np.array(reach), fmt="o", capsize=4)
axes.set_xlabel("negative flip rate, % (95 % interval)")
axes.set_xlim(left=0)
axes.invert_yaxis()
figure.tight_layout()

# %% [markdown]
# ## Would it be released?
# The gate wants to be shown that the rate is below the limit: the upper end of the interval decides.

# %%
for name, new in {"none": plain, "fd_lm": focal}.items():
    judged = flipguard.compare(answers(old, "old"), answers(new, name), gate={"max_nfr": 0.01})
    print(f"{name}: {'passes' if judged.gate.passed else 'refused'}")
    print(f"  {judged.gate.rules[0].reason}")
