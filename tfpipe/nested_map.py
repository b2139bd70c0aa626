"""NestedMap: a dict whose keys are attributes, nested freely with lists and tuples.

Weights, batches and the tensors between cells travel as NestedMaps. It stays a plain
dict to TensorFlow: `tf.nest` flattens it in sorted key order and rebuilds it, as any
subclass of dict, from pairs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tfpipe import spelling

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DROP = object()


class NestedMap(dict[str, Any]):
  """A dict with attribute access and operations on all its leaves.

  Keys are identifiers that are not methods of NestedMap. Dicts, lists and tuples are
  walked, all else (None included) is a leaf. Dicts are walked in sorted key order, so
  that two maps with the same keys flatten alike. Lingvo takes a tuple for a leaf; here
  it is walked, for cells hand on tuples of tensors.
  """

  def __init__(self, *args: Any, **kwargs: Any) -> None:
    super().__init__()
    self.update(*args, **kwargs)

  def __setitem__(self, key: str, value: Any) -> None:
    if not isinstance(key, str):
      raise TypeError(f"a key of a NestedMap is a str; got {key!r}")
    if not _NAME.fullmatch(key):
      raise ValueError(f"{key!r} is not an identifier, so no key of a NestedMap")
    if hasattr(NestedMap, key):
      raise ValueError(f"{key!r} is a reserved name: a method of NestedMap")
    super().__setitem__(key, value)

  def __getattr__(self, name: str) -> Any:
    if name not in self:
      # Python and TensorFlow probe for dunder names by the thousand: no hint for these.
      raise AttributeError(name if name.startswith("__") else self._unknown(name))
    return self[name]

  def __setattr__(self, name: str, value: Any) -> None:
    self[name] = value

  def __delattr__(self, name: str) -> None:
    if name not in self:
      raise AttributeError(self._unknown(name))
    del self[name]

  def __dir__(self) -> list[str]:
    return [*super().__dir__(), *self]

  def _unknown(self, name: str) -> str:
    return f"NestedMap has no key {name!r}{spelling.nearest_or_all(name, self)}"

  # dict's own versions of these go around __setitem__ or return a plain dict.

  def update(self, *args: Any, **kwargs: Any) -> None:
    """Sets many keys, as `dict.update`; every key is checked."""
    for key, value in dict(*args, **kwargs).items():
      self[key] = value

  def setdefault(self, key: str, default: Any = None) -> Any:
    """Gives the value of `key`, setting it to `default` first if it is missing."""
    if key not in self:
      self[key] = default
    return self[key]

  def copy(self) -> NestedMap:
    """Copies the top level."""
    return NestedMap(self)

  def __or__(self, other: Mapping[str, Any]) -> NestedMap:  # pyright: ignore[reportIncompatibleMethodOverride]
    result = self.copy()
    result.update(other)
    return result

  def __ior__(self, other: Any) -> NestedMap:  # pyright: ignore[reportIncompatibleMethodOverride]
    self.update(other)
    return self

  # Access by path.

  def GetItem(self, path: str) -> Any:
    """Gives the value at a path such as `a.b[0].c`.

    Raises:
      KeyError: a key of the path is missing.
      IndexError: an index of the path is out of range.
      TypeError: the path goes on below a leaf, or indexes a list by a name.
    """
    value: Any = self
    for step in spelling.split_path(path):
      value = _child(value, step, path)
    return value

  def Get(self, path: str, default: Any = None) -> Any:
    """Gives the value at a path, or `default` if there is none."""
    return self.GetItem(path) if self.Has(path) else default

  def Has(self, path: str) -> bool:
    """Tells whether there is a value (None counts as one) at a path."""
    try:
      self.GetItem(path)
    except (LookupError, TypeError):
      return False
    return True

  def GetSlice(self, paths: Iterable[str]) -> NestedMap:
    """Makes a map of the values at some paths, at the same paths; leaves are shared.

    Items of a list must be taken from its first on, for a list has no gaps. A tuple of
    which only items are taken becomes a list.

    Raises:
      LookupError: a path leads nowhere, or an item before it is not among the paths.
      TypeError: a path goes on below a leaf.
    """
    values = {path: self.GetItem(path) for path in paths}

    def place(path: str) -> list[tuple[bool, str | int]]:
      return [(isinstance(step, str), step) for step in spelling.split_path(path)]

    result = NestedMap()
    # A set of paths has no order, but the items of a list must come first to last.
    for path in sorted(values, key=place):
      result.Set(path, _copy(values[path]))
    return result

  def Set(self, path: str, value: Any) -> None:
    """Sets the value at a path, making the maps and lists on its way.

    An index equal to the length of a list appends to it.

    Raises:
      IndexError: an index is beyond the end of its list.
      TypeError: the path goes through a leaf or a tuple.
    """
    steps = spelling.split_path(path)
    container: Any = self
    depth = 0
    while depth < len(steps) - 1 and _has(container, steps[depth]):
      container = container[steps[depth]]
      depth += 1
    _assign(container, steps[depth], _grow(steps[depth + 1 :], value, path), path)

  # All leaves.

  def FlattenItems(self) -> list[tuple[str, Any]]:
    """Lists (path, leaf) pairs in the order of `Flatten`."""
    items: list[tuple[str, Any]] = []
    _map(lambda path, leaf: items.append((path, leaf)), self)
    return items

  def Flatten(self) -> list[Any]:
    """Lists the leaves: dicts by sorted key, lists and tuples in order."""
    return [leaf for _, leaf in self.FlattenItems()]

  def Pack(self, values: Iterable[Any]) -> NestedMap:
    """Makes a map of this structure with `values` as leaves, in `Flatten`'s order.

    Raises:
      ValueError: there are more or fewer values than leaves.
    """
    values = list(values)
    num_leaves = len(self.Flatten())
    if len(values) != num_leaves:
      raise ValueError(f"{num_leaves} leaves cannot take {len(values)} values")
    rest = iter(values)
    return self.Transform(lambda _: next(rest))

  def Transform(self, fn: Callable[[Any], Any]) -> NestedMap:
    """Makes a map of this structure with `fn(leaf)` in place of every leaf."""
    return self.TransformWithKey(lambda _, leaf: fn(leaf))

  def TransformWithKey(self, fn: Callable[[str, Any], Any]) -> NestedMap:
    """Makes a map of this structure with `fn(path, leaf)` in place of every leaf."""
    return _map(fn, self)

  def Filter(self, fn: Callable[[Any], bool]) -> NestedMap:
    """Keeps the leaves for which `fn(leaf)` holds; see `FilterKeyVal`."""
    return self.FilterKeyVal(lambda _, leaf: fn(leaf))

  def FilterKeyVal(self, fn: Callable[[str, Any], bool]) -> NestedMap:
    """Keeps the leaves for which `fn(path, leaf)` holds.

    Maps, lists and tuples that lose all their leaves are dropped too. What remains of a
    list or tuple closes ranks.
    """
    kept = _map(lambda path, leaf: leaf if fn(path, leaf) else _DROP, self)
    return NestedMap() if kept is _DROP else kept

  def IsCompatible(self, other: NestedMap) -> bool:
    """Tells whether both have one structure, so `a.Pack(b.Flatten()) == b`."""
    return self.Transform(lambda _: None) == NestedMap(other).Transform(lambda _: None)

  def Update(self, other: Mapping[str, Any]) -> NestedMap:
    """Merges another map into this one, in place; leaves are shared.

    A dict that meets a dict is merged, key by key; all else is replaced. Lingvo merges
    lists as well, item by item; here the list of `other` replaces the one it meets.

    Returns:
      self
    """
    _merge(self, other)
    return self

  def Union(self, other: Mapping[str, Any]) -> NestedMap:
    """Makes a map of this one with another merged into it; see `Update`."""
    return self.DeepCopy().Update(other)

  def DeepCopy(self) -> NestedMap:
    """Copies the structure and shares the leaves.

    `copy.deepcopy` copies both, as of any dict; Lingvo's shares the leaves.
    """
    return _copy(self)

  # Conversions.

  @staticmethod
  def FromNestedDict(nest: Any) -> Any:
    """Turns every dict in nested dicts, lists and tuples into a NestedMap."""
    return _convert(nest, NestedMap)

  def ToNestedDict(self) -> dict[str, Any]:
    """Turns every map in it into a plain dict."""
    return _convert(self, dict)

  def DebugString(self) -> str:
    """Lists the leaves, one a line: path and value, or an array's dtype and shape."""
    items = self.FlattenItems()
    width = max((len(path) for path, _ in items), default=0)
    return "\n".join(f"{path:{width}}  {_shown(leaf)}" for path, leaf in items)


