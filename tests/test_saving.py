"""The Params of saving: what is allowed, and what is refused by name."""

import math
import re

import pytest

from tfpipe import model, saving
from tfpipe.saving import Best


def make(**values):
  return model.TrainParams().Set(**values)


def check(**values):
  saving.check(make(**values), evaluates=True)


def test_the_defaults_are_allowed_with_and_without_an_evaluation():
  for evaluates in (True, False):
    saving.check(make(), evaluates=evaluates)


@pytest.mark.parametrize("key", ["save_interval_minutes", "keep_every_hours"])
def test_times_are_numbers_from_0_on(key):
  for value in (0, 0.0, 0.5, 24):
    check(**{key: value})
  for value in (-1, -0.1, math.nan, math.inf, True, None, "1", (1,)):
    message = re.escape(f"train.{key}={value!r}: must be a number, at least 0")
    with pytest.raises(ValueError, match=f"^{message}$"):
      check(**{key: value})


@pytest.mark.parametrize(
  ("text", "best"),
  [
    ("", None),
    ("loss", Best("loss", more=False)),
    ("perplexity", Best("perplexity", more=False)),
    ("log_perplexity", Best("log_perplexity", more=False)),
    ("accuracy", Best("accuracy", more=True)),
    ("accuracy_top5", Best("accuracy_top5", more=True)),
    ("max:f1", Best("f1", more=True)),
    ("min:max:x", Best("max:x", more=False)),
  ],
)
def test_best_is_more_or_less_of_a_metric(text, best):
  check(keep_best=text)
  assert saving.best(make(keep_best=text)) == best


@pytest.mark.parametrize(
  ("value", "hint"),
  [
    ("acuracy", r"; did you mean 'accuracy'\?"),
    ("max:", ""),
    ("f1", ""),
    (None, ""),
    (1, ""),
    (("loss",), ".*"),
  ],
)
def test_a_metric_of_unknown_direction_is_refused(value, hint):
  start = re.escape(
    f"train.keep_best={value!r}: must be empty, a metric as max:NAME or"
  )
  with pytest.raises(ValueError, match=f"^{start} .*accuracy_top5{hint}$"):
    check(keep_best=value)


def test_a_best_one_needs_an_evaluation():
  with pytest.raises(
    ValueError, match=r"^train.keep_best='loss': must be '', for there"
  ):
    saving.check(make(keep_best="loss"), evaluates=False)


def test_the_metric_must_be_one_of_the_model():
  for text in ("", "loss", "perplexity", "min:log_perplexity"):
    saving.check_metric(make(keep_best=text), ["loss", "log_perplexity"])
  for text, hint in (("max:los", r"; did you mean 'loss'\?"), ("perplexity", "")):
    message = rf"^train.keep_best='{text}': .* metrics, accuracy, loss{hint}$"
    with pytest.raises(ValueError, match=message):
      saving.check_metric(make(keep_best=text), ["loss", "accuracy"])


@pytest.mark.parametrize("more", [True, False])
def test_better_is_strict_and_anything_is_better_than_nan(more):
  best = Best("x", more)
  assert best.is_better(2.0, 1.0) == more
  assert best.is_better(1.0, 2.0) != more
  assert not best.is_better(1.0, 1.0)
  assert best.is_better(1.0, math.nan)
  assert not best.is_better(math.nan, 1.0)
  assert not best.is_better(math.nan, math.nan)


@pytest.mark.parametrize("value", [None, 1, ("a",)])
def test_a_warm_start_is_a_name(value):
  with pytest.raises(
    ValueError, match=r"^train.warm_start=.*: must be the name of a f"
  ):
    check(warm_start=value)


def test_rules_without_a_warm_start_have_no_effect_and_are_refused():
  check(warm_start_rules=[[".*", ""]])
  with pytest.raises(
    ValueError, match=r"rules=\(\('a', ''\),\): must be .* no effect$"
  ):
    check(warm_start_rules=(("a", ""),))
  check(warm_start="a", warm_start_rules=(("a", ""),))


@pytest.mark.parametrize(
  ("value", "message"),
  [
    ((), r"must hold at least one pair \(pattern, name\)$"),
    (None, "must hold at least one pair"),
    ("ab", "must hold at least one pair"),
    (("ab",), r"'ab' must be a pair of texts \(pattern, name\)$"),
    ((("a",),), r"\('a',\) must be a pair of texts"),
    ((("a", "b", "c"),), r"\('a', 'b', 'c'\) must be a pair of texts"),
    ((("a", None),), r"\('a', None\) must be a pair of texts"),
    ((("a(", ""),), r"'a\(' must be a regular expression: missing \), unterminated"),
    ((("(a)", r"\2"),), r"'\\\\2' must be a name, .* of '\(a\)': invalid group ref"),
    ((("(a)", "\1"),), r"'\\x01' must be a name, without control char.* two backsl"),
    ((("a", r"\g<x>"),), r".*'a': unknown group name 'x'$"),
  ],
)
def test_rules_are_pairs_of_a_pattern_and_a_name(value, message):
  start = re.escape(f"train.warm_start_rules={value!r}: ")
  with pytest.raises(ValueError, match=f"^{start}{message}"):
    check(warm_start="a", warm_start_rules=value)
