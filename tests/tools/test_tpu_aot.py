"""What goes to libtpu's compiler, and what is made of its answer."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.tools.test_tpu_check import flags_of, run, subject
from tools import tpu_aot, tpu_compiler, tpu_exchanges, tpu_memory, tpu_plan
from tools.tpu_plan import CoreBytes

MIB = 2**20
MARKED = (
  "    %12 = stablehlo.custom_call @tfpipe_{kind}(%11#0) {{api_version = 3 : i32, "
  'backend_config = "{whom}", operand_layouts = [dense<0> : tensor<1xindex>], '
  "result_layouts = [dense<0> : tensor<1xindex>]}} : (tensor<8xf32>) -> "
  "tensor<8xf32> loc(#loc7)"
)


def test_a_marked_permutation_becomes_one():
  text = MARKED.format(kind="permute", whom="[[0, 1], [1, 2]]")
  assert tpu_exchanges.exchanging(text) == (
    '    %12 = "stablehlo.collective_permute"(%11#0) <{source_target_pairs = '
    "dense<[[0, 1], [1, 2]]> : tensor<2x2xi64>}> : (tensor<8xf32>) -> tensor<8xf32> "
    "loc(#loc7)"
  )


def test_a_marked_sum_becomes_one_over_its_groups():
  found = tpu_exchanges.exchanging(MARKED.format(kind="sum", whom="[[0, 2], [1, 3]]"))
  first, *_, last = found.splitlines()
  assert first.endswith(
    "<{replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>}> ({"
  )
  assert "stablehlo.add" in found
  assert last == "}) : (tensor<8xf32>) -> tensor<8xf32> loc(#loc7)"


def test_a_mark_that_is_not_understood_is_refused():
  with pytest.raises(ValueError, match=r"not understood: .*@tfpipe_sum"):
    tpu_exchanges.exchanging("  %1, %2 = stablehlo.custom_call @tfpipe_sum(%0) {}")


def test_results_take_the_place_of_the_main_functions_arguments_alone():
  text = (
    "  func.func private @f(%arg0: tensor<2xf32>, %arg1: tensor<f32>) {\n"
    '  func.func @main(%arg0: tensor<i32> loc("x"), %arg1: tensor<2xf32> loc("x")) {\n'
  )
  private, main = tpu_exchanges.in_place(text, 1, 1).splitlines()
  assert "aliasing" not in private
  assert "%arg1: tensor<2xf32> {tf.aliasing_output = 0 : i32} loc" in main
  with pytest.raises(ValueError, match="no argument 2"):
    tpu_exchanges.in_place(text, 1, 2)


REPORT = """Memory Space: default (color=0)
Total bytes: 7340032 (7.00MiB)
  cumulative_size;       size;       offset; used_by_n_values; shapes_list
  ------------------------------------------------------------
    4.00MiB( 57%);    4.00MiB;            0;                3; f32[8,16384], pred[4]
    6.00MiB( 86%);    2.00MiB;      4194304;                1; bf16[64,16384]
    7.00MiB(100%);    1.00MiB;      6291456;                1; ()

Memory Space: vmem (color=1)
Total bytes: 1024 (1.0KiB)
  ------------------------------------------------------------
    1.0KiB(100%);     1.0KiB;            0;                1; f32[256]
"""


def test_the_compilers_report_is_read():
  memory = tpu_memory.read(REPORT)
  assert memory.total == 7 * MIB
  # 8·16384 numbers of 4 bytes in 4 MiB are 1/8 of it; 64·16384 of 2 are all of 2 MiB.
  assert memory.tiling == pytest.approx((4 + 2) / (0.5 + 2))
  assert memory.largest == ((4 * MIB, "f32[8,16384]"), (2 * MIB, "bf16[64,16384]"))


ASSIGNED = """BufferAssignment:
allocation 0: size 4194304, parameter 1, shape |f32[1048576]| at ShapeIndex {}:
 value: <2 x @0> (size=4194304,offset=0): f32[1048576]{0:T(1024)}
 value: <9 y @0> (size=4194304,offset=0): f32[1048576]{0:T(1024)}
allocation 1: size 8388608, color 1, preallocated-temp:
 value: <3 fast @0> (size=8388608,offset=0): f32[2097152]{0:T(1024)S(1)}
allocation 2: size 4096, thread-local:
 value: <4 t @0> (size=4096,offset=0): f32[1024]{0:T(1024)}
