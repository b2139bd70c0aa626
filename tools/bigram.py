"""What a language model must beat: a bigram model of the shipped plays.

  python -m tools.bigram

prints the perplexity per character on the held-out play. The counts of the training
plays are smoothed by a prior; its weight and shape are the best of a small sweep on the
held-out play itself, so the figure favours the bigram model.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from absl import app

from tfpipe.input import embedded
from tfpipe.input.text_input import ALPHABET, NO_CHARACTER, VOCAB_SIZE, encode
from tfpipe.program import streams

PRIOR_WEIGHTS = (1, 3, 10, 30, 100, 300)
UNIFORM_SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)


def pairs(texts: Mapping[str, str]) -> np.ndarray:
  """Counts (character, next character), int64 [VOCAB_SIZE, VOCAB_SIZE].

  The first character of a text follows id 0, as in `CharTextInput`.
  """
  counts = np.zeros((VOCAB_SIZE, VOCAB_SIZE), np.int64)
  for name, text in texts.items():
    ids = np.concatenate([[NO_CHARACTER], encode(text, name)])
    np.add.at(counts, (ids[:-1], ids[1:]), 1)
  return counts


def perplexity(
  train: np.ndarray, test: np.ndarray, weight: float, uniform: float
) -> float:
  """Gives exp of the mean negative log-likelihood per character.

  p(b | a) = (count(a, b) + w q(b)) / (count(a) + w),
  q(b) = (1 - u) count(b) / count + u / V. Add-one smoothing is w = V, u = 1.

  Args:
    train: counts to learn from, as `pairs` gives them.
    test: counts to predict.
    weight: w > 0, how many characters the prior q is worth.
    uniform: u in (0, 1], the uniform share of the prior; V is the size of the alphabet.
  """
  prior = (1 - uniform) * train.sum(axis=0) / train.sum() + uniform / len(ALPHABET)
  p = (train + weight * prior) / (train.sum(axis=1, keepdims=True) + weight)
  return float(np.exp(-(test * np.log(p)).sum() / test.sum()))


def best(train: np.ndarray, test: np.ndarray) -> tuple[float, float, float]:
  """Gives (perplexity, weight, uniform share) of the best prior of the sweep."""
  priors = itertools.product(PRIOR_WEIGHTS, UNIFORM_SHARES)
  return min((perplexity(train, test, w, u), w, u) for w, u in priors)


def main(argv: Sequence[str]) -> None:
  """Prints the figure."""
  if len(argv) > 1:
    raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}")
  train, test = (pairs(embedded.shakespeare(split)) for split in ("train", "test"))
  value, weight, uniform = best(train, test)
  print(
    f"bigram perplexity per character on {', '.join(embedded.PLAYS['test'])}: "
    f"{value:.2f} ({np.log2(value):.3f} bits, {np.log(value):.3f} nats), trained on "
    f"{', '.join(embedded.PLAYS['train'])}, prior of weight {weight} and uniform share "
    f"{uniform}"
  )


if __name__ == "__main__":
  streams.outlive_readers()
  app.run(main)
