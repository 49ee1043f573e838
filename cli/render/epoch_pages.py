"""Pages for people about epochs: timelines, choices of policies, and tags (pure, made of rich's types)."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from epochlog.facts.store import Facts
from epochlog.facts.text import NONE, epoch_text, lag_text, listed, safe
from epochlog.facts.timeline import Timeline

from .pages import grid
from .timeline import LEGEND, picture

LANE_STYLES = {"numbers": "dim", "ancestor": "dim", "readable": "green", "policy": "bold"}
STATES = {"none": "has no commit yet", "behind": "is behind", "gone": "is below its safe epoch"}


def epochs_page(facts: Facts, timeline: Timeline, width: int) -> Iterator[Table | Text | str]:
    """Yield the parts of the page of `epochs`."""
    yield f"{facts['root']} at {facts['at']}, last epoch {epoch_text(facts['last_epoch'])}"
    if not facts["tables"]:
        yield _left_out_text(facts) or "there is no table yet"
        return
    if timeline.stretches:
        chosen = {choice["policy"]: [at for at in choice["epochs"].values() if at] for choice in facts["choices"]}
        names, lanes = picture(timeline, chosen, width)
        yield Text("\n").join(Text(safe(lane.text(names)), LANE_STYLES.get(lane.kind, "")) for lane in lanes)
        yield "   ".join(f"{drawn} {meaning}" for drawn, meaning in LEGEND)
        yield grid(("#", "epochs from", "landed", "all together", "because"), _stretch_rows(facts))
    else:
        yield "these tables have no commit yet"
    if facts["earlier"] or facts["later"]:
        yield f"{len(timeline.stretches):,} stretches are shown; --limit N or --all for more"
    yield from _explanation_parts(facts["epoch"])
    if facts["epoch"] is None and not all(stretch["readable"] for stretch in facts["stretches"]):
        yield "--at EPOCH lists all reasons at one epoch"
    yield grid(("policy", "would choose now", ">lag"), (_choice_row(choice) for choice in facts["choices"]))
    if refused := "\n".join(map(_refusal_text, filter(lambda choice: choice["error"], facts["choices"]))):
        yield refused
    if left_out := _left_out_text(facts):
        yield left_out


def _stretch_rows(facts: Facts) -> Iterator[tuple[Text | str, ...]]:
    for number, stretch in enumerate(facts["stretches"], start=1):
        landed = ", ".join(
            name if kind == "rows" else f"{name} ({'no rows' if kind == 'empty' else 'below its commit'})"
            for name, kind in stretch["landed"].items()
        )
        together = Text("yes", "green") if stretch["readable"] else Text("no", "yellow")
        yield str(number), epoch_text(stretch["first"]), landed or NONE, together, listed(list(_reasons(stretch)))


def _reasons(stretch: Facts) -> Iterator[str]:
    """Yield a short reason for each table that is not valid; --at has the sentences."""
    for blame in stretch["why_not"]:
        state = STATES.get(stretch["states"][blame["table"]])
        yield f"{blame['table']} {state}" if state else blame["reason"]


def _explanation_parts(explanation: Facts | None) -> Iterator[Table | str]:
    if explanation is None:
        return
    verdict = "can be read together" if explanation["readable"] else "cannot be read together"
    yield f"at epoch {epoch_text(explanation['epoch'])} the tables {verdict}"
    yield grid(
        ("table", "its newest commit there", "why it cannot be read there"), map(_table_row, explanation["tables"])
    )
    if not explanation["readable"]:
        below, above = (epoch_text(explanation[name]) for name in ("readable_at_or_below", "readable_above"))
        yield f"they can be read together before it up to {below}, after it from {above}"


def _table_row(table: Facts) -> tuple[Text | str, ...]:
    reasons = "; ".join(blame["reason"] for blame in table["why_not"])
    return table["table"], epoch_text(table["commit"]), Text(safe(reasons), "yellow") if reasons else NONE


def _choice_row(choice: Facts) -> tuple[Text | str, ...]:
    name = choice["policy"] + "".join(f" ({text})" for text in _option_texts(choice["options"]))
    if choice["error"]:
        return name, Text(f"nothing: {choice['error']['type']}", "yellow"), NONE
    epochs = choice["epochs"]
    agree = len(set(epochs.values())) == 1
    epoch_cell = (
        epoch_text(next(iter(epochs.values()))) if agree else listed([f"{name} {at}" for name, at in epochs.items()])
    )
    return name, epoch_cell, lag_text(max(choice["lag_ms"].values()))


def _refusal_text(choice: Facts) -> str:
    name, text = f"{choice['policy']}: ", safe(choice["error"]["text"])
    return text if text.startswith(name) else name + text


def _option_texts(options: Facts) -> Iterator[str]:
    if "max_lag" in options:
        yield f"max_lag {options['max_lag']} s"
    for epoch in {options.get("epoch"), *options.get("epochs_or_token", {}).values()} - {None}:
        yield f"epoch {epoch}"


def _left_out_text(facts: Facts) -> str:
    reasons = "; ".join(facts["left_out"].values())
    return reasons and f"not counted under global: {reasons}"


# ---- tags --------------------------------------------------------------------------------------------------------


def new_tag_page(facts: Facts) -> Iterator[Table | str]:
    """Yield the parts of the page of `tag --name`."""
    yield f"{facts['name']} is kept {'for good' if facts['until'] is None else 'until ' + facts['until']}"
    rows = ((name, epoch_text(epoch), lag_text(facts["lag_ms"][name])) for name, epoch in facts["epochs"].items())
    yield grid(("table", "epoch", ">lag"), rows)
    yield f"token {facts['token']}"


def token_page(facts: Facts) -> Iterator[Table | str]:
    """Yield the parts of the page of `tag --show`."""
    yield grid(("table", "epoch", ">lag", "kept until", "by"), (_token_row(table) for table in facts["tables"]))
    refused = [f"{table['table']}: {safe(table['why_not'])}" for table in facts["tables"] if table["why_not"]]
    if refused:
        yield "\n".join(refused)
    yield f"token {facts['token']}"


def _token_row(table: Facts) -> tuple[Text | str, ...]:
    if table["why_not"]:
        return table["table"], epoch_text(table["epoch"]), NONE, Text("cannot be read", "red"), NONE
    until = table["kept_until"] or Text("not kept", "yellow")
    return table["table"], epoch_text(table["epoch"]), lag_text(table["lag_ms"]), until, table["kept_by"] or NONE
