"""What a chart shows, before it is drawn: for the page as SVG, for a paper by matplotlib."""

from collections.abc import Sequence
from dataclasses import dataclass

from flatnce.report.charts import Axis, Cloud, Line, Reference, line_chart, scatter_chart
from flatnce.report.page import Figure, Table

__all__ = ["Curves", "Scattered"]


@dataclass(frozen=True)
class Curves:
    """A line chart or a histogram.

    Arguments:
        name: Of the chart on its page; letters, digits and hyphens.
        title: A few words.
        caption: What to look for.
        description: What the chart shows, for those who do not see it.
        lines: The curves.
        x: Horizontal axis.
        y: Vertical axis.
        table: The numbers drawn.
        references: Horizontal lines.
    """

    name: str
    title: str
    caption: str
    description: str
    lines: Sequence[Line]
    x: Axis
    y: Axis
    table: Table
    references: Sequence[Reference] = ()

    def figure(self) -> Figure:
        """The chart for a page."""
        svg = line_chart(
            f"chart-{self.name}",
            self.title,
            self.description,
            self.lines,
            self.x,
            self.y,
            self.references,
        )
        return Figure(self.title, svg, self.caption, self.table)


@dataclass(frozen=True)
class Scattered:
    """A scatter chart.

    Arguments:
        name: Of the chart on its page; letters, digits and hyphens.
        title: A few words.
        caption: What to look for.
        description: What the chart shows, for those who do not see it.
        clouds: The points, by kind.
        x: Horizontal axis.
        y: Vertical axis.
        table: The numbers drawn.
    """

    name: str
    title: str
    caption: str
    description: str
    clouds: Sequence[Cloud]
    x: Axis
    y: Axis
    table: Table

    def figure(self) -> Figure:
        """The chart for a page."""
        svg = scatter_chart(
            f"chart-{self.name}", self.title, self.description, self.clouds, self.x, self.y
        )
        return Figure(self.title, svg, self.caption, self.table)
