"""Tables are written from results, and only from results that can be compared."""

import json
import shutil

from benchmarks.tables import decode_rows
from docs.tables import pages, update
from experiments.lqr_in_a_token.table import token_table
from experiments.math_small.table import math_small_table
from experiments.overview import overview_table, picture, tasks
from experiments.sudoku.table import horizons_table, shipped_table, sudoku_table
from experiments.where_planning_pays.table import pays_table
from tests.raising import raises


def test_the_tables_are_those_of_the_results():
    for page in pages():
        assert update(page, write=False) == [], page


def test_a_stale_table_is_found_and_mended(tmp_path):
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- table: lqr-cpu -->\nold\n<!-- end -->\nafter\n")
    assert update(document, write=True) == ["lqr-cpu"]
    assert update(document, write=False) == []
    assert document.read_text().startswith("before\n<!-- table: lqr-cpu -->\n| problems | T | `plan` |")
    assert document.read_text().endswith("<!-- end -->\nafter\n")


def runs(folder, **changes):
    """Two made-up runs of an architecture."""
    for seed, rate in ((0, 0.5), (1, 0.7)):
        run = folder / f"ttc-{seed}"
        run.mkdir(parents=True)
        config = dict(
            architecture="ttc", steps=10, batch=4, lr=1.0, dropout=0.0, augmentation="none", layers=2, width=8, ema=0.9
        )
        (run / "config.json").write_text(json.dumps(config | (changes if seed else {})))
        score = dict(rate=rate, low=rate - 0.1, high=rate + 0.1, right=1, total=1000)
        results = [dict(mode=mode, boards=score, cells=score) for mode in ("single", "multi")]
        facts = dict(
            machine={"gpu": "a GPU"}, versions={"torch": "2"}, commit="abc", command="python -m experiments.sudoku"
        )
        (run / "metrics.json").write_text(json.dumps(dict(run=f"ttc-{seed}", results=results) | facts))


def test_the_sudoku_table_has_means_ranges_and_the_papers_figures(tmp_path):
    runs(tmp_path)
    text = sudoku_table(tmp_path)
    assert "| TTC-Net | 2 | 60.0 (50.0 to 70.0) |" in text
    assert "| *TTC-Net, paper* | | 61.3 | 90.2 | 93.4 | 97.3 |" in text
    assert "10 steps of 4 boards" in text


def test_the_table_of_horizons_has_intervals(tmp_path):
    file = tmp_path / "horizons.json"
    each = [(0, "single", 0.5), (0, "multi", 0.6), (8, "single", 0.7), (8, "multi", 0.8)]

    def rate(value):
        return dict(rate=value, low=value - 0.1, high=value + 0.1)

    results = [dict(horizon=T, mode=mode, boards=rate(value), cells=rate(value)) for T, mode, value in each]
    facts = dict(machine={"gpu": "a GPU"}, versions={"torch": "2"}, commit="abc", command="ttcnet sudoku eval")
    file.write_text(json.dumps(dict(boards=1000, results=results) | facts))
    text = horizons_table(file)
    one, many = "50.0 (40.0 to 60.0)", "60.0 (50.0 to 70.0)"
    assert f"| no plans | {one} | {one} | {many} | {many} |" in text
    assert "\n| 8 | 70.0 (60.0 to 80.0) |" in text


def test_the_table_of_the_shipped_model_has_test_boards_by_the_evaluation_and_hard_ones_by_the_pilot(tmp_path):
    (tmp_path / "looped").mkdir()
    (tmp_path / "shipped").mkdir()
    lines = [f"EVAL carried32 {data} loops 64 T None single: boards 12.5 cells 90.0" for data in ("hard", "test")]
    (tmp_path / "looped" / "pilot.txt").write_text("\n".join(lines) + "\n")
    results = [dict(mode=mode, loops=64, boards={"rate": rate}) for mode, rate in (("single", 0.75), ("multi", 0.875))]
    facts = dict(boards=1000, machine={"gpu": "a GPU"}, versions={"torch": "2"})
    (tmp_path / "shipped" / "test.json").write_text(json.dumps(dict(results=results) | facts))
    text = shipped_table(tmp_path)
    assert "| hard boards, one pass | 12.5 |" in text
    assert "| test boards, one pass | 75.0 |" in text
    assert "| test boards, cell by cell | 87.5 |" in text


