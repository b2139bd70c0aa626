"""Params: a tree of named, documented values, from which the program is built.

Lingvo's `hyperparams.Params`: a key exists only after `Define`, so that a misspelled
setting is an error with the right spelling in it, and never a setting without effect.
"""

from __future__ import annotations

import copy
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tfpipe import params_text, params_tree, spelling, value_text
from tfpipe.params_copy import CopyFieldsSubsetTo, CopyFieldsTo
from tfpipe.params_tree import Field

if TYPE_CHECKING:
  from typing_extensions import Self

__all__ = ["CopyFieldsSubsetTo", "CopyFieldsTo", "InstantiableParams", "Params"]

_NAME = re.compile(r"[a-z_][a-z0-9_]*")


class Params(params_tree.Node):
  """A set of named parameters, read and written as attributes.

  Values may be None, bool, int, float, str, enums, classes, functions, other Params,
  and lists, tuples and dicts of these. Others can be held but have no text form.
  A *path* leads to a nested value: `train.max_steps`, `layers[1].dim`, `rates['a']`.
  An unknown name is an AttributeError that names the path, the level at which it fails
  and the nearest known name there.
  """

  _fields: dict[str, Field]
  _immutable: bool

  def __init__(self) -> None:
    object.__setattr__(self, "_fields", {})
    object.__setattr__(self, "_immutable", False)

  def Define(self, name: str, default: Any, description: str) -> None:
    """Adds a parameter.

    Args:
      name: lower-case letters, digits and underscores, not starting with a digit.
      default: the first value. A Params among it is held, not copied.
      description: what the parameter means, for `Describe`.

    Raises:
      ValueError: `name` has another form or is taken by Python.
      AttributeError: there is such a parameter already.
      TypeError: the name or description is no str, or this Params is immutable.
    """
    self._check_mutable(f"define {name!r}")
    if not isinstance(name, str) or not isinstance(description, str):
      raise TypeError(f"name and description are str; got {name!r}, {description!r}")
    if not _NAME.fullmatch(name):
      raise ValueError(f"the name of a parameter matches {_NAME.pattern}; got {name!r}")
    if name in self.__dict__ or hasattr(type(self), name):
      raise ValueError(f"{name!r} is a reserved name")
    if name in self:
      raise AttributeError(f"parameter {name!r} is already defined")
    # The default is kept apart: a list changed in place must not change it.
    self._fields[name] = Field(name, default, copy.deepcopy(default), description)

  def __getattr__(self, name: str) -> Any:
    if name == "_fields":  # pickle asks for attributes before there are fields
      raise AttributeError(name)
    if name not in self:
      raise AttributeError(params_tree.unknown(self, name, ""))
    return self._fields[name].value

  def __setattr__(self, name: str, value: Any) -> None:
    self._check_mutable(f"set {name!r}")
    if name not in self:
      raise AttributeError(params_tree.unknown(self, name, ""))
    self._fields[name] = self._fields[name]._replace(value=value)

  def __contains__(self, name: object) -> bool:
    return name in self._fields

  def __len__(self) -> int:
    return len(self._fields)

  def __dir__(self) -> list[str]:
    return list(self._fields)

  def __eq__(self, other: object) -> bool:
    if not isinstance(other, Params):
      return NotImplemented
    return dict(self.IterParams()) == dict(other.IterParams())

  __hash__ = None  # pyright: ignore[reportAssignmentType]  # mutable

  def __repr__(self) -> str:
    lines = [f"{name}: {value!r}\n" for name, value in sorted(self.IterParams())]
    return "{\n" + textwrap.indent("".join(lines), "  ") + "}" if lines else "{}"

  def __deepcopy__(self, memo: dict[int, Any]) -> Self:
    result = type(self).__new__(type(self))
    memo[id(self)] = result
    fields = {
      name: field._replace(value=copy.deepcopy(field.value, memo))
      for name, field in self._fields.items()
    }
    object.__setattr__(result, "_fields", fields)
    object.__setattr__(result, "_immutable", self._immutable)
    return result

  def Copy(self) -> Self:
    """Copies all values deeply; defaults and the frozen state stay as they are."""
    return copy.deepcopy(self)

  def Set(self, /, **values: Any) -> Self:
    """Sets parameters by name, or by path as in `Set(**{'train.max_steps': 60})`.

    All paths are checked before the first value is set.

    Returns:
      self

    Raises:
      AttributeError: a path leads nowhere.
      TypeError: this Params, or the nested one that would change, is immutable.
    """
    self._check_mutable(f"set {', '.join(values)}")
    for path in values:
      self.Get(path)
      owner, _ = params_tree.descend(self, spelling.split_path(path)[:-1], path)
      owner._check_mutable(f"set {path!r}")
    for path, value in values.items():
      self._set(spelling.split_path(path), value, path)
    return self

  def _set(self, steps: tuple[str | int, ...], value: Any, path: str) -> None:
    _, container = params_tree.descend(self, steps[:-1], path)
    if isinstance(container, Params):
      setattr(container, str(steps[-1]), value)
    elif isinstance(container, tuple):
      items = list(container)
      items[int(steps[-1])] = value
      self._set(steps[:-1], getattr(container, "_make", tuple)(items), path)
    else:
      container[steps[-1]] = value

  def Get(self, path: str) -> Any:
    """Gives the value at a path.

    Raises:
      AttributeError: the path leads nowhere.
    """
    return params_tree.descend(self, spelling.split_path(path), path)[1]

  def GetDefault(self, path: str) -> Any:
    """Gives a copy of the value with which the parameter at a path was defined.

    Raises:
      AttributeError: the path leads nowhere, or to an item of a list or dict.
    """
    owner, name = self._parameter(path)
    return copy.deepcopy(owner._fields[name].default)

  def _container(self, path: str) -> tuple[Any, Any]:
    """Gives the Params, list or dict that holds the end of a path, and its key."""
    self.Get(path)
    *parent, last = spelling.split_path(path)
    return params_tree.descend(self, tuple(parent), path)[1], last

  def _parameter(self, path: str) -> tuple[Params, str]:
    """Gives the Params that holds the end of a path, and its name there."""
    owner, name = self._container(path)
    if not isinstance(owner, Params):
      raise AttributeError(f"{path} is an item of a list or dict, not a parameter")
    return owner, name

  def Delete(self, *paths: str) -> Self:
    """Removes parameters by name or path.

    All paths are checked before the first parameter is removed.

    Returns:
      self

    Raises:
      AttributeError: a path does not lead to a parameter.
      TypeError: this Params, or the one that holds the parameter, is immutable.
    """
    self._check_mutable(f"delete {', '.join(paths)}")
    found = [self._parameter(path) for path in paths]
    for path, (owner, _) in zip(paths, found, strict=True):
      owner._check_mutable(f"delete {path!r}")
    for owner, name in found:
      owner._fields.pop(name, None)
    return self

  def ParamIsSet(self, path: str) -> bool:
    """Tells whether the value at a path is other than None."""
    return self.Get(path) is not None

  def GetKeys(self) -> list[str]:
    """Lists the names of this level in the order of their definition."""
    return list(self._fields)

  def IterParams(self) -> Iterator[tuple[str, Any]]:
    """Iterates over (name, value) of this level in the order of their definition."""
    for name, field in self._fields.items():
      yield name, field.value

  def IterFields(self) -> Iterator[Field]:
    """Iterates over the parameters of this level with default and description."""
    return iter(self._fields.values())

  def Freeze(self) -> None:
    """Makes this level immutable for good, copies included; nested Params are not."""
    object.__setattr__(self, "_immutable", True)

  def IsImmutable(self) -> bool:
    """Tells whether this level is frozen."""
    return self._immutable

  def MergeCommonKeysFrom(self, other: Params) -> Self:
    """Copies the values of the keys that both have, `cls` excepted.

    Returns:
      self
    """
    CopyFieldsTo(other, self, ignore_unknown_keys=True)
    return self

  def Visit(
    self,
    visit_fn: Callable[[str, Any], Any],
    enter_fn: Callable[[str, Any], bool] | None = None,
    exit_fn: Callable[[str, Any], Any] | None = None,
  ) -> None:
    """Calls `visit_fn(path, value)` for every value that has nothing below it.

    Params, lists, tuples and dicts are walked. Paths are `a.b`, `a[0]`, `a['k']`, and
    `''` for this Params itself.

    Args:
      visit_fn: is called for every leaf.
      enter_fn: is called before the items of a walked value; False skips it whole.
      exit_fn: is called after the items of a walked value.
    """
    enter_fn = enter_fn or (lambda path, value: True)
    exit_fn = exit_fn or (lambda path, value: None)
    params_tree.visit("", self, visit_fn, enter_fn, exit_fn)

  def ToText(self, changed_only: bool = False) -> str:
    """Writes all values as `key : value` lines, sorted, with dotted keys.

    A class or function is written as `type/module/Name`, an enum as
    `enum/module/Class.MEMBER`.

    Args:
      changed_only: leave out what has the value of its `Define`.

    Raises:
      TypeError: a value has no text from which it could be read back.
    """
    return params_text.write(self, changed_only)

  def ToTextWithTypes(self) -> str:
    """Writes the text of `ToText`, a blank line, and `key : type` lines, sorted.

    Over this text any Params with the same keys becomes equal, whatever the types of
    the values that it had.

    Raises:
      TypeError: a value has no text from which it could be read back.
    """
    return f"{self.ToText()}\n{params_text.write_types(self)}"

  def Describe(self) -> str:
    """Writes every dotted key with its value, default (if changed) and description."""
    return params_text.describe(self)

  def TextDiff(self, other: Params) -> str:
    """Lists the differences: `>` of this one, `<` of the other, `?` before nested ones.

    Lists and tuples are compared item by item, dicts by key. Equal Params give ''.
    """
    return "".join(f"{line}\n" for line in params_text.diff(self, other))

  def FromText(
    self, text: str, type_overrides: Mapping[str, str] | None = None
  ) -> Self:
    """Sets values from the text form: nothing if one of its lines is wrong.

    Blank lines and lines that begin with `#` are skipped. The rules for a value are
    those of `SetFromText`.

    Args:
      text: lines `key : value`.
      type_overrides: by key, the name of the type that a value has whatever it was
        before: `NoneType`, `bool`, `int`, `float`, `str`, `list`, `tuple`, `dict`, or
        the type of what a `type/...` or `enum/...` refers to.

    Returns:
      self

    Raises:
      AttributeError: a key is unknown.
      ValueError: a line or a value has the wrong form, or a type is given for a key
        that the text does not set.
      TypeError: this Params is immutable.
    """
    entries, types = params_text.read(text), type_overrides or {}
    for path in types:
      if path not in entries:
        hint = spelling.nearest_or_all(path, entries)
        raise ValueError(f"{path} has a type, but the text does not set it{hint}")
    return self.Set(
      **{path: self._parse(path, raw, types.get(path)) for path, raw in entries.items()}
    )

  def FromTextWithTypes(self, text: str) -> Self:
    """Sets values from the text of `ToTextWithTypes`, each to the type given there.

    Returns:
      self

    Raises:
      AttributeError: a key is unknown.
      ValueError: a line, a value or a type has the wrong form, or types are missing.
      TypeError: this Params is immutable.
    """
    return self.FromText(*params_text.split_types(text))

  def SetFromText(self, path: str, text: str) -> Self:
    """Sets one value from text, as `--set path=text` does.

    The type is that of the current value, or of the default if that is None. bool takes
    true/false, yes/no, on/off, 1/0 in any case. int takes an int literal. float takes
    ints too, infinity only as `inf`. str takes the text as it is, or quoted. A list or
    tuple takes a literal of either kind and keeps its own; if its items have one type
    the new ones must have it. A class or function takes `type/module/Name`, an enum the
    name of its member. `None` is taken where the value or default is None. Where both
    are None the text may be any literal; what is no literal is a string, so `true` is
    the string, `True` the bool.

    Returns:
      self

    Raises:
      AttributeError: the path leads nowhere.
      ValueError: the text is no value of the right type.
      TypeError: this Params is immutable.
    """
    return self.Set(**{path: self._parse(path, text)})

  def _parse(self, path: str, text: str, kind: str | None = None) -> Any:
    current = self.Get(path)
    if kind is not None:
      return value_text.parse_as(text, kind, path)
    owner, name = self._container(path)
    default = owner._fields[name].default if isinstance(owner, Params) else current
    if isinstance(current, Params) and (default is not None or text.strip() != "None"):
      keys = ", ".join(current.GetKeys())
      raise ValueError(f"{path} is a Params; set one of its keys: {keys}; got {text!r}")
    return value_text.parse(text, current, default, path)

  def _check_mutable(self, what: str) -> None:
    if self._immutable:
      raise TypeError(f"This Params instance is immutable: cannot {what}")


class InstantiableParams(Params):
  """Params of a class, from which `Instantiate` builds an object."""

  def __init__(self, cls: Callable[..., Any]) -> None:
    super().__init__()
    self.Define("cls", cls, "What Instantiate calls with these Params.")

  def Instantiate(self, **kwargs: Any) -> Any:
    """Calls `cls(self, **kwargs)`.

    The message of whatever that raises gets the class, and the `name` of these Params
    if they have one, at its end; nested calls thus name the way from the inside out.

    Raises:
      TypeError: `cls` is not callable.
    """
    if not callable(self.cls):
      raise TypeError(f"cls is {self.cls!r}, so there is nothing to instantiate")
    try:
      return self.cls(self, **kwargs)
    except Exception as error:
      place = getattr(self.cls, "__qualname__", repr(self.cls))
      if "name" in self and self.name:
        place = f"{place} {self.name!r}"
      if error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} (building {place})", *error.args[1:])
      raise
