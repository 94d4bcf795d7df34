"""`%%tpu_profile` cells behave as plain cells do, and end with one profile."""

import re
from pathlib import Path

import pytest
from jax.profiler import ProfileData
from jupyter_client.manager import start_new_kernel

import torchtpu.profiler

MODES = ["strict", "debug", "defer_and_fuse"]
STEPS = (
    "net = torch.nn.Linear(4, 4).to('tpu')",
    "optimizer = torch.optim.SGD(net.parameters())",
    "def step():",
    "    optimizer.zero_grad()",
    "    net(torch.ones(2, 4, device='tpu')).sum().backward()",
    "    optimizer.step()",
)


def runs(logdir: str | Path = "tpu_profiles") -> list[Path]:
    return sorted(Path(logdir).glob("plugins/profile/*/*.xplane.pb"))


@pytest.fixture(autouse=True)
def none_left_open():
    yield
    assert torchtpu.profiler.capture._open is None


@pytest.fixture(params=MODES)
def mode(request) -> str:
    return request.param


def test_it_is_a_cell_and_ends_with_its_profile(notebook, mode):
    notebook.run(*STEPS)
    result = notebook.run(f"%%tpu_profile --mode {mode} --logdir 'my runs'", "for _ in range(3): step()", "41 + 1")
    assert result.result == 42
    assert notebook.report.startswith("torchtpu profile 2")
    assert "3 steps" in notebook.report.splitlines()[0]
    assert "TensorBoard will show: trace_viewer, overview_page" in notebook.report
    (run,) = runs("my runs")
    assert str(run) in notebook.report.replace("\n", "")
    p = torchtpu.profiler.last()
    assert p.run == run.parent.name
    assert p.run.endswith(f"In_{result.execution_count}")
    assert p.report.mode == mode
    assert {o.line.where.partition(",")[0] for o in p.ops if o.line} <= {"In[3]", "In[4]"}
    notebook.run("%tpu_mode")
    assert notebook.printed == "strict\n"


def test_without_a_mode_the_one_that_is_set_is_used(notebook):
    notebook.run("%tpu_mode defer_and_fuse")
    notebook.run("%%tpu_profile", "torch.ones(3, device='tpu').sum().item()")
    assert torchtpu.profiler.last().report.mode == "defer_and_fuse"
    assert len(runs()) == 1


def test_text_in_the_cell_is_left_as_it_is(notebook):
    notebook.run("%%tpu_profile", 's = """', "%time not a magic", "!ls {s}", '"""')
    assert notebook.shell.user_ns["s"] == "\n%time not a magic\n!ls {s}\n"


def test_await_works(notebook, mode):
    body = ["import asyncio", "async def f(x):", "    await asyncio.sleep(0)", "    return (x + 1).sum().item()"]
    result = notebook.run(f"%%tpu_profile --mode {mode}", *body, "await f(torch.ones(3, device='tpu'))")
    assert result.result == 6
    assert torchtpu.profiler.last().report.syncs


def test_an_error_fails_the_cell_and_what_ran_is_written(notebook, mode):
    result = notebook.run(f"%%tpu_profile --mode {mode}", "y = torch.ones(3, device='tpu') * 2", "1 / 0", "after = 1")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert "----> 3 1 / 0" in notebook.printed
    assert f"      1 # %%tpu_profile --mode {mode}\n" in notebook.printed
    assert "after" not in notebook.shell.user_ns
    assert len(notebook.reports) == len(runs()) == 1
    assert torchtpu.profiler.last().report.runs
    assert notebook.run("y.tolist()").result == [2.0, 2.0, 2.0]
    assert notebook.run("%%tpu_profile", "1").success


def test_a_syntax_error_captures_nothing(notebook):
    error = notebook.run("%%tpu_profile", "x = (").error_before_exec
    assert isinstance(error, SyntaxError)
    assert notebook.reports == runs() == []


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit", "GeneratorExit"])
def test_every_way_out_ends_it(notebook, error):
    notebook.run("%%tpu_profile --mode defer_and_fuse", "x = torch.ones(3, device='tpu') + 1", f"raise {error}()")
    assert len(runs()) == 1
    notebook.run("%tpu_mode")
    assert notebook.printed == "strict\n"


