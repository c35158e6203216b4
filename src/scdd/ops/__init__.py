"""Everything that touches V-wide rows in a hot path. Each op has a reference and an `impl=` switch."""

from scdd.ops.elbo import elbo
from scdd.ops.filters import NO_FILTERS, Filters
from scdd.ops.head import HeadStats, head_stats
from scdd.ops.redraw import Draw, redraw
from scdd.ops.top import Top, top

__all__ = ["NO_FILTERS", "Draw", "Filters", "HeadStats", "Top", "elbo", "head_stats", "redraw", "top"]
