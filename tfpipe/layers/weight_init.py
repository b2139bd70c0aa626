"""How a weight starts: named rules, as data (Lingvo's WeightInit)."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence

from tfpipe.lazy import tf


@dataclasses.dataclass(frozen=True)
class WeightInit:
  """A rule (`method`) and its scale; `values` draws a weight from it.

  The values are a pure function of (seed, weight name, shape): the partition of the
  network cannot change them.
  """

  method: str
  scale: float

  @staticmethod
  def Constant(value: float = 0.0) -> WeightInit:
    """Every element is `value`."""
    return WeightInit("constant", value)

  @staticmethod
  def Gaussian(stddev: float = 1.0) -> WeightInit:
    """Normal with mean 0 and the given standard deviation."""
    return WeightInit("gaussian", stddev)

  @staticmethod
  def Uniform(limit: float = 1.0) -> WeightInit:
    """Uniform in [-limit, limit)."""
    return WeightInit("uniform", limit)

  @staticmethod
  def Xavier(scale: float = 1.0) -> WeightInit:
    """Uniform in ±scale·sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, 2010)."""
    return WeightInit("xavier", scale)

  @staticmethod
  def TruncatedGaussianFanOut(factor: float = 2.0) -> WeightInit:
    """Normal cut at two standard deviations, stddev sqrt(1.3·factor / fan_out).

    The 1.3 restores the variance that the cut takes away, as in TF 1's
    variance_scaling_initializer that AmoebaNet was trained with.
    """
    return WeightInit("truncated_gaussian_fan_out", factor)

  def values(self, name: str, shape: Sequence[int], seed: int) -> tf.Tensor:
    """Draws the start value.

    Args:
      name: global name of the weight, e.g. `decoder_3/attention/query/w`.
      shape: its shape.
      seed: the experiment's seed.

    Returns:
      float32 tensor of that shape.
    """
    if self.method == "constant" or 0 in shape:  # nothing has no fans
      return tf.fill(shape, tf.constant(self.scale, tf.float32))
    key = name_key(f"{seed}/{name}")
    pair = tf.constant([key & 0x7FFFFFFF, key >> 32], tf.int64)
    if self.method == "gaussian":
      return self.scale * tf.random.stateless_normal(shape, pair)
    if self.method == "truncated_gaussian_fan_out":
      stddev = math.sqrt(1.3 * self.scale / fans(shape)[1])
      return stddev * tf.random.stateless_truncated_normal(shape, pair)
    limit = self.scale
    if self.method == "xavier":
      limit *= math.sqrt(6.0 / sum(fans(shape)))
    return tf.random.stateless_uniform(shape, pair, -limit, limit)


def fans(shape: Sequence[int]) -> tuple[int, int]:
  """Gives (fan_in, fan_out) of a kernel [..., in, out]; a vector counts as both."""
  if len(shape) < 2:
    size = shape[0] if shape else 1
    return size, size
  window = math.prod(shape[:-2])
  return window * shape[-2], window * shape[-1]


def name_key(name: str) -> int:
  """Hashes a name to 63 bits, the same on every machine and in every run."""
  digest = hashlib.sha256(name.encode()).digest()
  return int.from_bytes(digest[:8], "little") >> 1
