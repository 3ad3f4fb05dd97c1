"""Attention by name. A variant registers itself; nothing else needs to know it."""

import difflib
import inspect
import json
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from torch import nn

_Attention = TypeVar("_Attention", bound=type[nn.Module])
_ATTENTIONS: dict[str, type[nn.Module]] = {}

# Given by the protocol to every attention alike; the rest of a variant's arguments are its own settings.
_FIRST = 4  # self, dim, num_heads and max_len, given by place
_SHARED = frozenset({"dropout", "bias"})


class UnknownAttention(ValueError):
    """A name that no attention registered, or a setting that the named one does not have."""


def register_attention(name: str) -> Callable[[_Attention], _Attention]:
    """Class decorator that makes an attention available as `name`.

    The class is built as `cls(dim, num_heads, max_len, dropout=..., bias=..., **settings)` and called as
    `(x, padding_mask=None)`; `MultiHeadAttention` provides both, and the face of causal and cross attention, `causal`,
    `remember` and `cross`, which another module may have too. Raises ValueError when the name is taken.
    """

    def decorate(cls: _Attention) -> _Attention:
        if name in _ATTENTIONS:
            raise ValueError(f"attention {name!r} is already registered by {_ATTENTIONS[name].__module__}")
        _ATTENTIONS[name] = cls
        return cls

    return decorate


def list_attentions() -> list[str]:
    """Names of all registered attentions, sorted."""
    return sorted(_ATTENTIONS)


def _lookup(name: str) -> type[nn.Module]:
    if name not in _ATTENTIONS:
        near = difflib.get_close_matches(name, _ATTENTIONS) or list_attentions()
        raise UnknownAttention(f"unknown attention {name!r}; did you mean {' or '.join(map(repr, near))}?")
    return _ATTENTIONS[name]


def attention_module(name: str) -> str:
    """Name of the module that defines attention `name`. Raises UnknownAttention."""
    return _lookup(name).__module__


def attention_settings(name: str) -> type[BaseModel]:
    """The settings that attention `name` takes, with types and defaults, as a pydantic model.

    They are read off the signatures of `__init__` along the class's bases. An argument whose default no record can
    hold, such as a function, is none. Raises UnknownAttention.
    """
    fields: dict[str, Any] = {}
    for cls in _lookup(name).__mro__:
        if "__init__" not in vars(cls):
            continue
        init = vars(cls)["__init__"]
        parameters = inspect.signature(init).parameters.values()
        try:
            hints = get_type_hints(init)
        except NameError:  # a type that is imported for type checkers alone
            hints = {}
        for place, p in enumerate(parameters):
            named = p.kind is p.KEYWORD_ONLY or (p.kind is p.POSITIONAL_OR_KEYWORD and place >= _FIRST)
            if named and p.name not in _SHARED and (p.default is p.empty or _is_json(p.default)):
                default = ... if p.default is p.empty else p.default
                fields.setdefault(p.name, (hints.get(p.name, Any), default))
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    return create_model(f"{name} settings", __config__=config, **fields)


def _is_json(value: object) -> bool:
    """Whether JSON has such a value: it has no infinity either."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def check_settings(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` completed with the defaults of attention `name`; UnknownAttention for a wrong name or value."""
    model = attention_settings(name)
    try:
        return model(**settings).model_dump()
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            message = f"setting {key!r} has no default; give it a value"
        elif first["type"] != "extra_forbidden":
            message = f"{key} = {first['input']!r}: {first['msg'].lower()}"
        elif model.model_fields:
            near = difflib.get_close_matches(key, model.model_fields) or sorted(model.model_fields)
            message = f"no setting {key!r}; did you mean {' or '.join(map(repr, near))}?"
        else:
            message = f"no setting {key!r}; it has none"
        raise UnknownAttention(f"attention {name!r}: {message}") from None


def attention_forms(name: str, settings: dict[str, Any]) -> set[str]:
    """What the attention can be with these settings: `encoder`, `causal`, `cross`. Raises UnknownAttention.

    Of a module that is no `MultiHeadAttention`: as which of its methods it has, `forward`, `causal` and `cross`.
    """
    cls = _lookup(name)
    if hasattr(cls, "forms"):
        return cls.forms(settings)
    methods = {"encoder": cls.forward is not nn.Module.forward, "causal": hasattr(cls, "causal")}
    return {form for form, there in {**methods, "cross": hasattr(cls, "cross")}.items() if there}


def state_grows(name: str) -> bool:
    """Whether the state of the attention's causal form grows with every token. Raises UnknownAttention."""
    return bool(getattr(_lookup(name), "state_grows", False))


def require_forms(name: str, settings: dict[str, Any], *needed: str) -> None:
    """Raise TypeError unless the attention has all the forms `needed` (see `attention_forms`)."""
    missing = [form for form in needed if form not in attention_forms(name, settings)]
    if missing:
        raise TypeError(f"attention {name!r} has no {missing[0]} form")


def build_attention(
    name: str, dim: int, num_heads: int, max_len: int, *, dropout: float = 0.0, bias: bool = True, **settings: Any
) -> nn.Module:
    """A new attention layer, called as `layer(x, padding_mask=mask)`.

    name: a registered attention; dim, num_heads, max_len, dropout, bias: see `MultiHeadAttention`;
    settings: the variant's own. Raises UnknownAttention for a wrong name or setting, ValueError for a bad value.

    >>> build_attention("rfa", dim=64, num_heads=2, max_len=4096, num_features=32)
    """
    settings = check_settings(name, settings)
    return _lookup(name)(dim, num_heads, max_len, dropout=dropout, bias=bias, **settings)