def test_the_sudoku_table_refuses_runs_that_cannot_be_compared(tmp_path):
    for field in ("steps", "ema", "ttc_heads"):  # the last is one that the others do not name
        runs(tmp_path / field, **{field: 0.5})
        with raises("settings-changed", "ttc-1", f"^{field} = "):
            sudoku_table(tmp_path / field)
    with raises("no-data", str(tmp_path / "nowhere")):
        sudoku_table(tmp_path / "nowhere")


def test_the_decoding_table_has_the_papers_figures():
    measured = ((0, 50, 1.0), (8, 40, 1.25))
    rows = [
        dict(horizon=str(T), compiled="False", tokens_per_second=str(speed), slower=str(slower))
        for T, speed, slower in measured
    ]
    one, two = decode_rows(rows)
    assert one == {"T": "no TTC", "eager, tokens/s": "50.0", "paper, tokens/s": "47.2"}
    assert two["eager, tokens/s"] == "40.0 (+25.0 % time)"
    assert two["paper, tokens/s"] == "45.8 (+3.0 % time)"


def small_runs(folder, task="math", changes=None):
    """Made-up runs of the small table: a run that is better than others is better at all horizons and on all
    problems."""
    asked, given = ("gsm8k", "math500"), ("gsm8k", "math-held-out")
    if task == "countdown":
        asked = given = ("countdown",)
    gains = {"base": -0.5, "full-0": 0.0, "full-1": 0.02, "gdn-0": 0.01, "ttc-0": 0.04, "ttc-2": 0.02, "ttc-4-1": 0.1}
    for name, gain in gains.items():
        run = folder / task / name
        run.mkdir(parents=True)
        config = dict(model="m", data="rows", lr=1e-3, batch=96, epochs=2, max_length=64, warm_up=0.1, weight_decay=0.1)
        seed = int(name.rpartition("-")[2]) if name != "base" else 0
        config |= dict(trained=name != "base", seed=seed) | (changes or {}).get(name, {})
        horizons = [0, 8, 16] if name.startswith("ttc") else [None]
        score = dict(right=1, total=200, rate=0.1 + gain / 2, low=0.05, high=0.2, ended=1.0)
        nats = dict(mean=gain - 1, low=gain - 1.5, high=gain - 0.5)
        accuracy = [score | dict(benchmark=each, horizon=steps) for steps in horizons for each in asked]
        likely = dict(solutions=4, tokens=40, per_token=nats)
        likelihood = [likely | dict(benchmark=each, horizon=steps) for steps in horizons for each in given]
        facts = dict(machine={"gpu": "a GPU"}, versions={"torch": "2", "transformers": "5"}, commit="abc", command="c")
        metrics = dict(run=name, tokens=3e6, accuracy=accuracy, likelihood=likelihood) | facts
        sums = [10 * (gain - 1) * hard for hard in (1, 2, 3, 4)]
        solutions = {each: dict(tokens=[10, 20, 30, 40], sums=sums) for each in given}
        for file, content in (("config", config), ("metrics", metrics), ("solutions", solutions)):
            (run / f"{file}.json").write_text(json.dumps(content))
    return folder


def test_the_small_tables_have_seeds_intervals_and_differences(tmp_path):
    small_runs(tmp_path)
    text = math_small_table("math", tmp_path)
    assert "| Base model |  | -15.0 <br> (5.0 to 20.0) | -15.0 <br> (5.0 to 20.0) | 25.0 | -1.5000 |" in text
    assert "| Full fine-tuning | 2 | 10.5 <br> (10.0 to 11.0) |" in text
    assert "| TTC-Net | 2 | 11.5 <br> (11.0 to 12.0) | 11.5 <br> (11.0 to 12.0) | 52.8 | -0.9700 |" in text
    assert "| +40.0 <br> (+40.0 to +40.0) | +40.0 <br> (+40.0 to +40.0) |" in text  # of seed 0, which both have
    assert "| + GDN | 1 | 10.5 <br> (5.0 to 20.0) |" in text
    assert "+ Mamba" not in text
    assert "200 of gsm8k, 200 of math500" in text
    assert "3.0 million tokens in 2 epochs, 96 rows a step, learning rate 0.001" in text
    horizons = math_small_table("math-horizons", tmp_path)
    assert [line.split(" | ")[0] for line in horizons.splitlines()[2:5]] == ["| 0", "| 8", "| 16"]
    ablations = math_small_table("math-ablations", tmp_path)
    assert "| 4:1 | 1 | 15.0 <br> (5.0 to 20.0) |" in ablations
    assert "| 52.8 / 53.6 |" in ablations
    assert "| 4:1 | 1 " in next(line for line in ablations.splitlines() if "| +80.0 <br>" in line)  # of seed 1
    assert "| TTC-Net | 2 | 11.5 <br> (11.0 to 12.0) |" in math_small_table(
        "countdown", small_runs(tmp_path, "countdown")
    )


