"""How runs go on, shown in a notebook: one bar that fills, without any package beside the notebook's own."""

from __future__ import annotations

import math
import sys
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

from ..core.tables import escape_html
from .progress import Meter, Reporter, clock
from .round_loop import Progress as Round


def reporting(reporter: Reporter | None) -> AbstractContextManager[Reporter]:
    """What receives how runs go on: what the user gave, who also closes it; else a bar in a notebook, and nothing
    elsewhere."""
    if reporter is not None:
        return nullcontext(reporter)
    return NotebookBar() if in_notebook() else Reporter()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class NotebookBar(Reporter):
    """A bar below the cell, with the run that went on last and the time left; it goes away at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.handle: Any = None
        self.label, self.meter = "", Meter(0)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Take the bar away."""
        if self.handle is not None:
            self.handle.update(make_html(""))

    def start(self, label: str, rounds: int, done: int = 0) -> None:
        """Show the bar with this run."""
        super().start(label, rounds, done)
        self.label, self.meter = label, self.meters[label]
        self.show()

    def step(self, label: str, round: Round) -> None:
        """Move the bar."""
        super().step(label, round)
        self.label, self.meter = label, self.meters[label]
        self.show()

    def show(self) -> None:
        """Draw the bar as it is now."""
        several = self.runs > 1
        done, total = (self.rounds_done, self.rounds) if several else (max(0, self.meter.done), self.meter.rounds)
        count = f"{self.runs_done}/{self.runs} runs" if several else f"{done}/{total} rounds"
        left = "" if math.isnan(self.left) else f"  {clock(self.left)} left"
        text = escape_html(f"{self.label}  {count}  {self.meter.facts()}{left}")
        bar = make_html(f'<progress value="{done}" max="{max(1, total)}"></progress> <code>{text}</code>')
        if self.handle is None:
            from IPython.display import display

            self.handle = display(bar, display_id=True)
        else:
            self.handle.update(bar)


def make_html(text: str) -> Any:
    """A page's text as an object that notebooks show."""
    from IPython.display import HTML

    return HTML(text)