def _shown(leaf: Any) -> str:
  if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
    return f"{getattr(leaf.dtype, 'name', leaf.dtype)} {tuple(leaf.shape)}"
  return repr(leaf)


def _has(container: Any, step: str | int) -> bool:
  """Tells whether a dict has a key or a sequence an index."""
  if isinstance(container, dict):
    return step in container
  if isinstance(container, (list, tuple)) and isinstance(step, int):
    return -len(container) <= step < len(container)
  return False


def _child(container: Any, step: str | int, path: str) -> Any:
  """Gives `container[step]`, or says which step of `path` cannot be made and why."""
  if _has(container, step):
    return container[step]
  if isinstance(container, dict):
    names = [key for key in container if isinstance(key, str)]
    hint = spelling.nearest_or_all(str(step), names)
    raise KeyError(f"{path}: there is no key {step!r}{hint}")
  if isinstance(container, (list, tuple)) and isinstance(step, int):
    raise IndexError(f"{path}: [{step}] is outside a list of {len(container)} items")
  kind = type(container).__name__
  raise TypeError(f"{path}: {step!r} cannot be looked up in a value of type {kind}")


def _assign(container: Any, step: str | int, value: Any, path: str) -> None:
  """Sets or appends one item of a dict or list on the way of `NestedMap.Set`."""
  if isinstance(container, dict):
    container[step] = value
  elif not isinstance(container, list) or not isinstance(step, int):
    kind = type(container).__name__
    raise TypeError(f"{path}: {step!r} cannot be set in a value of type {kind}")
  elif step == len(container):
    container.append(value)
  elif _has(container, step):
    container[step] = value
  else:
    raise IndexError(f"{path}: [{step}] is beyond a list of {len(container)} items")