def test_the_small_table_of_learning_rates(tmp_path):
    assert math_small_table("math-rates", tmp_path).startswith(
        "*Not run yet: `python -m experiments.math_small math --base"
    )
    small_runs(tmp_path)
    for rate in ("1e-2", "3e-3"):
        changes = {name: {"inserted_lr": float(rate)} for name in ("gdn-0", "ttc-0", "ttc-2", "ttc-4-1")}
        small_runs(tmp_path / "math-rates", changes=changes).joinpath("math").rename(tmp_path / "math-rates" / rate)
        shutil.rmtree(tmp_path / "math-rates" / rate / "full-0")
    lines = [line.split(" | ")[:4] for line in math_small_table("math-rates", tmp_path).splitlines()]
    accuracy = "11.5 <br> (11.0 to 12.0)"
    rates = ("as the rest", "0.003", "0.01")
    assert [line for line in lines if line[0] == "| TTC-Net"] == [["| TTC-Net", rate, "2", accuracy] for rate in rates]
    assert [line[:3] for line in lines if line[0] == "| Full fine-tuning"] == [["| Full fine-tuning", "", "2"]]
    assert len(lines) == 2 + 1 + 2 * 3 + 2
    assert "learning rate 0.001, of the inserted layers 0.003 or 0.01." in math_small_table("math-rates", tmp_path)
    assert "learning rate 0.001. " in math_small_table("math-ablations", tmp_path)
    (tmp_path / "math" / "ttc-4-1" / "metrics.json").unlink()
    assert "learning rate 0.001, of the inserted layers 0.003. " in math_small_table("math-ablations", tmp_path)


def test_the_small_tables_of_gains(tmp_path):
    for view in ("gains", "plans"):
        assert "math-gains/4 --action-gain 4`" in math_small_table(f"math-{view}", tmp_path)
    ttc = ("ttc-0", "ttc-2", "ttc-4-1")
    plain = {name: {"adapter": {"every": 8}, "inserted_lr": 1e-3} for name in ttc}  # that of the rest
    small_runs(tmp_path, changes=plain)
    fast = {name: {"adapter": {"every": 8}, "inserted_lr": 3e-3} for name in ttc}
    small_runs(tmp_path / "math-rates", changes=fast).joinpath("math").rename(tmp_path / "math-rates" / "3e-3")
    for gain in ("16", "4"):
        loud = {name: {"adapter": {"every": 8, "action_gain": float(gain)}} for name in ttc}
        small_runs(tmp_path / "math-gains", changes=loud).joinpath("math").rename(tmp_path / "math-gains" / gain)
    shutil.rmtree(tmp_path / "math-gains" / "4" / "ttc-2")
    path = tmp_path / "math-gains" / "4" / "ttc-0" / "metrics.json"
    metrics = json.loads(path.read_text())
    for each in metrics["likelihood"]:
        each["per_token"]["mean"] += 1e-3 * each["horizon"]
    path.write_text(json.dumps(metrics))
    text = math_small_table("math-gains", tmp_path)
    rows = [line.split(" | ")[:3] for line in text.splitlines()[2:6]]
    names = [["| Full fine-tuning", "", "2"]] + [
        ["| TTC-Net", gain, n] for gain, n in zip(["1", "4", "16"], "212", strict=True)
    ]
    assert rows == names
    assert "learning rate 0.001. " in text
    lines = math_small_table("math-plans", tmp_path).splitlines()
    assert (
        lines[0]
        == "| T | GSM8K, gain 1 | GSM8K, gain 4 | GSM8K, gain 16 | MATH, gain 1 | MATH, gain 4 | MATH, gain 16 |"
    )
    assert lines[2].startswith("| 8 | +0.0 <br> (+0.0 to +0.0) | +8.0 | +0.0 <br> (+0.0 to +0.0) |")
    assert lines[3].startswith("| 16 | +0.0 <br> (+0.0 to +0.0) | +16.0 |")


