"""Exchanges of TPU cores in StableHLO that TensorFlow for CPUs has made.

It has no kernel for them on a CPU. So the program is built with a call of a name of its
own for each, which is then written over with the operation it stands for.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from tfpipe.lazy import tf
from tfpipe.spmd.collectives import Groups, Pairs

_CALL = re.compile(
  r"(?P<result>%\w+) = stablehlo\.custom_call @tfpipe_(?P<kind>\w+)"
  r"\((?P<value>[^)]*)\) "
  r'\{[^\n]*?backend_config = "(?P<whom>[^"]*)"[^\n]*?\} : '
  r"(?P<type>\(tensor<[^>]*>\) -> tensor<(?:\d+x)*(?P<dtype>\w+)>)"
)
_HEAD = re.compile(r"^ *func\.func (?:public )?@main\(.*$", re.MULTILINE)


class Marked:
  """Exchanges as calls that `exchanging` finds again."""

  def permute(self, value: tf.Tensor, pairs: Pairs) -> tf.Tensor:
    """Stands for `CollectivePermute`."""
    return _call("permute", value, pairs)

  def sum(self, value: tf.Tensor, groups: Groups) -> tf.Tensor:
    """Stands for `CrossReplicaSum`."""
    return _call("sum", value, groups)


def _call(kind: str, value: tf.Tensor, whom: Sequence[Sequence[int]]) -> tf.Tensor:
  # The one way to a custom call; it has no public name.
  from tensorflow.compiler.tf2xla.ops import gen_xla_ops

  found: Any = gen_xla_ops.xla_custom_call_v2(
    [value],
    call_target_name=f"tfpipe_{kind}",
    backend_config=str([list(members) for members in whom]),
    has_side_effect=False,
    result_dtypes=[value.dtype],
    result_shapes=[value.shape],
  )
  return found[0]


def exchanging(text: str) -> str:
  """Puts the exchanges where their marks are.

  Raises:
    ValueError: a mark is left that could not be read.
  """
  text = _CALL.sub(_exchange, text)
  if "@tfpipe_" in text:
    line = next(line for line in text.splitlines() if "@tfpipe_" in line)
    raise ValueError(f"an exchange was not understood: {line.strip()[:200]}")
  return text


def _exchange(call: re.Match) -> str:
  whom = ast.literal_eval(call["whom"])
  numbers = f"dense<{whom}> : tensor<{len(whom)}x{len(whom[0])}xi64>"
  # Without a channel the numbers are those of replicas, as TensorFlow means them.
  if call["kind"] == "permute":
    return (
      f'{call["result"]} = "stablehlo.collective_permute"({call["value"]}) '
      f"<{{source_target_pairs = {numbers}}}> : {call['type']}"
    )
  scalar = f"tensor<{call['dtype']}>"
  return (
    f'{call["result"]} = "stablehlo.all_reduce"({call["value"]}) '
    f"<{{replica_groups = {numbers}}}> ({{\n"
    f"^bb0(%tfpipe_a: {scalar}, %tfpipe_b: {scalar}):\n"
    f"  %tfpipe_c = stablehlo.add %tfpipe_a, %tfpipe_b : {scalar}\n"
    f"  stablehlo.return %tfpipe_c : {scalar}\n"
    f"}}) : {call['type']}"
  )


def in_place(text: str, first: int, count: int) -> str:
  """Has results take the place of arguments, as variables that are assigned to.

  Args:
    text: of a module.
    first: number of the first argument that result 0 replaces.
    count: how many results do so.

  Raises:
    ValueError: there are not so many arguments.
  """
  head = _HEAD.search(text)
  found = head[0] if head else ""
  for result in range(count):
    found, done = re.subn(
      rf"(%arg{first + result}: tensor<[^>]*>)(?! \{{)",
      rf"\1 {{tf.aliasing_output = {result} : i32}}",
      found,
    )
    if done != 1:
      raise ValueError(f"the program has no argument {first + result}")
  return text.replace(head[0], found, 1) if head else text
