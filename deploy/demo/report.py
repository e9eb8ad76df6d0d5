"""The demo's page: one HTML file with its pictures inside. It only shows what the summary holds; it computes nothing."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INK, QUIET = "#1f2933", "#8793a1"
COLOURS = {
    "head": "#0b6e4f",
    "champion": "#1d4e89",
    "start": "#b3541e",
    "greedy": "#b3541e",
    "holdout": "#8793a1",
}


@dataclass(frozen=True)
class Point:
    """Held-out success of one version after so many rated episodes."""

    rated: int
    mean: float
    lo: float
    hi: float


@dataclass(frozen=True)
class Series:
    """What the pictures are drawn from."""

    head: Sequence[Point] = ()
    live: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    updates: Sequence[Mapping[str, Any]] = ()


def write_report(path: Path, summary: Mapping[str, Any], series: Series) -> None:
    """Write `report.html`, replacing an older one at once."""
    from jinja2 import Environment, PackageLoader

    page = Environment(loader=PackageLoader("deploy.demo", "."), autoescape=True).get_template(
        "report.html.j2"
    )
    html = page.render(
        s=summary, curve=learning_curve(summary, series), live=live_success(series), updates=series.updates
    )
    temporary = path.with_suffix(".tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_text(html)
    temporary.replace(path)


def learning_curve(summary: Mapping[str, Any], series: Series) -> str:
    """SVG: held-out success over rated episodes, the start as bands, the champion as a last point."""
    figure, axes = _figure(7.6, 3.9)
    held = summary["heldout"]
    for key, style, name in (("start", "-", "start, sampled"), ("start_greedy", "--", "start, greedy")):
        axes.axhline(held[key]["mean"], color=COLOURS["start"], linestyle=style, linewidth=1.3, label=name)
    axes.axhspan(held["start"]["lo"], held["start"]["hi"], color=COLOURS["start"], alpha=0.10, linewidth=0)
    if series.head:
        rated = [point.rated for point in series.head]
        mean = [point.mean for point in series.head]
        below = [point.mean - point.lo for point in series.head]
        above = [point.hi - point.mean for point in series.head]
        axes.errorbar(
            rated,
            mean,
            yerr=[below, above],
            color=COLOURS["head"],
            marker="o",
            capsize=3,
            label="the trainer's head",
        )
    champion = held["champion"]
    last = max((point.rated for point in series.head), default=summary["episodes"]["rated"])
    axes.errorbar(
        [last], [champion["mean"]],
        yerr=[[champion["mean"] - champion["lo"]], [champion["hi"] - champion["mean"]]],
        color=COLOURS["champion"], marker="s", capsize=3, linestyle="none", label="the champion",
    )  # fmt: skip
    axes.set(
        xlabel="rated episodes",
        ylabel=f"success on {held['tasks']} held-out tasks",
        ylim=(0, 1),
        xlim=(0, None),
    )
    axes.legend(frameon=False, fontsize=9, loc="upper left", ncols=2)
    return _svg(figure)


def live_success(series: Series) -> str:
    """SVG: running success of live episodes by arm, as only the simulator knows it."""
    figure, axes = _figure(7.6, 3.0)
    for arm, points in series.live.items():
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=COLOURS.get(arm, INK),
            label=arm,
            linewidth=1.6,
        )
    axes.set(xlabel="minutes", ylabel="success, running mean", ylim=(0, 1), xlim=(0, None))
    if series.live:
        axes.legend(frameon=False, fontsize=9, loc="upper left", ncols=3)
    return _svg(figure)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    return figure, axes


def _svg(figure: Any) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg")
    drawing = out.getvalue()
    return drawing[drawing.index("<svg") :]
