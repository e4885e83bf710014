"""The benchmark command measures the points that it names, and records the machine."""

import csv
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import ttcnet
from benchmarks.__main__ import app as published
from benchmarks.tables import decoding, speed_table
from tests.raising import raises, told
from ttcnet import command_options as options
from ttcnet.bench import decode, limits, peers, sweeps
from ttcnet.bench import measure as measuring
from ttcnet.bench.decode import DecodePoint, measure_decoding
from ttcnet.bench.measure import Outcome, Point, measure_here
from ttcnet.bench.providers import PROVIDERS, check_provider, installed
from ttcnet.bench.results import line, measured, parse, read, stamp, write
from ttcnet.bench.sweeps import SWEEPS, History, expand
from ttcnet.cli import bench as command
from ttcnet.cli.bench import app
from ttcnet.testing.errors import NAMES, cast, differentiate, fill, relative_errors, weights
from ttcnet.testing.regimes import draw

RUNNER = CliRunner()
FINE = Outcome("ok", 1.0, 4.0, 3.9, 4.1, 9, 12.0, 1e-7, 1e-6, 0.5, 0.1, 0.2)


def words(result):
    return " ".join(result.output.replace("│", " ").split())


def test_a_run_writes_one_line_a_measurement(tmp_path):
    out = tmp_path / "deep" / "lqr.csv"
    arguments = ["lqr", "--horizon", "3", "--problems", "8", "--seconds", "0.01", "--out", str(out)]
    result = RUNNER.invoke(app, [*arguments, "--provider", "plan", "--provider", "autograd-riccati"])
    assert result.exit_code == 0, result.output
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["provider"] for row in rows] == ["plan", "autograd-riccati"]
    for row in rows:
        assert row["status"] == "ok"
        assert 0 < float(row["p20_ms"]) <= float(row["median_ms"]) <= float(row["p80_ms"])
        assert float(row["error_u"]) < 1e-5
        assert float(row["error_worst_gradient"]) < 1e-4
        assert 0 < float(row["limit_forward_ms"]) < float(row["forward_ms"])
        assert float(row["limit_forward_ms"]) < float(row["limit_ms"]) < float(row["median_ms"])
        assert row["version_torch"]
        assert row["cpu"]
    assert list(out.parent.iterdir()) == [out]


def test_bench_needs_no_checkout(tmp_path):
    """The package alone, in another folder, as an installed one is."""
    shutil.copytree(
        Path(ttcnet.__file__).parent, tmp_path / "site" / "ttcnet", ignore=shutil.ignore_patterns("__pycache__")
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    call = [sys.executable, "-m", "ttcnet", "bench", "lqr", "--shape", "1x2", "--provider", "plan", "--seconds", "0"]
    result = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "plan" in (tmp_path / "bench" / "lqr.csv").read_text()


@pytest.mark.parametrize("provider", ["kkt", "symplectic"])
def test_other_providers_run(provider):
    outcome = measure_here(Point(provider, "fresh", problems=4, horizon=3, heads=2), seconds=0.0)
    assert outcome.status == "ok"
    assert outcome.error_u < 1e-4


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("--provider", "nobody", "unknown-name"),
        ("--regime", "odd", "unknown-name"),
        ("--device", "tpu", "unknown-name"),
        ("--sweep", "broom", "unknown-name"),
        ("--shape", "8by8", "format"),
        ("--problems", "17", "out-of-range"),
        ("--problems", "0", "out-of-range"),
    ],
)
def test_wrong_options_are_errors(option, value, code, tmp_path):
    result = RUNNER.invoke(app, ["lqr", option, value, "--out", str(tmp_path / "x.csv")])
    assert result.exit_code == 1
    assert told(result.output, code, option.removeprefix("--"), value)


def test_impossible_measurements_and_outputs_are_errors_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(options, "gpus", lambda: 0)
    for name, otherwise in (("lqr", "cpu"), ("layer", "cpu"), ("decode", "cpu --shape tiny")):
        result = RUNNER.invoke(app, [name, "--device", "cuda", "--out", str(tmp_path / "x.csv")])
        assert told(result.output, "device", "device", "cuda")
        assert f"Pass --device {otherwise}." in words(result)
        assert told(RUNNER.invoke(app, [name, "--device", "tpu"]).output, "unknown-name", "device", "tpu")
        folder = RUNNER.invoke(app, [name, "--device", "cpu", "--out", str(tmp_path)])
        assert told(folder.output, "not-writable", "out", "which is a folder")
    assert told(RUNNER.invoke(app, ["layer", "--width", "10", "--device", "cpu"]).output, "conflict", "width", "10")
    for wrong in (["lqr", "--horizon", "0"], ["decode", "--new", "5"], ["decode", "--repeats", "0"]):
        assert RUNNER.invoke(app, [*wrong, "--device", "cpu"]).exit_code == 2
    missing = RUNNER.invoke(published, ["figure", "--results", str(tmp_path / "none.csv")])
    assert told(missing.output, "not-found", "results", "none.csv")


