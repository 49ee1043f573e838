"""The demo as a command: a quick run from end to end, its exit codes, its options."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from epochlog import demo, errors
from epochlog.demo import run
from epochlog.demo.stage import KILLED, SLOWED
from epochlog.demo.views import VIEWS


@pytest.mark.spark
@pytest.mark.long
def test_a_quick_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "epochlog.demo", "--quick", "--json", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["equal"]
    assert summary["days"] == run.QUICK.days
    assert summary["differing_from_feed"] == {"flights": 0, "weather": 0}
    moments = summary["moments"]
    assert len(moments) == run.QUICK.moments + 1
    assert [view["differ_aligned"] for moment in moments for view in moment["views"].values()] == [0] * len(VIEWS) * 5
    torn = sum(view["differ_latest"] for moment in moments[:-1] for view in moment["views"].values())
    assert torn > 0
    assert any(f"{KILLED} killed" in moment["during"] for moment in moments)
    assert set(summary["commits_while_dead"]) == set(VIEWS) - {KILLED}
    assert min(summary["commits_while_dead"].values()) >= 2
    assert Path(summary["picture"]).read_bytes().startswith(b"\x89PNG")
    assert summary["page"].startswith(f"page: {tmp_path}") == (tmp_path / "page.png").exists()
    for text in (
        "see the store while it runs: http://127.0.0.1:",
        summary["page"],
        "SIGKILL",
        "has committed the barrier it was killed in",
        f"{SLOWED} is slowed",
        "OK in",
    ):
        assert text in done.stderr


@pytest.mark.parametrize("equal, code", [(True, 0), (False, 1)])
def test_an_inequality_is_exit_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], equal: bool, code: int
) -> None:
    summary: dict[str, Any] = {"equal": equal}
    monkeypatch.setattr(run, "perform", lambda *_: summary)
    assert demo.main(["--json"]) == code
    assert json.loads(capsys.readouterr().out) == summary


def test_an_error_is_one_line_and_exit_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> dict[str, Any]:
        raise errors.EpochlogError("the driver has ended by itself")

    monkeypatch.setattr(run, "perform", fail)
    assert demo.main([]) == 1
    assert capsys.readouterr().err == "epochlog demo: the driver has ended by itself\n"


@pytest.mark.parametrize("options", [["--days", "3"], ["--days", "366"], ["--days", "x"], ["--fast"]])
def test_options_that_mean_nothing_are_usage_errors(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        demo.main(options)
    assert stop.value.code == 2
    assert "usage" in capsys.readouterr().err
