"""The gate of the staged exchange: what a consumer incarnation is given, when, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.exchange import StageGate, stage_counter

pytestmark = pytest.mark.local_only

JOIN = {-1: ["build"], 0: ["probe"]}


def fill(gate: StageGate, channel: str, first: int, count: int, *, end: bool = True, attempt: int = 0) -> None:
    """The sequences [first, count) of a channel, and its end mark."""
    for seq in range(first, count):
        gate.offer(channel, seq, f"{channel}{seq}", attempt)
    if end:
        gate.end(channel, count - 1, attempt)


def names(taken: list[tuple[str, int, Any]]) -> list[str]:
    assert all(content == f"{channel}{seq}" for channel, seq, content in taken)
    return [content for _, _, content in taken]


@pytest.mark.rule("6.1")
def test_d1_a_consumer_that_starts_again_elsewhere_gets_every_build_before_the_probe() -> None:
    """The defect itself. Left-deep join, builds at stage -1 done, so the counter stands at 0. The top join's machine
    dies having consumed nothing; on the new machine the probe's replay arrives first.
    """
    stages = {-1: ["build_a", "build_b"], 0: ["probe"]}
    first = StageGate(stages)
    fill(first, "build_a", 0, 3)
    fill(first, "build_b", 0, 2)
    assert stage_counter(stages, {"build_a", "build_b"}) == 0  # so says the counter, for good; the first one dies

    again = StageGate(stages)
    fill(again, "probe", 0, 4)
    assert again.take() == []
    fill(again, "build_a", 0, 3)
    assert names(again.take()) == ["build_a0", "build_a1", "build_a2"]
    fill(again, "build_b", 0, 2, end=False)
    assert names(again.take()) == ["build_b0", "build_b1"]  # every build batch is in, but not the end mark
    assert not again.done
    again.end("build_b", 1)
    assert names(again.take()) == ["probe0", "probe1", "probe2", "probe3"]
    assert again.done and again.take() == []


def test_d2_the_replayer_of_the_build_dies_half_way() -> None:
    """The rest is made again; what was delivered is not delivered twice."""
    gate = StageGate(JOIN)
    fill(gate, "probe", 0, 1)
    fill(gate, "build", 0, 2, end=False)
    assert names(gate.take()) == ["build0", "build1"]
    gate.offer("build", 3, "build3")  # the last that the first replayer got out: a hole is before it
    fill(gate, "build", 0, 5, attempt=1)
    assert names(gate.take()) == ["build2", "build3", "build4", "probe0"]
    with pytest.raises(el.Fenced, match="attempt 0 was replaced by attempt 1"):
        gate.offer("build", 2, "build2", attempt=0)
    assert gate.done and gate.take() == []


@pytest.mark.rule("6.5")
def test_d3_a_third_incarnation_gets_the_same_order() -> None:
    orders = []
    for consumed in (2, 0, None):  # how much each is sent before it dies
        gate = StageGate(JOIN)
        fill(gate, "probe", 0, 3)
        fill(gate, "build", 0, 3 if consumed is None else consumed, end=consumed is None)
        orders.append(names(gate.take()))
    whole = ["build0", "build1", "build2", "probe0", "probe1", "probe2"]
    assert orders == [whole[:2], [], whole]


@pytest.mark.rule("6.4")
def test_d4_a_producer_thought_dead_is_refused() -> None:
    """By its pushes and its end mark, whichever of the two its successor sent; the content stays."""
    for fence in (lambda gate: gate.offer("build", 0, "build0", 2), lambda gate: gate.end("build", 7, 2)):
        gate = StageGate(JOIN)
        fence(gate)
        for attempt in (0, 1):
            with pytest.raises(el.Fenced):
                gate.offer("build", 7, "other", attempt)
            with pytest.raises(el.Fenced):
                gate.end("build", 3, attempt)
        fill(gate, "build", 0, 8, attempt=2)
        gate.offer("probe", 0, "probe0", attempt=0)  # each channel has attempts of its own
        assert names(gate.take()) == [f"build{seq}" for seq in range(8)] + ["probe0"]


@pytest.mark.rule("6.5")
def test_d5_the_progress_of_an_old_consumer_is_not_that_of_the_new_one() -> None:
    old, new = StageGate(JOIN), StageGate(JOIN, cursor={"build": 1, "probe": 3})
    for gate in (old, new):
        fill(gate, "build", 0, 1)
        fill(gate, "probe", 0, 11)
    assert len(old.take()) == 12 and old.cursor["probe"] == 11
    assert names(new.take()) == [f"probe{seq}" for seq in range(3, 11)]


@pytest.mark.rule("6.3")
def test_d6_a_producer_pushes_again_what_the_consumer_has() -> None:
    gate = StageGate(JOIN, cursor={"build": 6})
    fill(gate, "build", 0, 10, attempt=1)
    assert names(gate.take()) == ["build6", "build7", "build8", "build9"]
    fill(gate, "build", 0, 10, attempt=2)
    assert gate.take() == [] and gate.cursor == {"build": 10, "probe": 0}


@pytest.mark.rule("6.6")
def test_d7_what_is_sent_again_because_the_answer_was_lost_is_not_doubled() -> None:
    gate = StageGate(JOIN)
    for _ in range(2):
        gate.offer("build", 0, "build0")
    assert names(gate.take()) == ["build0"]
    for _ in range(2):
        gate.offer("build", 0, "build0")
        gate.end("build", 0)
        gate.offer("probe", 0, "probe0")
    assert names(gate.take()) == ["probe0"]


@pytest.mark.rule("6.1")
def test_d9_the_end_mark_is_known_but_not_all_has_come() -> None:
    gate = StageGate(JOIN)
    gate.end("build", 9)
    fill(gate, "build", 0, 8, end=False)
    fill(gate, "probe", 0, 1)
    assert len(gate.take()) == 8 and not gate.done
    gate.offer("build", 9, "build9")
    assert gate.take() == []  # 8 is missing yet
    gate.offer("build", 8, "build8")
    assert names(gate.take()) == ["build8", "build9", "probe0"]


@pytest.mark.rule("6.1")
def test_d9_an_empty_stage_passes() -> None:
    gate = StageGate({-1: ["build", "other"], 0: ["probe"]})
    fill(gate, "probe", 0, 1)
    assert gate.take() == []
    gate.end("build", -1)
    assert gate.take() == []
    gate.end("other", -1)
    assert names(gate.take()) == ["probe0"] and gate.done


@pytest.mark.rule("6.1")
def test_d9_three_stages_deep() -> None:
    gate = StageGate({0: ["c"], -2: ["a"], -1: ["b"]})  # in any order
    fill(gate, "c", 0, 1)
    fill(gate, "b", 0, 1)
    assert gate.take() == []
    gate.offer("a", 0, "a0")
    assert names(gate.take()) == ["a0"]
    gate.end("a", 0)
    assert names(gate.take()) == ["b0", "c0"]


@pytest.mark.rule("6.1")
def test_a_cursor_lets_pass_only_with_the_end_mark() -> None:
    """That all of a build is covered by the consumer's state is known only once its end mark says how much all is."""
    gate = StageGate(JOIN, cursor={"build": 2})
    fill(gate, "probe", 0, 1)
    assert gate.take() == []
    gate.end("build", 1)
    assert names(gate.take()) == ["probe0"]


