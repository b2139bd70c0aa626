"""The bigram model that a language model must beat."""

import numpy as np
import pytest

from tools import bigram


def test_the_bigram_model_of_a_text_that_repeats_two_letters_is_nearly_sure():
  counts = bigram.pairs({"text": "ab" * 500})
  # A prior of weight 1 leaves the right letter 499 / 500 and more.
  assert 1.0 < bigram.best(counts, counts)[0] < 1.01


def test_add_one_smoothing_is_one_of_the_priors():
  train, test = bigram.pairs({"text": "aab"}), bigram.pairs({"text": "ac"})
  # p(a | start) = (1 + 1) / (1 + 96), p(c | a) = (0 + 1) / (2 + 96).
  expected = (2 / 97 * 1 / 98) ** -0.5
  assert bigram.perplexity(train, test, 96, 1.0) == pytest.approx(expected)


def test_the_bigram_probabilities_sum_to_one():
  train = bigram.pairs({"text": "some text\n"})
  total = 0.0
  for b in range(1, 97):
    test = np.zeros_like(train)
    test[5, b] = 1
    total += 1 / bigram.perplexity(train, test, 3, 0.1)
  assert total == pytest.approx(1)


def test_the_command_prints_the_published_figure(capsys):
  bigram.main(["bigram"])
  assert "perplexity per character on macbeth: 13.58 (" in capsys.readouterr().out