def test_the_sweeps_are_those_of_the_paper_and_of_language_models():
    assert SWEEPS["horizon"] == [(1024, T) for T in (16, 32, 64, 128, 256, 512, 1024, 2048)]
    assert SWEEPS["problems"][0] == (16, 64)
    assert SWEEPS["problems"][-1] == (2**18, 64)
    assert {problems for problems, _ in SWEEPS["llm"]} == {65536, 262144}
    assert {problems for problems, _ in SWEEPS["decode"]} == {16, 128, 1024}
    assert len(expand(["all"])) == sum(map(len, SWEEPS.values())) == len(expand(["all", "llm"]))
    elsewhere = {shape for name, shapes in SWEEPS.items() if name != "targets" for shape in shapes}
    assert set(SWEEPS["targets"]) <= elsewhere, "targets cost extra time"


def test_impossible_points_are_not_tried():
    history = History(limit=10.0)
    small = Point("kkt", "trained", 1024, 64, sweep="problems")
    history.add(small, FINE)
    assert history.foresee(replace(small, sweep="horizon")) == FINE, "known from another sweep"
    assert history.foresee(replace(small, problems=2048)) is None
    history.add(replace(small, problems=4096), Outcome("out of memory"))
    assert history.foresee(replace(small, problems=8192)).status == "skipped: out of memory at 4096x64"
    assert history.foresee(replace(small, problems=8192, horizon=32)) is None, "a shorter horizon may fit"
    assert history.foresee(replace(small, problems=8192, provider="plan")) is None
    history.add(replace(small, horizon=128), replace(FINE, median_ms=3000.0, forward_ms=1000.0))
    assert history.foresee(replace(small, horizon=256)).status == "skipped: would take over 10 s"
    assert history.foresee(replace(small, horizon=128 * 32)) is None, "too far away to tell"
    history.add(replace(small, horizon=256), Outcome("skipped: would take over 10 s"))
    assert history.foresee(replace(small, horizon=128 * 32)).status == "skipped: would take over 10 s"


@pytest.fixture
def quick(monkeypatch):
    """Two small sweeps, and measurements that only count themselves."""
    tried: list[Point] = []

    def measure(point, seconds, limit):
        tried.append(point)
        return Outcome("out of memory") if point.provider == "kkt" else FINE

    monkeypatch.setattr(command, "measure", measure)
    for name in SWEEPS:
        monkeypatch.setitem(sweeps.SWEEPS, name, [(16, 8), (32, 8)])
    return tried


def test_a_sweep_measures_a_shape_once_and_skips_hopeless_ones(quick, tmp_path):
    out = tmp_path / "lqr.csv"
    arguments = ["lqr", "--sweep", "llm", "--sweep", "decode", "--provider", "plan", "--provider", "kkt"]
    result = RUNNER.invoke(app, [*arguments, "--out", str(out)])
    assert result.exit_code == 0, result.output
    rows = read(out)
    assert [row["sweep"] for row in rows] == ["llm"] * 4 + ["decode"] * 4
    hopeless = ["out of memory", "skipped: out of memory at 16x8"]
    assert [row["status"] for row in rows if row["provider"] == "kkt"] == hopeless * 2
    assert len(quick) == 3
    assert [parse(row)[1] for row in rows if row["provider"] == "plan"] == [FINE] * 4
    mixed = RUNNER.invoke(app, [*arguments, "--shape", "8x8", "--out", str(out)])
    assert told(mixed.output, "conflict", "sweep", "llm, decode")


def test_an_interrupted_run_is_resumed(quick, tmp_path, monkeypatch):
    out, whole = tmp_path / "lqr.csv", command.measure

    def interrupted(point, seconds, limit):
        if len(quick) == 3:
            raise KeyboardInterrupt
        return whole(point, seconds, limit)

    arguments = ["lqr", "--sweep", "llm", "--provider", "plan", "--provider", "reference", "--out", str(out)]
    monkeypatch.setattr(command, "measure", interrupted)
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 130
    assert "3 measurements are in" in words(result)
    assert len(read(out)) == 3
    monkeypatch.setattr(command, "measure", whole)
    assert RUNNER.invoke(app, [*arguments, "--resume"]).exit_code == 0
    assert len(quick) == 4
    assert len({parse(row)[0] for row in read(out)}) == 4
    write([row | {"commit": "another"} for row in read(out)], out)
    refused = RUNNER.invoke(app, [*arguments, "--resume"])
    assert refused.exit_code == 1
    assert told(refused.output, "settings-changed", "machine, versions and commit", "'commit': ..another'")
    assert len(quick) == 4