allocation 3: size 6324224, preallocated-temp:
 value: <5 a @0> (size=2097152,offset=0): f32[524288]{0:T(1024)}
 value: <6 b{0} (phi) @1> (size=2097152,offset=1048576): f32[524288]{0:T(1024)}
 value: <7 tuple{} @0> (size=512,offset=3145728): (f32[], f32[])
 value: <8 c @0> (size=1048576,offset=5275648): f32[262144]{0:T(1024)}
"""


def test_arrays_are_counted_where_they_lie_once_and_small_values_are_not():
  # 4 MiB; from 0 to 3 MiB, for two of 2 MiB overlap by one, and 1 MiB.
  assert tpu_memory.arrays(ASSIGNED) == (4 + 3 + 1) * MIB


def test_a_report_without_that_memory_is_refused():
  with pytest.raises(ValueError, match="nothing of the memory 'default'"):
    tpu_memory.read(REPORT.replace("default", "other"))


@pytest.fixture(scope="module")
def planned(tf):
  return subject(2)


@pytest.fixture
def program(planned):
  return planned.program()


def test_the_program_has_the_exchanges_of_cores_and_updates_in_place(program):
  text = tpu_aot.stablehlo(program)
  assert text.count("stablehlo.collective_permute") >= 2
  assert "stablehlo.all_reduce" in text
  assert "custom_call @tfpipe" not in text
  # Weights, fixed, slots and three counters.
  assert len(re.findall("tf.aliasing_output", text)) == 6


def test_the_programs_of_single_stages_are_together_that_of_all(program):
  whole, *single = (tpu_aot.stablehlo(program, cell) for cell in (-1, 0, 1))
  products = [text.count("stablehlo.dot_general") for text in single]
  assert all(products)
  assert sum(products) == whole.count("stablehlo.dot_general")
  assert all("stablehlo.collective_permute" in text for text in single)


def test_a_core_needs_what_the_vectors_and_their_copies_need(planned, program):
  network = program.network
  weights, slots = network.weights.size * 4, program.layouts["slots"].size * 4
  batch = 3 * 8 * 8 * 4  # Tokens, labels and weights: 8 rows of 8 numbers.
  border = 4 * 8 * 8 * 4  # A micro-batch of 4 rows of 8 vectors of 8 numbers.
  # The second stage keeps its input: as it is used, and as a vector.
  first, second = (row.recomputed for row in planned.plan.stages)
  inside = max(first, second + 2 * border)
  # Two micro-batches are kept; one is sent and one received, each way.
  ticks = 3 * weights + 2 * border + 4 * border + inside
  state = weights + slots + 4 * network.fixed.size + batch
  most = state + max(ticks, 2 * weights + slots)
  # A core's own memory has room for all but sums and what is kept.
  least = state + weights + 2 * border
  assert tpu_plan.core_bytes(planned.plan, program) == CoreBytes(least, most)


def test_of_a_large_program_its_own_memory_holds_a_little(
  monkeypatch, planned, program
):
  whole = tpu_plan.core_bytes(planned.plan, program)
  monkeypatch.setattr(tpu_plan, "ON_CORE", 100)
  few = tpu_plan.core_bytes(planned.plan, program)
  assert few == CoreBytes(whole.most - 100, whole.most)


def answer(**changes):
  whole = {
    "device": "TPU v5 lite",
    "secs": 1.0,
    "total": 100 * MIB,
    "arrays": 90 * MIB,
    "tiling": 1.0,
    "largest": [[50 * MIB, "f32[8]"]],
    "code_bytes": MIB,
    "flops": 1e9,
    "exchanges": {"all-reduce": 1, "collective-permute": 2},
  }
  return whole | changes


def judged(planned, made, least=90 * MIB, most=90 * MIB):
  chips = tpu_aot.topology("v5e:2x2", 2)
  return tpu_aot.judged(planned, chips, -1, made, CoreBytes(least, most))


@pytest.mark.parametrize(
  ("least", "most", "said"),
  [
    (102.6, 110, "90.0 MiB; planned 110.0 MiB, or down to 102.6 MiB .*: [+]14.0% off"),
    (70, 77.4, "arrays take 90.0 MiB; planned 77.4 MiB, .*: -14.0% off"),
    (10, 200, "planned 200.0 MiB, or down to 10.0 MiB .*: [+]0.0% off"),
  ],
)
def test_what_is_as_planned_passes(planned, least, most, said):
  found = judged(planned, answer(), int(least * MIB), int(most * MIB))
  assert not found.wrong
  assert any(re.search(said, line) for line in found.lines)
  assert "small values, up to 16 KiB each, take 10.0 MiB" in found.lines
  assert any(
    "needs 101.0 MiB of 16.0 GiB, 1.0 MiB of it code" in x for x in found.lines
  )


@pytest.mark.parametrize(
  ("made", "least", "most", "said"),
  [
    ({}, 105, 120, r"arrays take 90.0 MiB; .*: \+16.7% off, at most 15%"),
    ({}, 60, 75, r"arrays take 90.0 MiB; .*: -16.7% off"),
    ({"total": 16 * 1024 * MIB}, 90, 90, "needs 16.0 GiB of 16.0 GiB"),
    ({"exchanges": {"all-reduce": 1}}, 90, 90, "exchanges: 1 all-reduce"),
  ],
)
def test_what_is_not_as_planned_or_does_not_fit_is_wrong(
  planned, made, least, most, said
):
  (wrong,) = judged(planned, answer(**made), least * MIB, most * MIB).wrong
  assert re.search(said, wrong)


@pytest.mark.parametrize(
  ("message", "num_bytes"),
  [
    (
      "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
      "temporaries (24.25G) exceeds available HBM (15.75G).",
      24.25 * 2**30,
    ),
    (
      "RESOURCE_EXHAUSTED: XLA:TPU compile error. Ran out of memory in memory "
      "space hbm. Used 20.50G of 15.75G hbm. Exceeded hbm capacity by 4.75G.",
      20.5 * 2**30,
    ),
  ],
)
def test_what_is_too_large_says_how_large_it_is(message, num_bytes):
  assert tpu_compiler.needed(message) == num_bytes


def test_what_the_compiler_says_else_is_handed_on():
  with pytest.raises(ValueError, match="UNIMPLEMENTED: no"):
    tpu_compiler.needed("UNIMPLEMENTED: no")


def test_what_the_compiler_could_not_fit_is_wrong(planned):
  # Of 16 GiB a program may have 15.75.
  total = int(15.9 * 1024 * MIB)
  made = {"device": "TPU v5 lite", "secs": 1.0, "total": total}
  (wrong,) = judged(planned, made).wrong
  assert "needs 15.9 GiB of 16.0 GiB" in wrong


@pytest.mark.parametrize(
  ("name", "said"),
  [
    ("v5ee:2x2", "must begin with one of v4, v5e, v5p, v6e, .* did you mean 'v5e'"),
    ("v5e", "chips of v5e lie in 2 directions: must be like v5e:2x2"),
    ("v5e:2x2x1", "lie in 2 directions"),
    ("v5p:2x2", "chips of v5p lie in 3 directions: must be like v5p:2x2x2"),
    ("v5e:0x2", "lie in 2 directions"),
    ("v5e:2x1", "has 2 cores, and 3 are needed"),
  ],
)
def test_a_topology_that_cannot_be_is_refused(name, said):
  with pytest.raises(ValueError, match=said):
    tpu_aot.topology(name, 3)


@pytest.mark.parametrize(
  ("arguments", "said"),
  [
    (["--stage=aot", "--topology=v5e:1x1"], "has 1 cores, and 2 are needed"),
    (["--stage=aot", "--cell=2"], "--cell=2: must be one of 0 to 1"),
    (["--stage=hlo", "--cell=1"], "--cell has no effect with --stage=hlo"),
    (["--stage=hlo", "--topology=v5e:2x2"], "--topology has no effect with"),
  ],
)
def test_flags_that_cannot_be_are_refused(arguments, said):
  ended = run(*flags_of(2, 2), *arguments)
  assert isinstance(ended, str)
  assert said in ended


@pytest.mark.skipif(
  any(not importlib.util.find_spec(name) for name in ("jax", "libtpu")),
  reason="jax and libtpu are not installed: pip install -e '.[tpu-check]'",
)
def test_libtpu_compiles_the_program(tf, capsys):
  assert run(*flags_of(2, 2), "--stage=aot", "--topology=v5e:2x2") == 0
  text = capsys.readouterr().out
  assert "compiled the step for 2 of 4 cores TPU v5 lite" in text
  assert re.search(r"^  exchanges: \d+ all-reduce, \d+ collective-permute", text, re.M)
