"""The built-in assignors, by the names that Kafka users know."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .assignor import Assignor
from .range import assign_range
from .roundrobin import assign_roundrobin
from .sticky import assign_cooperative_sticky, assign_sticky

BUILT_IN: Mapping[str, Assignor] = MappingProxyType(
    {
        "range": assign_range,
        "roundrobin": assign_roundrobin,
        "sticky": assign_sticky,
        "cooperative-sticky": assign_cooperative_sticky,
    }
)
