"""How many copies of a model are served."""

from __future__ import annotations

from dataclasses import dataclass

from scdd.core.errors import OptionError
from scdd.core.options import Count, Options


@dataclass(frozen=True)
class Replicas(Options):
    """Copies of a model behind one address."""

    replicas: Count = 1
    """That there are always."""
    max_replicas: Count | None = None
    """That there may be while there is much to do; None: no more than always."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise OptionError(
                f"max_replicas is {self.max_replicas}, and there are always {self.replicas}: choose more.",
                "max_replicas",
            )

    @property
    def most(self) -> int:
        """That there may be at a time."""
        return self.max_replicas or self.replicas
