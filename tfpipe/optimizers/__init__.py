"""Optimizers, learning-rate schedules and the learner that applies them.

Importing this package doesn't import TensorFlow: a plan needs the sizes of slots only.
"""

from tfpipe.optimizers.adafactor import Adafactor
from tfpipe.optimizers.adam import Adam, AdamW
from tfpipe.optimizers.base import Optimizer, SlotSpec
from tfpipe.optimizers.learner import Learner
from tfpipe.optimizers.learning_rate import (
  Constant,
  Cosine,
  Exponential,
  LearningRateSchedule,
  LinearWarmup,
  PiecewiseConstant,
  Transformer,
)
from tfpipe.optimizers.rmsprop import RMSProp
from tfpipe.optimizers.sgd import SGD, Momentum

__all__ = [
  "SGD",
  "Adafactor",
  "Adam",
  "AdamW",
  "Constant",
  "Cosine",
  "Exponential",
  "Learner",
  "LearningRateSchedule",
  "LinearWarmup",
  "Momentum",
  "Optimizer",
  "PiecewiseConstant",
  "RMSProp",
  "SlotSpec",
  "Transformer",
]
