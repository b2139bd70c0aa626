"""What all synthetic inputs share: a chosen number of examples, and their noise."""

from __future__ import annotations

import numpy as np

from tfpipe.checks import check_choice, check_count
from tfpipe.input.base import Input
from tfpipe.params import InstantiableParams

SPLITS = ("train", "test")


class SyntheticInput(Input):
  """An input of `num_examples` examples a split that are functions of the seed."""

  @classmethod
  def Params(cls) -> InstantiableParams:
    """Gives the Params of a synthetic input."""
    p = super().Params()
    p.Define("num_examples", 1024, "Examples of each split.")
    return p

  def __init__(self, params: InstantiableParams) -> None:
    super().__init__(params)
    check_choice(self, params, "split", SPLITS)
    check_count(self, params, "num_examples", 1)

  @property
  def num_examples(self) -> int:
    """Examples of the split."""
    return self.params.num_examples

  def _random(self) -> np.random.Generator:
    """Gives the random numbers of the split, the same at each call."""
    p = self.params
    return np.random.Generator(np.random.Philox(key=[p.seed, SPLITS.index(p.split)]))
