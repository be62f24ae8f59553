"""RESULTS.md from results/*.json. Pure: results in, text out."""

from __future__ import annotations

from collections.abc import Sequence

from measuring import Figure, Result, Series


def render(results: Sequence[Result]) -> str:
    parts = [HEAD, _summary(results), *(_case(result) for result in results)]
    return "\n".join(parts)


HEAD = """# Bench results

Written by `bench/run.py`; do not edit. How to read them: [README.md](README.md).
"""


def _summary(results: Sequence[Result]) -> str:
    rows = [
        (
            figure.name,
            _value(figure.target.value),
            figure.target.text,
            "met" if figure.target.met else "**missed**",
        )
        for result in results
        for figure in result.findings.figures
        if figure.target is not None
    ]
    return _table(("figure", "measured", "target", ""), rows)


def _case(result: Result) -> str:
    parts = [f"## {result.title}\n", _figures(result.findings.figures)]
    for table in result.findings.tables:
        parts += [f"{table.title}:\n", _table(table.header, table.rows)]
    parts += [f"- {note}" for note in result.findings.notes]
    parts += [f"- {_machine(result)}", ""]
    return "\n".join(parts)


def _figures(figures: Sequence[Figure]) -> str:
    header = ("", "n", "median", "min", "max", "beyond the limit", "best beyond best", "ratio")
    rows = [(*_series(figure.ours), *_compared(figure)) for figure in figures]
    limits = {figure.limit.name: figure.limit for figure in figures}
    rows += [(*_series(limit), "", "", "") for limit in limits.values()]
    return f"In {figures[0].unit}; the limits are in the last rows:\n\n" + _table(header, rows)


def _series(series: Series) -> tuple[str, ...]:
    values = (series.median, series.lowest, series.highest)
    return (series.name, str(len(series.samples)), *(_value(value) for value in values))


def _compared(figure: Figure) -> tuple[str, str, str]:
    return _signed(figure.beyond), _signed(figure.beyond_at_best), f"{figure.ratio:.3f}"


def _machine(result: Result) -> str:
    machine = result.machine
    load = ", ".join(f"{value:.2f}" for value in machine.load_before)
    return (
        f"{result.ran_at:%Y-%m-%d %H:%M}Z, {result.took_s:.0f} s in all, on {machine.cores} cores "
        f"({machine.cpu}), {machine.memory_mib} MiB, Linux {machine.kernel}, QEMU {machine.qemu}, "
        f"Python {machine.python}; load before: {load}."
    )


def _signed(value: float) -> str:
    return f"{value:+.0f}" if abs(value) >= 100 else f"{value:+.3f}"


def _value(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