def test_an_interrupt_in_the_middle_of_a_loop(notebook, mode):
    notebook.run(*STEPS, "import os, signal, threading, time")
    warm = ["for _ in range(3): step()", "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()"]
    loop = ["for _ in range(2000):", "    step()", "    time.sleep(0.01)"]
    result = notebook.run(f"%%tpu_profile --mode {mode}", *warm, *loop)
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert len(notebook.reports) == len(runs()) == 1
    assert "! Ended by KeyboardInterrupt" in notebook.report
    assert len(torchtpu.profiler.last().steps) >= 3
    assert notebook.run(f"%%tpu_profile --mode {mode}", "step()").success
    assert len(runs()) == 2


def test_an_empty_cell(notebook):
    assert notebook.run("%%tpu_profile").success
    assert "TensorBoard will show" in notebook.report
    assert torchtpu.profiler.last().report.runs == 0


def test_a_cell_that_does_not_use_the_device(notebook):
    assert notebook.run("%%tpu_profile", "sum(range(10))").result == 45
    said = notebook.report
    assert "empty: op_profile: nothing ran on the device inside the capture" in said
    assert "0 kernels" in said


def test_it_stops_after_so_many_steps_and_the_cell_goes_on(notebook, mode):
    notebook.run(*STEPS)
    result = notebook.run(f"%%tpu_profile --mode {mode} --steps 3", "for k in range(20): step()", "k")
    assert result.result == 19
    assert len(torchtpu.profiler.last().steps) == 3


def test_fewer_steps_than_asked_for(notebook):
    notebook.run(*STEPS)
    assert notebook.run("%%tpu_profile --steps 50", "step()").success
    assert len(torchtpu.profiler.last().steps) == 1


def test_python_calls_are_traced_if_asked_for(notebook):
    from jax.profiler import ProfileData

    notebook.run(*STEPS)
    notebook.run("%%tpu_profile --logdir plain", "step()")
    notebook.run("%%tpu_profile --logdir traced --python", "step()")

    def calls(logdir: str) -> set[str]:
        planes = ProfileData.from_file(str(runs(logdir)[0])).planes
        return {e.name for plane in planes for line in plane.lines for e in line.events if " step" in e.name}

    assert any(re.search(r"\bstep\b", name) for name in calls("traced"))
    assert not any(name.startswith("$") for name in calls("plain"))


@pytest.mark.parametrize("below", ["%%time", "%%capture out"])
def test_other_magics_below(notebook, below):
    assert notebook.run("%%tpu_profile", "", below, "x = torch.ones(3, device='tpu').sum().item()").success
    assert notebook.shell.user_ns["x"] == 3.0
    assert notebook.report.startswith("torchtpu profile ")


def test_time_above(notebook):
    result = notebook.run("%%time", "%%tpu_profile", "41 + 1")
    assert result.result == 42
    assert "Wall time" in notebook.printed
    assert notebook.report.startswith("torchtpu profile ")


@pytest.mark.parametrize("magics", [("%%tpu_mode debug", "%%tpu_profile"), ("%%tpu_profile", "%%tpu_mode debug")])
def test_a_mode_above_or_below_shows_both(notebook, magics):
    assert notebook.run(*magics, "torch.ones(3, device='tpu').sum().item()").result == 3.0
    firsts = [data["text/plain"].split()[1] for data in notebook.reports]
    assert sorted(firsts) == ["debug:", "profile"]
    assert torchtpu.profiler.last().report.runs


def test_a_watch_inside_and_around(notebook):
    assert notebook.run("%%tpu_profile", "with torchtpu.watch() as r: torch.ones(3, device='tpu').sum().item()").success
    assert notebook.run("r.runs == torchtpu.profiler.last().report.runs > 0").result is True


def test_a_profile_inside_a_profiled_cell_is_refused_and_the_outer_one_goes_on(notebook):
    result = notebook.run("%%tpu_profile", "with torchtpu.profile('inner'): pass")
    assert isinstance(result.error_in_exec, torchtpu.profiler.ProfileOpenError)
    assert len(runs()) == 1
    assert not Path("inner").exists()