def test_the_small_tables_of_gains_refuse_runs_that_cannot_be_compared(tmp_path):
    ttc = ("ttc-0", "ttc-2", "ttc-4-1")
    small_runs(tmp_path, changes={name: {"adapter": {}} for name in ttc})
    loud = {name: {"adapter": {"action_gain": 4.0}} for name in ttc}
    small_runs(tmp_path / "math-gains", changes=loud).joinpath("math").rename(tmp_path / "math-gains" / "4")
    shutil.copytree(tmp_path / "math-gains" / "4" / "ttc-0", tmp_path / "math-gains" / "5" / "ttc-0")
    for view in ("gains", "plans"):
        with raises("conflict", "ttc-0", "seed 0"):
            math_small_table(f"math-{view}", tmp_path)
    shutil.rmtree(tmp_path / "math-gains" / "5")
    assert "| TTC-Net | 4 | 2 |" in math_small_table("math-gains", tmp_path)
    shutil.rmtree(tmp_path / "math" / "ttc-0")
    shutil.rmtree(tmp_path / "math" / "ttc-2")
    assert math_small_table("math-plans", tmp_path).startswith("| T | GSM8K, gain 4 | MATH, gain 4 |")
    for name in ("full-0", "full-1"):
        shutil.rmtree(tmp_path / "math" / name)
    assert math_small_table("math-gains", tmp_path).startswith("*Not run yet")
    small_runs(tmp_path / "others", changes={"full-1": {"epochs": 9}})
    shutil.move(tmp_path / "others" / "math" / "full-1", tmp_path / "math" / "full-1")
    with raises("settings-changed", None, "^epochs = "):
        math_small_table("math-gains", tmp_path)


def test_the_small_tables_refuse_runs_that_cannot_be_compared(tmp_path):
    small_runs(tmp_path, changes={"ttc-0": {"lr": 1.0}})
    with raises("settings-changed", "ttc-0", "^lr = "):
        math_small_table("math", tmp_path)
    assert math_small_table("countdown", tmp_path).startswith(
        "*Not run yet: `python -m experiments.math_small countdown"
    )


def token_runs(folder, **changes):
    """Made-up runs of LQR in a token: a layer, an MLP, and a switch that halves the unexplained variance."""
    for arm, values in (
        ("ttc", [0.2, 0.3]),
        ("mlp", [0.4, 0.6]),
        ("terminal-none", [0.1, 0.15]),
        ("target", [0.1, 0.4]),
    ):
        run = folder / "dense" / arm
        run.mkdir(parents=True)
        config = dict(task="dense", arm=arm, steps=10, batch=4, seeds=2, rates=[0.1], judged=1000)
        (run / "config.json").write_text(json.dumps(config | (changes if arm == "mlp" else {})))
        results = [
            dict(tokens=kind, horizon=T, unexplained=[value * (2 if T == 1 else 1) for value in values])
            for kind in ("test", "held out")
            for T in ((8,) if arm == "mlp" else (1, 2, 4, 8, 16, 32))
        ]
        facts = dict(
            machine={"gpu": "a GPU"}, versions={"torch": "2"}, commit="abc", command="python -m recipes --out x"
        )
        found = dict(run=f"dense/{arm}", parameters=1234, rate=0.1, results=results)
        (run / "metrics.json").write_text(json.dumps(found | facts))


def test_the_tables_of_lqr_in_a_token(tmp_path):
    token_runs(tmp_path)
    text = token_table("dense", tmp_path)
    assert "| TTC | 1,234 | 0.1 | 0.500 ± 0.100 | 0.250 ± 0.050 |" in text
    assert "| MLP of its size | 1,234 | 0.1 |  |  |  | 0.500 ± 0.100 |  |  | 0.500 ± 0.100 |" in text
    assert "10 steps of 4 tokens" in text
    text = token_table("switches", tmp_path)
    assert "| no terminal cost | **-50 ± 20 %** | **-50 ± 20 %** |" in text
    assert "| a target for the state | +0 ± 80 % |" in text
    token_runs(tmp_path / "odd", steps=11)
    with raises("settings-changed", "dense/mlp", "^steps = "):
        token_table("dense", tmp_path / "odd")
    assert "Not run yet" in token_table("tracking", tmp_path)