def test_the_right_answer_is_computed_once_for_all_providers():
    measuring._truth.cache_clear()
    for provider in ("plan", "reference"):
        outcome = measure_here(Point(provider, "trained", problems=32, horizon=3), seconds=0.0)
        assert outcome.error_u < 1e-6
        assert outcome.error_worst_gradient < 1e-5
        assert math.isnan(outcome.graph_ms), "there are no CUDA graphs on the CPU"
    assert measuring._truth.cache_info().misses == 1


def test_a_large_batch_repeats_a_small_one():
    assert fill(torch.arange(3), 7).tolist() == [0, 1, 2, 0, 1, 2, 0]
    outcome = measure_here(Point("plan", "trained", problems=100 * 16, horizon=2), seconds=0.0)
    assert outcome.error_worst_gradient < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("horizon", [8, 128])
def test_a_forward_pass_is_replayed_as_a_graph(horizon):
    outcome = measure_here(Point("plan", "trained", problems=16, horizon=horizon, device="cuda"), seconds=0.05)
    assert 0 < outcome.graph_ms <= 1.1 * outcome.forward_ms


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit.script, by pypose
@pytest.mark.parametrize("name", ["mpc", "pypose", "diffilqrax"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_peers_agree(name, dtype):
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed; pip install {name}")
    family = draw("trained", tokens=3, heads=2, n=5, m=4)
    exact = cast(cast(family, torch.float32), torch.float64)
    truth = differentiate(PROVIDERS["reference"], exact, 6, weights(family))
    peer = peers.mpc_pytorch if name == "mpc" else getattr(peers, name)
    errors = relative_errors(differentiate(peer, cast(exact, dtype), 6, weights(family)), truth)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert max(errors.values()) < tolerance, errors


def test_peers_that_cannot_run_give_a_remedy(monkeypatch):
    monkeypatch.setattr("ttcnet.bench.providers.find_spec", lambda name: None)
    with raises("package", "provider", "pypose"):
        check_provider("pypose", "cpu")
    assert "plan" in installed()
    assert "pypose" not in installed()
    monkeypatch.setattr("ttcnet.bench.providers.find_spec", lambda name: True)
    with raises("device", "provider", "diffilqrax on cuda"):
        check_provider("diffilqrax", "cuda")
    check_provider("diffilqrax", "cpu")
    assert "diffilqrax" not in installed("cuda")
    assert "diffilqrax" in installed("cpu")


@pytest.fixture
def swept(tmp_path):
    """A file with every sweep: symplectic runs out of digits, kkt out of memory."""
    history, where, rows = History(limit=60.0), stamp(), []
    for sweep, (problems, horizon) in expand(["all"]):
        for provider in ("plan", "symplectic", "kkt"):
            point = Point(provider, "trained", problems, horizon, device="cuda", sweep=sweep)
            outcome = replace(FINE, median_ms=1e-4 * problems * horizon, peak_mb=1e-3 * problems * horizon)
            if provider == "symplectic":
                outcome = replace(outcome, error_worst_gradient=math.nan if horizon > 64 else 0.1, graph_ms=math.nan)
            if provider == "kkt" and problems * horizon > 10**6:
                outcome = Outcome("out of memory")
            outcome = history.foresee(point) or outcome
            history.add(point, outcome)
            rows.append(line(point, outcome, where | {"gpu": "a GPU"}))
    write(rows, tmp_path / "lqr-gpu.csv")
    return tmp_path


def test_the_figure_is_drawn_from_the_results(swept):
    picture = swept / "images" / "figure.png"
    result = RUNNER.invoke(published, ["figure", "--results", str(swept / "lqr-gpu.csv"), "--out", str(picture)])
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    write([row for row in read(swept / "lqr-gpu.csv") if row["sweep"] != "problems"], swept / "part.csv")
    refused = RUNNER.invoke(published, ["figure", "--results", str(swept / "part.csv"), "--out", str(picture)])
    assert refused.exit_code == 1
    assert told(refused.output, "no-data", str(swept / "part.csv"))


def test_tables_are_views_of_one_file(swept):
    targets, llm, decode = (speed_table(name, swept) for name in ("lqr-gpu", "lqr-gpu-llm", "lqr-gpu-decode"))
    assert sum(line.startswith("| ") for line in targets.splitlines()) == 1 + len(SWEEPS["targets"])
    assert "| tokens | T | `plan` | `symplectic` | `kkt` |" in llm
    assert "\n| 16384 | 32 |" in llm
    assert "out of memory at" in llm
    assert "\n| 64 | 128 | 1 ms / 0.5 ms <br> 1e-07 | 1 ms / - <br> 1e-07 |" in decode
    write([row for row in read(swept / "lqr-gpu.csv") if row["sweep"] != "llm"], swept / "lqr-gpu.csv")
    with raises("no-data", "lqr-gpu.csv"):
        speed_table("lqr-gpu-llm", swept)


def test_limits_are_those_of_the_counts():
    """n = m = 16, T = 8, by hand: 17,408 operations a step forward and 6,144 more in both passes; Qf is 1 KB."""
    rates = limits.Rates(flops=1e12, bytes=1e12)
    forward, both = limits.forward_work(1600, 16, 16, 16, 8), limits.both_work(1600, 16, 16, 16, 8)
    assert forward.flops == 1600 * 8 * 17408
    assert both.flops == 1600 * 8 * (17408 + 6144)
    family = 1600 * 4 * (256 + 3 * 16 + 1 + 2 * 16) + 100 * 4 * 2 * 256
    assert forward.bytes == family + 1600 * 4 * 16
    assert both.bytes == 3 * family + 2 * 1600 * 4 * 16
    assert forward.seconds(rates) == forward.flops / 1e12, "limited by arithmetic"
    assert forward.seconds(rates._replace(bytes=1e10)) == forward.bytes / 1e10, "limited by memory"
    family = draw("trained", 100, 16)
    assert limits._family_bytes(1600, 16, 16, 16) == 4 * sum(getattr(family, name).numel() for name in NAMES)


def test_rates_are_measured():
    found = limits.rates("cpu")
    assert 1e9 < found.flops < 1e14
    assert 1e8 < found.bytes < 1e13


def test_a_table_has_the_part_of_the_limit(swept):
    table = speed_table("lqr-gpu", swept)
    assert "| 65536 | 8 | 1 ms / 52.4 ms <br> limit 10 % / 0.38 % <br>" in table
    assert "measured in the same run" in table
    rows = read(swept / "lqr-gpu.csv")
    before = [{name: x for name, x in row.items() if not name.startswith("limit")} for row in rows]
    write(before, swept / "lqr-gpu.csv")
    assert "limit" not in speed_table("lqr-gpu", swept)


def test_decoding_is_measured_with_and_without_ttc():
    found = dict(measure_decoding("tiny", "cpu", prompt=3, new=9, repeats=1, horizons=(8, 16)))
    assert [(point.horizon, point.compiled) for point in found] == [
        (0, False), (8, False), (16, False), (0, True), (8, True), (16, True)
    ]  # fmt: skip
    assert all(result["ms_per_token"] > 0 for result in found.values())
    assert all(result["slower"] == 1 for point, result in found.items() if point.horizon == 0)
    assert [result["measured"] for result in found.values()] == [6] * 3 + [1] * 3  # tokens; texts
    assert {result["compiled_anew"] for result in found.values()} == {0}
    assert all(result["slower_p20"] <= result["slower"] <= result["slower_p80"] for result in found.values())
    rows = [
        {name: str(value) for name, value in (vars(point) | result).items()}
        | dict(gpu="a GPU", version_torch="2", version_transformers="5", commit="abc", date="today")
        for point, result in found.items()
    ]
    text = decoding(rows)
    assert "| no TTC |" in text
    assert "| 16 |" in text
    assert text.count("% time)") == 2  # the paper's
    assert text.count("% time; ") == 4
    assert "the horizon changing from text to text" in text
    before = [{name: x for name, x in row.items() if not name.startswith("slower_")} for row in rows]
    assert decoding(before).count("% time)") == 6
    assert "the time of a text by its tokens" in decoding(before)


def test_compiled_texts_take_turns_and_are_compared_within_a_round(monkeypatch):
    """A machine that gets slower all the time, where every horizon costs 50 % more than none."""
    clock, order = iter(range(10**6)), []

    def seconds(model, point):
        order.append(point.horizon)
        return (1.0 + 0.01 * next(clock)) * (1.5 if point.horizon else 1.0)

    monkeypatch.setattr(decode, "_seconds_of_tokens", seconds)
    points = [DecodePoint("tiny", horizon, True, 3, 9, "cpu") for horizon in (0, 8, 16)]
    found = decode._by_text(None, points, repeats=20)
    rounds = [order[k : k + 3] for k in range(0, len(order), 3)]
    assert len(rounds) == decode.WARM_ROUNDS + 20
    assert all(sorted(each) == [0, 8, 16] for each in rounds)
    assert len({tuple(each) for each in rounds}) > 3, "the order changes"
    for result in found[1:]:
        assert abs(result["slower"] - 1.5) < 0.03
        assert result["slower_p20"] < result["slower_p80"]


def test_the_first_tokens_of_a_text_do_not_count(monkeypatch):
    def generate(model, point, listeners):
        now = 0.0
        for token in range(point.new):
            now += 9.0 if token <= decode.SETTLING else 1.0
            listeners[0].times.append(now)

    monkeypatch.setattr(decode, "_generate", generate)
    assert decode._seconds_of_tokens(None, DecodePoint("tiny", 8, True, 3, 40, "cpu")) == 1.0


@pytest.mark.parametrize("change", ["bytes", "number"])
def test_a_damaged_file_is_not_resumed(tmp_path, change):
    file, where = tmp_path / "lqr.csv", stamp()
    row = line(Point("plan", "trained", 1, 1), Outcome("ok"), where)
    write([row | ({"horizon": "x"} if change == "number" else {})], file)
    if change == "bytes":
        file.write_bytes(b"\xff" + file.read_bytes())
    with raises("damaged", str(file)):
        measured(file, where)


def test_solvers_stand_beside_each_other_in_a_table(tmp_path):
    """A line for each kind and number of problems; what was not measured stays empty."""
    names = ["provider", "problems", "n", "m", "horizon", "forward_ms", "both_ms", "error_u", "error_gradient"]
    made = [["solve", 64, 12, 4, 50, 1.5, 3.25, "1e-07", "2e-07"], ["osqp", 64, 12, 4, 50, 120, "", "1e-15", ""]]
    made.append(["solve", 1, 12, 4, 20, 0.5, 1, "1e-07", "2e-07"])
    where = {"cpu": "a CPU", "gpu": "a GPU", "version_torch": "2.13", "commit": "abc", "date": "today"}
    for device in ("cpu", "cuda"):
        rows = [dict(zip(names, row, strict=True)) | where | {"device": device} for row in made]
        write(rows, tmp_path / f"dense-{device}.csv")
    table = speed_table("dense-cpu", tmp_path).splitlines()
    assert table[0] == "| | problems | `solve` | `osqp` |"
    assert "| 64 | 1.5 ms / 3.25 ms <br> 1e-07 / 2e-07 | 120 ms / - <br> 1e-15 |" in table[2]
    assert table[3] == "| n = 12, m = 4, T = 20 | 1 | 0.5 ms / 1 ms <br> 1e-07 / 2e-07 |  |"
    assert table[5].startswith("a CPU; torch 2.13, commit abc, today. Command: `python -m benchmarks dense`")
    on_gpu = speed_table("dense-cuda", tmp_path).splitlines()
    assert on_gpu[:5] == table[:5]
    assert on_gpu[5].startswith("a GPU; ")
    assert on_gpu[5].endswith("Command: `python -m benchmarks dense --device cuda --problems 64 --problems 1`.")


def test_forms_stand_beside_each_other_in_a_table(tmp_path):
    """A form that was not measured at a shape, or ran out of memory, leaves no figures."""
    shape = {"problems": "1024", "horizon": "64", "n": "16", "m": "16", "regime": "trained", "gpu": "a GPU"}
    where = {"version_torch": "2.11", "commit": "abc", "date": "today"}
    figures = {"status": "ok", "peak_mb": "24.4", "forward_ms": "0.154", "both_ms": "0.418"}
    failed = dict.fromkeys(figures, "") | {"status": "out of memory"}
    rows = [{"form": "plain", **shape, **figures}, {"form": "whole", **shape, **failed}]
    rows.append({"form": "whole", **shape, "horizon": "8", **figures, "both_ms": "0.1"})
    write([row | where for row in rows], tmp_path / "forms.csv")
    table = speed_table("forms", tmp_path).splitlines()
    assert table[0] == "| | `plain` | `whole` |"
    head = "| 1,024 problems, T = 64, n = 16, m = 16 "
    assert table[2] == head + "| 0.154 ms / 0.418 ms <br> 24 MB | out of memory |"
    assert table[3] == head.replace("64", "8") + "|  | 0.154 ms / 0.1 ms <br> 24 MB |"
    assert "regime trained. a GPU; torch 2.11, commits abc, today. Command: `ttcnet bench forms`." in table[5]