def test_two_for_one_cell_are_refused(notebook):
    result = notebook.run("%%tpu_profile", "%%tpu_profile --python", "ran = 1")
    assert not result.success
    assert "ran" not in notebook.shell.user_ns
    assert notebook.run("%%tpu_profile", "1").success


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--mode nonsense", "UsageError: .*nonsense"),
        ("--mode strickt", "[Dd]id you mean.*strict"),
        ("--steps 0", "steps=0: a profile has at least one step"),
        ("--steps many", "argument --steps: invalid int value: 'many'"),
        ("--nonsense", "unrecognized arguments: --nonsense"),
        ("--logdir file.txt", "profiles go to a directory, and .*file.txt is a file"),
    ],
)
def test_bad_options_do_not_run_the_cell(notebook, options, said):
    Path("file.txt").write_text("")
    assert not notebook.run(f"%%tpu_profile {options}", "x = 1").success
    assert re.search(said, notebook.printed), notebook.printed
    assert "x" not in notebook.shell.user_ns
    assert runs() == []
    notebook.run("%tpu_mode")
    assert notebook.printed == "strict\n"


def test_on_a_line_it_says_where_it_belongs(notebook):
    assert not notebook.run("x = 1", "%tpu_profile").success
    assert "write %%tpu_profile on its first line" in notebook.printed


def test_while_a_cell_is_typed_it_is_not_complete(notebook):
    manager = notebook.shell.input_transformer_manager
    assert manager.check_complete("%%tpu_profile --steps 3\nx = 1")[0] == "incomplete"


def test_two_profiles_of_a_second_are_two_runs(notebook):
    for _ in range(3):
        notebook.run("%%tpu_profile", "pass", silent=True)
    assert len(runs()) == 3


def test_what_is_shown_survives_in_a_saved_notebook(notebook):
    notebook.run(*STEPS)
    notebook.run("%%tpu_profile", "step()")
    (data,) = notebook.reports
    assert set(data) == {"text/html", "text/plain"}
    assert "<script" not in data["text/html"]
    assert len(data["text/html"]) < 200_000


@pytest.mark.slow
def test_two_notebooks_profile_into_one_log_directory_at_once(tmp_path):
    started = [start_new_kernel(cwd=str(tmp_path)) for _ in range(2)]
    try:
        clients = [client for _, client in started]
        step = "torch.ones(3, device='tpu').sum().item()"
        for cell in ("%load_ext torchtpu\nimport torch", step, f"%%tpu_profile --logdir runs\n{step}"):
            asked = [client.execute(cell) for client in clients]
            for client, identity in zip(clients, asked, strict=True):
                reply = {"parent_header": {}}
                while reply["parent_header"].get("msg_id") != identity:
                    reply = client.get_shell_msg(timeout=120)
                assert reply["content"]["status"] == "ok", reply["content"]
    finally:
        for manager, client in started:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    profiles = [torchtpu.profiler.load(run.parent) for run in runs(tmp_path / "runs")]
    assert len(profiles) == 2
    assert all(p.report.runs for p in profiles)


def test_the_same_line_again_is_the_same_profile(notebook):
    result = notebook.run("%%timeit -n 2 -r 2", "%%tpu_profile", "1 + 1")
    assert result.success, notebook.printed


def test_a_line_of_a_cell_is_found_in_the_trace(notebook, mode):
    notebook.run("import torch, torchtpu", 'w = torch.ones(32, 32, device="tpu", requires_grad=True)')
    assert notebook.run(f"%%tpu_profile --mode {mode}", "y = w @ w", "z = (y * 2 + 1).exp()", "z.sum().backward()").success, (
        notebook.printed
    )
    (file,) = Path(torchtpu.profiler.last().folder).glob("*.xplane.pb")
    kernels = [
        dict(event.stats)
        for plane in ProfileData.from_file(str(file)).planes
        if plane.name.startswith("/device:")
        for line in plane.lines
        if line.name == "XLA Ops"
        for event in line.events
    ]
    at_line = [k for k in kernels if re.fullmatch(r"In\[\d+\], line 2", k.get("line", ""))]
    assert any("aten::mm" in k["aten_ops"] and "pass" not in k for k in at_line)
    assert any("aten::mm" in k["aten_ops"] and k.get("pass") == "backward" for k in at_line)
    fused = [k["aten_ops"].split(", ") for k in kernels if re.fullmatch(r"In\[\d+\], line 3", k.get("line", ""))]
    assert any(len(ops) > 1 for ops in fused) == (mode == "defer_and_fuse"), fused
