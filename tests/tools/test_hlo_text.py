"""Where the operations of a compiled program are, read from its text."""

from __future__ import annotations

import pytest

from tools.hlo_text import Place, Program

TEXT = """HloModule m, entry_computation_layout={()->f32[2]{0}}

%cell.1 (a: f32[2,2]) -> f32[2,2] {
  %a = f32[2,2]{1,0} parameter(0)
  ROOT %dot.1 = f32[2,2]{1,0} dot(f32[2,2]{1,0} %a, f32[2,2]{1,0} %a)
}

%one (p: (f32[2,2])) -> (f32[2,2]) {
  %c = f32[2,2]{1,0} call(f32[2,2]{1,0} %x), to_apply=%cell.1
  %c.2 = f32[2,2]{1,0} call(f32[2,2]{1,0} %x), to_apply=%cell.1
  %inner = (f32[2,2]{1,0}) conditional(pred[] %q), true_computation=%cell.1, \
false_computation=%idle
}

%idle (p.1: (f32[2,2])) -> (f32[2,2]) {
  %conv = f32[2,2]{1,0} convolution(f32[2,2]{1,0} %x, f32[2,2]{1,0} %y), dim_labels=b0f
}

%body (s: (s32[])) -> (s32[]) {
  %k = (f32[2,2]{1,0}) conditional(s32[] %i, (f32[2,2]) %t, (f32[2,2]) %t), \
branch_computations={%one, %idle}
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %w = (s32[]) while((s32[]) %t), condition=%cond, body=%body
  %o = f32[2,2]{1,0} custom-call(f32[2,2] %x), custom_call_target="__onednn$matmul"
}
"""


def test_products_are_counted_where_they_are_called():
  places = [place for place, _ in Program(TEXT).products()]
  one, idle = Place(0, 0, 2), Place(0, 1, 2)
  assert places == [one, one, one, one, idle, Place()]


@pytest.mark.parametrize(
  ("line", "number"),
  [
    ("%p = f32[<=8,2]{1,0} parameter(0)", 1),
    ("%s = s32[<=4]{0} set-dimension-size(s32[4] %x, s32[] %n)", 1),
    ("%s = s32[4]{0} set-dimension-size(s32[4] %x, s32[] %n)", 0),
    ('%s = s32[4]{0} custom-call(%x), custom_call_target="PadToStatic"', 1),
  ],
)
def test_dynamic_shapes_are_found(line, number):
  assert Program(TEXT).dynamic() == []
  changed = TEXT.replace("%a = f32[2,2]{1,0} parameter(0)", line)
  assert len(Program(changed).dynamic()) == number


def test_a_text_without_an_entry_is_refused():
  with pytest.raises(ValueError, match="no ENTRY"):
    Program("HloModule m\n")
