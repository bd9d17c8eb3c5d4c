"""Finds plug-ins: each module of a package that ends in `PLUGIN = ...`, named as its file.

Called by the wiring, never at import. A duplicate, nameless or misnamed plug-in stops the start with both places named.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from core.errors import GreylagError


def load_plugins(package: str) -> dict[str, Any]:
    """All plug-ins of `package` by name, sorted. Raises GreylagError for a misnamed plug-in."""
    found: dict[str, Any] = {}
    root = importlib.import_module(package)
    for info in sorted(pkgutil.iter_modules(root.__path__), key=lambda i: i.name):
        module = importlib.import_module(f"{package}.{info.name}")
        plugin = getattr(module, "PLUGIN", None)
        if plugin is None:
            continue  # a shared helper, no plug-in
        name = getattr(plugin, "name", None)
        if name != info.name:
            raise GreylagError(f"{package}/{info.name}.py: its PLUGIN is named {name!r}, it must be named as its file")
        found[name] = plugin
    return found