def imitations(folder, system, arm, number, left, knob=(), **changes):
    """A made-up run of where planning pays, with three seeds."""
    run = folder / system / arm / str(number)
    run.mkdir(parents=True)
    config = dict(task=system, arm=arm, rates=[0.1], judged=4, seeds=3, pool=number, steps=5, batch=2)
    (run / "config.json").write_text(json.dumps(config | changes))
    names = [
        "trained",
        "between",
        "48",
        "64",
        *(() if arm in ("ttc", "fixed-scale") else ("48, told 32", "64, told 32")),
    ]
    values = [left - 0.01, left, left + 0.01]
    found = dict(
        run=f"{system}/{arm}/{number}", parameters=1234, rate=0.1, machine={"cpu": "a CPU"}, versions={"torch": "2"},
        commit="abc", command="python -m experiments.where_planning_pays",
        unexplained=[dict(name=n, systems=kind, values=values) for n in names for kind in ("seen", "held out")],
        knob=[dict(planner=32, own=T, values=[x / max(T, 1) for x in values]) for T in knob],
        episodes=[
            {"horizon": T, "systems": kind, "cost": [2, 3, 4], "planner": {"cost": 2}, "return": [1, 1, 0.7]}
            for T in (8, 16, 32, 64) for kind in ("seen", "held out")
        ]
        + [
            {"horizon": 64, "systems": kind, "told": 32, "cost": [2, 2, 2], "planner": {"cost": 2}, "return": [1, 1, 1]}
            for kind in ("seen", "held out")
        ],
    )  # fmt: skip
    (run / "metrics.json").write_text(json.dumps(found))


def test_where_planning_pays_is_answered_by_the_rules_of_its_page(tmp_path):
    assert "Not run yet" in pays_table("answers", tmp_path)
    every = (0, 1, 2, 4, 8, 16, 32, 64)
    for system, left in (("dense", 0.2), ("cart-pole", 0.295)):
        imitations(tmp_path, system, "fixed-scale", 64, left, every)
        imitations(tmp_path, system, "mlp", 64, 0.4)
        imitations(tmp_path, system, "mlp-2.5", 64, 0.3 if system == "dense" else 0.29)
    imitations(tmp_path, "cart-pole", "fixed-scale", 20, 0.28, every)
    text = pays_table("answers", tmp_path)
    assert "| dense: TTC, actions at a fixed scale, 64 demonstrations | **yes**: -50 ± 0 %, -33 ± 0 % |" in text
    assert "| cart-pole: TTC, actions at a fixed scale, 64 demonstrations | no: -26 ± 0 %, +2 ± 0 % |" in text
    assert "| **yes**: -30 ± 0 %, -3 ± 0 % | not run |" in text  # with a third of the demonstrations
    assert "**Use it for** systems that are described by full matrices" in text
    assert "**Do not plan ahead with it for** a cart with a pole" in text
    assert "looking ahead" not in text
    imitations(tmp_path, "dense", "one", 64, 0.1)
    assert "the best layer has 0.200, and 0.100 with one step, told T as a feature." in pays_table("answers", tmp_path)
    assert "| 1,234 | 0.1 | 0.200 ± 0.006 |" in pays_table("dense", tmp_path)
    assert "| MLP of its size, told T = 32 at most | | |  |  | 0.400 ± 0.006 |" in pays_table("dense", tmp_path)
    assert "| 0.200 ± 0.006 | 0.200 ± 0.006 | 0.100 ± 0.003 | 0.050 ± 0.001 |" in pays_table("knob", tmp_path)
    assert "| 1.50 ± 0.29 (90 %) |" in pays_table("acting", tmp_path)
    assert "told T = 32 at most | 64 |  |  |  | 1.00 ± 0.00 (100 %) |" in pays_table("acting", tmp_path)
    assert "| MLP of its size |  | 0.400 ± 0.006 |" in pays_table("numbers", tmp_path)
    assert "Not run yet" in pays_table("pendulums", tmp_path)
    imitations(tmp_path / "third", "pendulums", "mlp", 64, 0.4)
    assert "| MLP of its size | 1,234 | 0.1 | 0.400 ± 0.006 |" in pays_table("third-pendulums", tmp_path)
    assert "Not run yet" in pays_table("pendulums", tmp_path)
    imitations(tmp_path, "dense", "ttc", 64, 0.2, every, steps=6)
    with raises("settings-changed", "dense/ttc/64", "^steps = "):
        pays_table("dense", tmp_path)


