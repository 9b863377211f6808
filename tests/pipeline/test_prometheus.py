# SPDX-License-Identifier: BSD-3-Clause
"""The text file for Prometheus says what the receipts say."""

import re
from pathlib import Path

import skydelta
from skydelta.pipeline.events import Event
from skydelta.pipeline.prometheus import TextFile

SAMPLE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\} (\S+)')


def samples(text):
    """Values by name and labels; every line has the form that the exposition format 0.0.4 asks for."""
    found, typed = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            typed[name] = kind
            continue
        if line.startswith("# HELP "):
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        assert name in typed or re.sub("_(sum|count)$", "", name) in typed, "a sample comes after its type"
        found[name, labels] = float(value)
    assert text.endswith("\n")
    return found


def test_what_it_says_of_a_run(sums, skydelta):
    Path("t.csv").write_text("id,a,b\none,1,2\ntwo,7,8\nbad,6,7\n")
    words = ("run", "sum.toml", "--set", "inputs.table=t.csv", "-o", "out", "--prometheus", "sum.prom")
    skydelta(*words)
    found = samples(Path("sum.prom").read_text())
    label = 'workflow="sum"'
    ended = {s: found["skydelta_items_total", f'{label},status="{s}"'] for s in ("done", "failed", "resumed")}
    # 7 + 8 and 6 + 7 are two of the sums that mean trouble
    assert ended == {"done": 1, "failed": 2, "resumed": 0}
    assert found["skydelta_items_planned", label] == 3
    assert found["skydelta_running", label] == 0
    assert found["skydelta_step_seconds_count", f'{label},step="first"'] == 3
    assert found["skydelta_step_seconds_count", f'{label},step="toy_save"'] == 1
    assert found["skydelta_last_event_time_seconds", label] >= found["skydelta_run_start_time_seconds", label] > 1e9
    skydelta(*words)
    found = samples(Path("sum.prom").read_text())
    assert found["skydelta_items_total", f'{label},status="resumed"'] == 1


def test_names_with_odd_characters_and_a_folder_that_is_gone(tmp_path, caplog):
    file = TextFile(tmp_path / "none" / "x.prom", 'a "b"\\\n')
    file.tell(Event("run_started", data={"items": 2}))
    file.tell(Event("run_done", data={"items": 0}))
    file.close()
    assert samples(file.text())["skydelta_items_planned", 'workflow="a \\"b\\"\\\\\\n"'] == 2
    assert sum("no more metrics are written" in r.message for r in caplog.records) == 1


def test_from_python(sums):
    result = skydelta.run("sum.toml", {"a": "1", "b": "2"}, out="out", prometheus="p.prom")
    assert result.exit_code == 0
    assert samples(Path("p.prom").read_text())["skydelta_items_planned", 'workflow="sum"'] == 1