# ---- refusals ----------------------------------------------------------------------------------------------------


def test_what_is_refused_changes_nothing() -> None:
    gate = StageGate(JOIN)
    fill(gate, "build", 0, 2)
    before = repr(gate)
    with pytest.raises(el.ChannelUnknown, match="no channel 'nobody'; it has build, probe"):
        gate.offer("nobody", 0, "x")
    with pytest.raises(el.ChannelUnknown):
        gate.end("nobody", 0)
    with pytest.raises(el.EndMarkMismatch, match="sequence 2 lies past the end mark of channel 'build', 1"):
        gate.offer("build", 2, "build2", attempt=5)
    with pytest.raises(el.EndMarkMismatch, match="has the end mark 1, and a second end mark says 2"):
        gate.end("build", 2, attempt=5)
    with pytest.raises(el.ContentMismatch, match="sequence 1 arrived again with other content"):
        gate.offer("build", 1, "other", attempt=5)
    assert repr(gate) == before == "<StageGate -1: build 0/1 +2; 0: probe 0/?>"
    gate.offer("build", 1, "build1")  # attempt 5 was refused, and fences nobody
    assert names(gate.take()) == ["build0", "build1"]


@pytest.mark.rule("6.3")
@pytest.mark.parametrize("given_out", [False, True])
def test_an_end_mark_below_what_has_come_is_refused(given_out: bool) -> None:
    gate = StageGate(JOIN)
    fill(gate, "build", 0, 3, end=False)
    if given_out:
        gate.take()
    with pytest.raises(el.EndMarkMismatch, match="sequence 2 has arrived"):
        gate.end("build", 1)
    with pytest.raises(el.EndMarkMismatch, match="sequence 4 has arrived"):
        StageGate(JOIN, cursor={"build": 5}).end("build", 3)
    gate.end("build", 2)


