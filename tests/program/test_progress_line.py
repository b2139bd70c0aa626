import io

import pytest

from tfpipe.program import progress_line, report, terminal
from tfpipe.program.progress_line import ProgressLine, live

VALUES = {"loss": 2.34567, "learning_rate": 0.1, "examples/s": 512.0, "eta": "35 s"}


class Terminal(io.StringIO):
  """What is written to a terminal."""

  def isatty(self) -> bool:
    return True


def open_screen(monkeypatch, term="xterm") -> Terminal:
  """Makes stdout a terminal of 60 columns; in a fixture pytest would undo it."""
  written = Terminal()
  monkeypatch.setattr("sys.stdout", written)
  monkeypatch.setenv("TERM", term)
  monkeypatch.setenv("COLUMNS", "60")
  return written


def test_the_bar_is_as_long_as_what_is_done():
  assert live(0, 200, {}, 80) == "[----------------]   0% step=0/200"
  assert live(99, 200, {}, 80) == "[#######---------]  49% step=99/200"
  assert live(200, 200, {}, 80) == "[################] 100% step=200/200"


def test_what_matters_most_comes_first():
  assert live(1, 2, VALUES, 200) == (
    "[########--------]  50% step=1/2 eta=35 s loss=2.3457 examples/s=512 "
    "learning_rate=0.1"
  )


@pytest.mark.parametrize("width", range(1, 90))
def test_the_line_never_fills_the_width_and_cuts_no_value(width):
  text = live(1, 2, VALUES, width)
  assert len(text) < width
  whole = live(1, 2, VALUES, 200)
  if width > 34:
    assert text.startswith("[########--------]  50% step=1/2")
    parts = text.partition("step=1/2")[2].replace("35 s", "35_s").split()
    assert set(parts) <= set(whole.replace("35 s", "35_s").split())


def test_a_terminal_has_one_line_that_is_drawn_again(monkeypatch):
  screen = open_screen(monkeypatch)
  line = ProgressLine(10)
  line.log(4, {"loss": 2.0}, "9 s")
  line.log(5, {"loss": 1.0}, "5 s")
  report.show("saved it")
  assert screen.getvalue() == (
    "\r\x1b[K[######----------]  40% step=4/10 eta=9 s loss=2\r"
    "\r\x1b[K[########--------]  50% step=5/10 eta=5 s loss=1\r"
    "\r\x1b[Ksaved it\n"
  )


def test_the_last_step_stays_on_a_terminal_as_a_plain_line(monkeypatch):
  screen = open_screen(monkeypatch)
  ProgressLine(10).log(10, {"loss": 2.0}, "0 s")
  assert screen.getvalue() == "\r\x1b[Kstep=10/10 loss=2 eta=0 s\n"


def test_steps_between_are_drawn_but_not_more_often_than_one_can_see(monkeypatch):
  screen = open_screen(monkeypatch)
  now = [100.0]
  monkeypatch.setattr(progress_line.time, "monotonic", lambda: now[0])
  line = ProgressLine(10)
  line.log(1, {"loss": 2.0}, "9 s")
  for step in (2, 3, 4):
    line.step(step)
    now[0] += 0.06
  drawn = [
    part.split("step=")[1][0] for part in screen.getvalue().split("\r\x1b[K")[1:]
  ]
  assert drawn == ["1", "2", "4"]
  assert "step=4/10 eta=9 s loss=2" in screen.getvalue()


@pytest.mark.parametrize("term", ["dumb", ""])
def test_elsewhere_there_are_plain_lines_at_intervals(monkeypatch, term):
  screen = open_screen(monkeypatch, term)  # which cannot go back
  line = ProgressLine(10)
  line.step(3)
  line.log(4, {"loss": 2.0, "param_norm": 1.0, "memory/host": 5.0}, "9 s")
  report.show("saved it")
  assert screen.getvalue() == "step=4/10 loss=2 eta=9 s\nsaved it\n"


def test_a_file_is_no_terminal(monkeypatch):
  monkeypatch.setenv("TERM", "xterm")
  monkeypatch.setattr("sys.stdout", io.StringIO())
  assert not terminal.is_there()