def test_arms_of_mujoco_are_answered_by_the_rules_of_their_page(tmp_path):
    assert "Not run yet" in pays_table("mujoco", tmp_path)
    assert "Not run yet" in pays_table("mujoco-answers", tmp_path)
    for arm, number, left, paid in (
        ("system", 10_000, 0.2, 2), ("mlp", 10_000, 0.4, 3), ("mlp-2.5", 10_000, 0.3, 2), ("mlp", 30_000, 0.2, 3),
        ("mlp-2.5", 30_000, 0.19, 3),
    ):  # fmt: skip
        imitations(tmp_path / "mujoco", "arms", arm, number, left, (0, 1, 8) if arm == "system" else (), episodes=4)
        file = tmp_path / "mujoco" / "arms" / arm / str(number) / "metrics.json"
        found = json.loads(file.read_text())
        found["versions"]["mujoco"] = "4"
        more = [each | {"systems": "weights"} for each in found["unexplained"] if each["systems"] == "seen"]
        found["unexplained"] += more
        for each in found["episodes"]:
            each["cost"] = [2 * paid] * 3
        found["episodes"] += [each | {"systems": "weights"} for each in found["episodes"] if each["systems"] == "seen"]
        file.write_text(json.dumps(found))
    text = pays_table("mujoco", tmp_path)
    assert "| arms: TTC that writes systems, 10,000 demonstrations | 1,234 | 0.1 | 0.200 ± 0.006 |" in text
    assert "| 0.200 ± 0.006 | 0.025 ± 0.001 | 2.00 ± 0.00 |" in text  # its own horizon, then acting
    (line,) = (line for line in pays_table("mujoco-answers", tmp_path).splitlines() if line.startswith("| arms "))
    cells = line.strip("| ").split(" | ")
    assert cells[1] == "**yes**: -50 ± 0 %, -33 ± 0 %"
    assert cells[6] == "no: +0 ± 0 %, +5 ± 0 %"  # not above the smaller one, above the larger one
    assert cells[7] == "**yes**: -33 ± 0 %, -33 ± 0 %"
    assert cells[8] == "not run"
    assert cells[9] == "no: -33 ± 0 %, +0 ± 0 %"


def readings(folder, task, arm, left, knob=()):
    """A made-up run of in-context control, with three seeds."""
    run = folder / task / arm / "run"
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(dict(task=task, arm=arm, rates=[0.1], seeds=3)))
    place, values = dict(systems="seen", length=16), [left - 0.01, left, left + 0.01]
    found = dict(
        run=f"{task}/{arm}", parameters=1234, rate=0.1, unexplained=[dict(name="trained", values=values) | place],
        acting=[dict(horizon=32, values=[left / 2] * 3) | place],
        knob=[dict(own=T, values=[x / max(T, 1) for x in values]) for T in knob],
    )  # fmt: skip
    (run / "metrics.json").write_text(json.dumps(found))


def test_the_overview_has_the_newest_round_that_is_whole(tmp_path):
    assert overview_table("uses", tmp_path) == "*Not run yet.*\n"
    every = (0, 1, 2, 4, 8, 16, 32, 64)
    pays, context = (tmp_path / each / "results" for each in ("where_planning_pays", "in_context_control"))
    for arm, left, number in (("system", 0.2, 10_000), ("mlp", 0.4, 10_000), ("mlp-2.5", 0.3, 10_000)):
        imitations(pays / "mujoco", "arms", arm, number, left, every if arm == "system" else ())
        readings(context / "second", "told", arm, left, every if arm == "system" else ())
    imitations(pays / "mujoco", "arms", "mlp", 30_000, 0.1)  # no others have so many
    imitations(pays / "mujoco-longer", "arms", "system", 10_000, 0.01, every)  # a round without MLPs
    readings(context / "third", "told", "mlp", 0.01)
    lines = overview_table("uses", tmp_path).splitlines()[2:]
    assert lines == [
        "| linear systems with noise, given their matrices | 0.200 | 0.400 | 0.300 |  | 1.10 | 1.20 | 1.15 |  |",
        "| robot arms, given their matrices | 0.200 | 0.400 | 0.300 |  | 1.50 | 1.50 | 1.50 |  |",
    ]
    imitations(pays / "mujoco", "arms", "system-one", 10_000, 0.15)
    row = overview_table("tasks", tmp_path).splitlines()[-1]
    assert "| **yes**: -50 ± 0 %, -33 ± 0 % | 0.200 ± 0.006 | 0.400 ± 0.006 | 0.300 ± 0.006 | 0.150 ± 0.006 |" in row
    assert "| 0.200 ± 0.006 | 0.025 ± 0.001 | 1.50 |" in row
    text = [each.get_text() for axes in picture(tasks(tmp_path)).axes for each in axes.texts]
    assert text == ["67 %", "67 %", "50 %"]