@pytest.mark.rule("6.3")
def test_a_sequence_has_one_content() -> None:
    """Waiting or given out; record batches are told apart by a digest, which NaN does not disturb."""
    batch, other = (pa.record_batch({"x": pa.array([value])}) for value in (float("nan"), 2.0))
    for given_out in (False, True):
        gate = StageGate(JOIN)
        gate.offer("build", 0, ("plain", 0))
        gate.offer("probe", 0, batch, digest=17)
        gate.end("build", 0)
        if given_out:
            assert len(gate.take()) == 2
        gate.offer("build", 0, ("plain", 0))
        gate.offer("probe", 0, batch, digest=17)
        with pytest.raises(el.ContentMismatch):
            gate.offer("build", 0, ("plain", 1))
        with pytest.raises(el.ContentMismatch):
            gate.offer("probe", 0, other, digest=18)


def test_what_an_earlier_incarnation_was_given_is_dropped_whatever_it_is() -> None:
    gate = StageGate(JOIN, cursor={"build": 2})
    gate.offer("build", 1, "nobody remembers")
    gate.offer("build", 2, [1])  # cannot be hashed
    assert gate.take() == [("build", 2, [1])]
    gate.offer("build", 2, [1])
    assert gate.take() == []


@pytest.mark.parametrize("bad", [
    lambda: StageGate(["build"]),
    lambda: StageGate({-1: "build"}),
    lambda: StageGate({"-1": ["build"]}),
    lambda: StageGate({-1: ["build"], 0: ["build"]}),
    lambda: StageGate({-1: ["build", "build"]}),
    lambda: StageGate({-1: [7]}),
    lambda: StageGate(JOIN, {"build": -1}),
    lambda: StageGate(JOIN, {"build": None}),
    lambda: StageGate(JOIN, {"other": 0}),
    lambda: StageGate(JOIN).offer("build", -1, "x"),
    lambda: StageGate(JOIN).offer("build", "0", "x"),
    lambda: StageGate(JOIN).offer("build", True, "x"),
    lambda: StageGate(JOIN).offer("build", 0, "x", attempt=-1),
    lambda: StageGate(JOIN).end("build", -2),
    lambda: StageGate(JOIN).end("build", None),
    lambda: stage_counter({}, []),
])  # fmt: skip
def test_bad_input_is_named(bad: Any) -> None:
    with pytest.raises(el.InvalidInput):
        bad()


# ---- the counter, and the door -----------------------------------------------------------------------------------


@pytest.mark.rule("6.2")
def test_the_counter_is_the_lowest_stage_without_all_its_end_marks() -> None:
    stages = {-2: ["a"], 0: ["b", "c"], 3: ["d"]}
    assert [stage_counter(stages, ended) for ended in ([], ["a"], "ab", "abc", "abcd", "bcd")] == [-2, 0, 0, 3, 4, -2]


def test_the_gate_is_light() -> None:
    code = "import sys; from epochlog.exchange import StageGate; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "epochlog" in loaded and not {"pyarrow", "numpy", "pyspark", "lmdb", "redis"} & set(loaded)
