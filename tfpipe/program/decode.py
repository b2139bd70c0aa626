"""Decoding: a language model continues a text, token by token.

The window of the last T ids goes through the whole network for each token: layers keep
nothing between calls. A token is drawn by a random number that depends on the seed and
its place alone, so the same weights, prompt and options give the same text.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tfpipe.lazy import tf
from tfpipe.params import Params
from tfpipe.pipeline.predictor import Predictor
from tfpipe.program import export
from tfpipe.program.guard import Guard
from tfpipe.program.run import Run

_START = 0
"""The id before the first character of a text, and after its last."""


@dataclasses.dataclass(frozen=True)
class Options:
  """How a text is continued.

  Attributes:
    prompt: what is continued.
    num_tokens: tokens to add; fewer if the text ends before.
    temperature: logits are divided by it; 0 takes the most probable token.
    top_k: tokens to choose from, the most probable ones; 0 for all.
    seed: of the random numbers.
  """

  prompt: str = ""
  num_tokens: int = 200
  temperature: float = 1.0
  top_k: int = 0
  seed: int = 0


def check(params: Params, options: Options) -> None:
  """Refuses what cannot be decoded, and options that cannot be; touches no device.

  Raises:
    ValueError: naming the flag, or what the experiment lacks.
  """
  for flag, least in (("num_tokens", 1), ("top_k", 0), ("seed", 0)):
    value = getattr(options, flag)
    if value < least:
      name = "decode_seed" if flag == "seed" else flag
      raise ValueError(f"--{name}={value}: must be a whole number, at least {least}")
  if not (math.isfinite(options.temperature) and options.temperature >= 0):
    raise ValueError(
      f"--temperature={options.temperature}: must be a finite number, at least 0, "
      "which takes the most probable token"
    )
  for flag, value in (("top_k", options.top_k), ("decode_seed", options.seed)):
    if value and not options.temperature:
      raise ValueError(
        f"--{flag}={value} has no effect with --temperature=0, which takes the most "
        "probable token"
      )
  source = (params.eval_input or params.input).cls
  if not hasattr(source, "encode_text"):
    raise ValueError(
      f"--mode=decode: experiment {params.name} predicts no text: its input, "
      f"{source.__name__}, turns no text into ids (encode_text, decode_ids)"
    )
  source.encode_text(options.prompt, "--prompt")
  export.check(params)


def decode(run: Run, options: Options) -> str:
  """Gives the prompt and what the network adds to it.

  Raises:
    ValueError: the network predicts no tokens from ids alone, or its predictions
      depend on later ids.
    StepError: a layer has failed.
  """
  with Guard(run) as guard, guard.doing("decoding"):
    return _decode(run, options)


def _decode(run: Run, options: Options) -> str:
  network, _ = export.predictor(run, rows=1)
  source: Any = export.source_of(run)
  length = source.params.seq_len
  known = _fields([], length)
  if not {"ids"} <= {*network.fields} <= known.keys():
    raise ValueError(
      f"--mode=decode: the network reads {', '.join(network.fields)}; must be ids, and "
      f"of {', '.join(known)} no others"
    )
  next_logits = _NextLogits(network, length)
  ids = [_START, *map(int, source.encode_text(options.prompt, "--prompt"))]
  next_logits.check_causal(ids)
  added: list[int] = []
  for place in range(options.num_tokens):
    # A task may have more tokens than the input has characters.
    logits = next_logits([*ids, *added])[: source.vocab_size]
    token = draw(logits, options, place)
    if token == _START:
      break
    added.append(token)
  return options.prompt + source.decode_ids(added)


def draw(logits: np.ndarray, options: Options, place: int) -> int:
  """Gives the token at a place.

  Args:
    logits: float32 [tokens].
    options: temperature, top_k and seed are used.
    place: number of the token since the prompt.
  """
  if not options.temperature:
    return int(np.argmax(logits))
  scaled = logits.astype(np.float64) / options.temperature
  # Of equal logits the lower id is the more probable one.
  order = np.argsort(-scaled, kind="stable")[: options.top_k or None]
  weights = np.exp(scaled[order] - scaled[order[0]])
  number = np.random.Generator(np.random.Philox([options.seed, place])).random()
  chosen = np.searchsorted(np.cumsum(weights), number * weights.sum(), side="right")
  return int(order[min(int(chosen), len(order) - 1)])


def _fields(ids: list[int], length: int, fill: int = _START) -> dict[str, np.ndarray]:
  """Gives the batch fields, int32 [1, length], of a row that holds one text."""
  row = ids + [fill] * (length - len(ids))
  fields = {"ids": row, "segment_ids": [1] * length, "positions": range(length)}
  return {name: np.array([values], np.int32) for name, values in fields.items()}


class _NextLogits:
  """Logits of the token after some ids: their last `length` count."""

  def __init__(self, network: Predictor, length: int) -> None:
    self._length = length
    self._names = network.fields
    self._function = tf.function(network.predict, autograph=False)

  def __call__(self, ids: list[int], fill: int = _START) -> np.ndarray:
    window = ids[-self._length :]
    fields = _fields(window, self._length, fill)
    found = self._function({name: fields[name] for name in self._names})
    if "logits" not in found or found["logits"].shape[:2] != (1, self._length):
      raise ValueError(
        "--mode=decode: the last layer's Predict must give logits [batch, time, tokens]"
      )
    return found["logits"][0, len(window) - 1].numpy()

  def check_causal(self, ids: list[int]) -> None:
    """Refuses a network whose predictions see what comes after them."""
    if not np.array_equal(self(ids), self(ids, fill=1)):
      raise ValueError(
        "--mode=decode: the network's predictions depend on later ids; text can be "
        "continued only by one that does not see them"
      )
