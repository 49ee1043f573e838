"""Pages for people about epochs: timelines, choices of policies, and held snapshots (pure, but for rich's types)."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from epochlog.cli.facts.store import Facts
from epochlog.cli.facts.timeline import Timeline
from epochlog.cli.text import NONE, epoch_text, lag_text, listed, safe

from .pages import grid
from .timeline import LEGEND, picture

LANE_STYLES = {"numbers": "dim", "ancestor": "dim", "readable": "green", "policy": "bold"}
STATES = {"none": "has nothing yet", "behind": "is behind", "gone": "is kept no longer"}


def epochs_page(facts: Facts, found: Timeline, width: int) -> Iterator[Table | Text | str]:
    """Yield the parts of the page of `epochs`."""
    yield f"{facts['root']} at {facts['at']}, last epoch {epoch_text(facts['last_epoch'])}"
    if not facts["tables"]:
        yield _left_out(facts) or "there is no table yet"
        return
    if found.stretches:
        chosen = {one["policy"]: [at for at in one["epochs"].values() if at] for one in facts["choices"]}
        names, lanes = picture(found, chosen, width)
        yield Text("\n").join(Text(safe(lane.text(names)), LANE_STYLES.get(lane.kind, "")) for lane in lanes)
        yield "   ".join(f"{drawn} {meaning}" for drawn, meaning in LEGEND)
        yield grid(("#", "epochs from", "landed", "all together", "because"), _stretches(facts))
    else:
        yield "nothing has landed in these tables yet"
    if facts["earlier"] or facts["later"]:
        yield f"{len(found.stretches):,} stretches are shown; --limit N or --all for more"
    yield from _explained(facts["epoch"])
    if facts["epoch"] is None and not all(one["readable"] for one in facts["stretches"]):
        yield "--at EPOCH says of an epoch in full why it cannot be read"
    yield grid(("policy", "would choose now", ">lag"), (_choice(one) for one in facts["choices"]))
    if refused := "\n".join(map(_refusal, filter(lambda one: one["error"], facts["choices"]))):
        yield refused
    if left_out := _left_out(facts):
        yield left_out


def _stretches(facts: Facts) -> Iterator[tuple[Text | str, ...]]:
    for number, one in enumerate(facts["stretches"], start=1):
        landed = ", ".join(
            name if what == "rows" else f"{name} ({'no rows' if what == 'empty' else 'below its commit'})"
            for name, what in one["landed"].items()
        )
        together = Text("yes", "green") if one["readable"] else Text("no", "yellow")
        yield str(number), epoch_text(one["first"]), landed or NONE, together, listed(list(_because(one)))


def _because(one: Facts) -> Iterator[str]:
    """Yield each table to blame, with a short reason: --at has the sentences."""
    for blame in one["why_not"]:
        word = STATES.get(one["states"][blame["table"]])
        yield f"{blame['table']} {word}" if word else blame["reason"]


def _explained(found: Facts | None) -> Iterator[Table | str]:
    if found is None:
        return
    verdict = "can be read together" if found["readable"] else "cannot be read together"
    yield f"at epoch {epoch_text(found['epoch'])} the tables {verdict}"
    yield grid(("table", "its newest commit there", "why it cannot be read there"), map(_table, found["tables"]))
    if not found["readable"]:
        below, above = (epoch_text(found[name]) for name in ("readable_at_or_below", "readable_above"))
        yield f"they can be read together before it up to {below}, after it from {above}"


def _table(one: Facts) -> tuple[Text | str, ...]:
    reasons = "; ".join(blame["reason"] for blame in one["why_not"])
    return one["table"], epoch_text(one["commit"]), Text(safe(reasons), "yellow") if reasons else NONE


def _choice(one: Facts) -> tuple[Text | str, ...]:
    name = one["policy"] + "".join(f" ({text})" for text in _asked(one["options"]))
    if one["error"]:
        return name, Text(f"nothing: {one['error']['type']}", "yellow"), NONE
    epochs = one["epochs"]
    same = len(set(epochs.values())) == 1
    shown = epoch_text(next(iter(epochs.values()))) if same else listed([f"{name} {at}" for name, at in epochs.items()])
    return name, shown, lag_text(max(one["lag_ms"].values()))


def _refusal(one: Facts) -> str:
    name, text = f"{one['policy']}: ", safe(one["error"]["text"])
    return text if text.startswith(name) else name + text


def _asked(options: Facts) -> Iterator[str]:
    if "max_lag" in options:
        yield f"max_lag {options['max_lag']} s"
    for epoch in {options.get("epoch"), *options.get("epochs_or_token", {}).values()} - {None}:
        yield f"epoch {epoch}"


def _left_out(facts: Facts) -> str:
    reasons = "; ".join(facts["left_out"].values())
    return reasons and f"not counted under global: {reasons}"


# ---- held snapshots ----------------------------------------------------------------------------------------------


def taken(facts: Facts) -> Iterator[Table | str]:
    """Yield the parts of the page of `snapshot --hold`."""
    yield f"held as {facts['name']} until {facts['until']}"
    rows = ((name, epoch_text(epoch), lag_text(facts["lag_ms"][name])) for name, epoch in facts["epochs"].items())
    yield grid(("table", "epoch", ">lag"), rows)
    yield f"token {facts['token']}"


def shown(facts: Facts) -> Iterator[Table | str]:
    """Yield the parts of the page of `snapshot --show`."""
    yield grid(("table", "epoch", ">lag", "kept until", "by"), (_kept(one) for one in facts["tables"]))
    refused = [f"{one['table']}: {safe(one['why_not'])}" for one in facts["tables"] if one["why_not"]]
    if refused:
        yield "\n".join(refused)
    yield f"token {facts['token']}"


def _kept(one: Facts) -> tuple[Text | str, ...]:
    if one["why_not"]:
        return one["table"], epoch_text(one["epoch"]), NONE, Text("cannot be read", "red"), NONE
    until = one["kept_until"] or Text("it may go at any time", "yellow")
    return one["table"], epoch_text(one["epoch"]), lag_text(one["lag_ms"]), until, one["kept_by"] or NONE