def _grow(steps: tuple[str | int, ...], value: Any, path: str) -> Any:
  """Wraps a value in the new maps and lists that lead to it."""
  for step in reversed(steps):
    if isinstance(step, str):
      value = NestedMap({step: value})
    elif step == 0:
      value = [value]
    else:
      raise IndexError(f"{path}: [{step}] is beyond a list of 0 items")
  return value


def _rebuild(like: Any, items: list[Any]) -> Any:
  """Makes a list, tuple or named tuple of the type of `like`."""
  return like._make(items) if hasattr(like, "_make") else type(like)(items)


def _map(fn: Callable[[str, Any], Any], nest: Any, path: str = "") -> Any:
  """Replaces every leaf by `fn(path, leaf)`; `_DROP` removes it."""
  if isinstance(nest, dict):
    new: dict[Any, Any] = {}
    for key in sorted(nest):
      named = isinstance(key, str) and _NAME.fullmatch(key)
      at = spelling.join_path(path, key) if named else f"{path}[{key!r}]"
      new[key] = _map(fn, nest[key], at)
    kept = [(key, new[key]) for key in nest if new[key] is not _DROP]
    return _DROP if nest and not kept else type(nest)(kept)
  if isinstance(nest, (list, tuple)):
    mapped = [_map(fn, item, f"{path}[{i}]") for i, item in enumerate(nest)]
    kept = [item for item in mapped if item is not _DROP]
    return _DROP if nest and not kept else _rebuild(nest, kept)
  return fn(path, nest)


def _copy(nest: Any) -> Any:
  """Copies dicts, lists and tuples and shares the leaves."""
  return _map(lambda _, leaf: leaf, nest)


def _merge(target: dict[Any, Any], source: Mapping[Any, Any]) -> None:
  for key, value in source.items():
    if isinstance(target.get(key), dict) and isinstance(value, Mapping):
      _merge(target[key], value)
    else:
      target[key] = _copy(value)


def _convert(nest: Any, kind: type[dict[str, Any]]) -> Any:
  if isinstance(nest, dict):
    return kind((key, _convert(value, kind)) for key, value in nest.items())
  if isinstance(nest, (list, tuple)):
    return _rebuild(nest, [_convert(item, kind) for item in nest])
  return nest
