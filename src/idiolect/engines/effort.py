"""How much work local training is: gradients of the model and the forward passes beside them, counted where they
happen."""

from __future__ import annotations

from typing import NamedTuple

from ..contract import ClientContext


class Effort(NamedTuple):
    """Gradients of the model on a batch, and forward passes that no gradient was taken of; those of a method's extra
    networks are not counted.

    >>> Effort(3, 1).plus(Effort(2)), Effort(3, 1).since(Effort(1))
    (Effort(gradients=5, passes=1), Effort(gradients=2, passes=1))
    """

    gradients: int = 0
    passes: int = 0

    def plus(self, other: Effort) -> Effort:
        """Both together."""
        return Effort(self.gradients + other.gradients, self.passes + other.passes)

    def since(self, before: Effort) -> Effort:
        """What came after `before`."""
        return Effort(self.gradients - before.gradients, self.passes - before.passes)


NO_EFFORT = Effort()


def read_effort(ctx: ClientContext) -> Effort:
    """All that the model of a context has done so far; two readings make an effort, by `since`."""
    return Effort(ctx.gradients.taken, ctx.task.net.passes - ctx.gradients.passes)
