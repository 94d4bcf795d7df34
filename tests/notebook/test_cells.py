"""`%%tpu_mode` cells behave exactly as plain cells do, and end with one report."""

import linecache

import pytest


def test_the_last_expression_is_the_output(notebook):
    result = notebook.run("%%tpu_mode strict", "a = 20", "a * 2 + 2")
    assert result.result == 42
    assert notebook.shell.user_ns["Out"][result.execution_count] == 42
    assert notebook.printed == f"Out[{result.execution_count}]: 42\n"
    assert notebook.shell.user_ns["a"] == 20


def test_a_semicolon_silences_the_output(notebook):
    assert notebook.run("%%tpu_mode strict", "41 + 1;").result is None
    assert notebook.printed == ""


@pytest.mark.parametrize("setting", ["all", "last", "last_expr", "none", "last_expr_or_assign"])
def test_the_shell_decides_what_is_displayed(notebook, setting):
    notebook.shell.ast_node_interactivity = setting
    body = ["1", "x = 3", "2"]
    plain, plain_printed = notebook.run(*body), notebook.printed
    watched = notebook.run("%%tpu_mode strict", *body)
    assert watched.result == plain.result
    assert notebook.printed == plain_printed.replace(f"Out[{plain.execution_count}]", f"Out[{watched.execution_count}]")


def test_text_in_the_cell_is_left_as_it_is(notebook):
    notebook.run("%%tpu_mode strict", 's = """', "%time not a magic", "  '''nested'''", "!ls {s} \\n", '"""', "t = f'{\"q\"}'")
    assert notebook.shell.user_ns["s"] == "\n%time not a magic\n  '''nested'''\n!ls {s} \n\n"
    assert notebook.shell.user_ns["t"] == "q"


def test_await_works(notebook):
    body = ["import asyncio", "async def f():", "    await asyncio.sleep(0)", "    return 7", "await f()"]
    assert notebook.run("%%tpu_mode debug", *body).result == 7
    assert notebook.report.startswith("torchtpu debug: ")


def test_future_imports_work(notebook):
    assert notebook.run("%%tpu_mode strict", "from __future__ import annotations", "def f(x: nothing): ...", "1").result == 1


def test_an_error_fails_the_cell_and_is_reported(notebook):
    result = notebook.run("%%tpu_mode debug", "before = 1", "1 / 0", "after = 2")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert "before" in notebook.shell.user_ns
    assert "after" not in notebook.shell.user_ns
    assert "! Ended by ZeroDivisionError: division by zero" in notebook.report
    assert notebook.run("%tpu_mode").success
    assert notebook.printed == "strict\n"


def test_an_error_keeps_its_traceback(notebook):
    error = notebook.run("%%tpu_mode debug", "def f(x):", "    return 1 / x", "f(0)").error_in_exec
    numbers = []
    trace = error.__traceback__
    while trace is not None:
        numbers.append(trace.tb_lineno)
        trace = trace.tb_next
    assert numbers[-2:] == [4, 3]


def test_tracebacks_count_the_magic_as_line_1_and_show_what_was_typed(notebook):
    notebook.run("%%tpu_mode strict --quiet", "1 / 0")
    assert "----> 2 1 / 0" in notebook.printed
    assert "      1 # %%tpu_mode strict --quiet\n" in notebook.printed
    assert "run_cell_magic" not in notebook.printed


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "SystemExit", "GeneratorExit"])
def test_every_way_out_restores_the_mode(notebook, error):
    notebook.run("%%tpu_mode defer_and_fuse", f"raise {error}()")
    notebook.run("%tpu_mode")
    assert notebook.printed == "strict\n"


def test_a_syntax_error_is_at_its_line(notebook):
    error = notebook.run("%%tpu_mode strict", "x = 1", "y = (").error_before_exec
    assert isinstance(error, SyntaxError)
    assert (error.lineno, error.text) == (3, "y = (\n")
    assert notebook.reports == []
    assert "x" not in notebook.shell.user_ns


def test_variables_fill_the_arguments(notebook):
    notebook.run("wanted = 'debug'")
    notebook.run("%%tpu_mode {wanted}", "1 / 0")
    assert notebook.report.startswith("torchtpu debug: ")
    assert "      1 # %%tpu_mode {wanted}\n" in notebook.printed


def test_without_a_mode_the_one_that_is_set_is_used(notebook):
    notebook.run("%tpu_mode defer_and_fuse")
    notebook.run("%%tpu_mode", "1")
    assert notebook.report.startswith("torchtpu defer_and_fuse: ")


def test_a_cell_of_the_first_line_alone(notebook):
    assert notebook.run("%%tpu_mode debug").success
    assert notebook.report.startswith("torchtpu debug: 0 programs")


def test_blank_lines_above_the_magic_do_not_matter(notebook):
    assert notebook.run("", "%%tpu_mode debug", "", "41 + 1").result == 42
    assert len(notebook.reports) == 1


def test_time_below(notebook):
    result = notebook.run("%%tpu_mode debug", "", "%%time", "s = '''", "%x'''", "41 + 1")
    assert result.result == 42
    assert "Wall time" in notebook.printed
    assert notebook.shell.user_ns["s"] == "\n%x"
    assert notebook.report.startswith("torchtpu debug: ")


def test_time_above(notebook):
    result = notebook.run("%%time", "%%tpu_mode debug", "s = '''", "%x'''", "41 + 1")
    assert result.result == 42
    assert "Wall time" in notebook.printed
    assert notebook.report.startswith("torchtpu debug: ")


@pytest.mark.parametrize("magics", [("%%time", "%%tpu_mode debug"), ("%%tpu_mode debug", "%%time")])
def test_errors_pass_through_stacked_magics(notebook, magics):
    result = notebook.run(*magics, "x = 1", "1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert "! Ended by ZeroDivisionError" in notebook.report


def test_timeit_above_opens_one_report_for_all_its_loops(notebook):
    notebook.run("%%timeit -n 3 -r 2", "%%tpu_mode debug", "x = 1")
    assert "3 loops each" in notebook.printed
    assert len(notebook.reports) == 1


def test_capture_above_takes_the_report(notebook):
    notebook.run("%%capture out", "%%tpu_mode debug", "print('hello')", "import time", "time.sleep(0.8)")  # time for a line
    assert notebook.reports == []
    out = notebook.shell.user_ns["out"]
    assert out.stdout == "hello\n"
    (shown,) = out.outputs
    assert shown.data["text/plain"].startswith("torchtpu debug: ")


def test_capture_below_leaves_the_report(notebook):
    notebook.run("%%tpu_mode debug", "%%capture out", "print('hello')")
    assert notebook.shell.user_ns["out"].stdout == "hello\n"
    assert notebook.report.startswith("torchtpu debug: ")


def test_line_magics_inside(notebook):
    assert notebook.run("%%tpu_mode debug", "%time x = 3", "names = !echo hi", "x").result == 3
    assert notebook.shell.user_ns["names"] == ["hi"]


def test_a_cell_run_by_a_cell_has_its_own_report(notebook):
    notebook.run("%%tpu_mode strict", "get_ipython().run_cell('%%tpu_mode debug\\n1')", "torchtpu.modes.current().label")
    assert [r["text/plain"].split(":")[0] for r in notebook.reports] == ["torchtpu debug", "torchtpu strict"]
    assert "'strict'" in notebook.printed


def test_two_modes_for_one_cell_are_refused(notebook):
    result = notebook.run("%%tpu_mode strict", "%%tpu_mode debug", "ran = 1")
    assert not result.success
    assert "UsageError: a cell can have one %%tpu_mode" in notebook.printed
    assert "ran" not in notebook.shell.user_ns
    notebook.run("%tpu_mode")
    assert notebook.printed == "strict\n"


def test_a_silent_cell_leaves_its_mode_too(notebook):
    notebook.run("%%tpu_mode debug", "pass", silent=True)
    assert len(notebook.reports) == 1
    notebook.run("%tpu_mode")
    assert notebook.printed == "strict\n"


def test_called_with_a_body_it_runs_it(notebook):
    notebook.run("get_ipython().run_cell_magic('tpu_mode', 'debug', 'x = 41 + 1')")
    assert notebook.shell.user_ns["x"] == 42
    assert notebook.report.startswith("torchtpu debug: ")
    result = notebook.run("get_ipython().run_cell_magic('tpu_mode', 'debug', '1 / 0')")
    assert isinstance(result.error_in_exec, ZeroDivisionError)


def test_while_a_cell_is_typed_it_is_not_complete(notebook):
    manager = notebook.shell.input_transformer_manager
    assert manager.check_complete("%%tpu_mode strict")[0] == manager.check_complete("%%time")[0]
    assert manager.check_complete("%%tpu_mode strict\nx = 1")[0] == "incomplete"
    assert manager.check_complete("%%tpu_mode strict\nx = 1\n\n")[0] == "complete"


def test_source_of_a_function_in_the_cell(notebook):
    notebook.run("%%tpu_mode strict", "def f():", "    return 1")
    assert notebook.run("import inspect", "inspect.getsource(f)").result == "def f():\n    return 1\n"
    code = notebook.shell.user_ns["f"].__code__
    assert linecache.getline(code.co_filename, 1) == "# %%tpu_mode strict\n"


def test_what_is_pending_runs_at_the_end_of_the_cell(notebook):
    notebook.run("%%tpu_mode defer_and_fuse", "y = torch.ones(3, device='tpu') + 1")
    assert "end of cell" in notebook.report
    assert "Flushes: 1" in notebook.report


def test_what_is_pending_runs_at_the_end_of_plain_cells_too(notebook):
    notebook.run("%tpu_mode defer_and_fuse")
    notebook.run("y = torch.ones(3, device='tpu') + 1")
    result = notebook.run("with torchtpu.watch() as report:", "    values = y.tolist()", "report.flushes")
    assert result.result == ()
    assert notebook.shell.user_ns["values"] == [2.0, 2.0, 2.0]


def test_showing_a_value_is_part_of_the_cell(notebook):
    notebook.run("%%tpu_mode defer_and_fuse", "x = torch.ones(3, device='tpu')", "x + 1")
    assert "tensor([2., 2., 2.], device='tpu:0')" in notebook.printed
    assert "1 sync" in notebook.report


def test_a_failure_at_the_end_of_a_cell_fails_the_cell(notebook, monkeypatch):
    from torchtpu import modes

    def fail(reason):
        if reason == "end of cell":
            raise RuntimeError("it did not fit")

    monkeypatch.setattr(modes, "flush", fail)
    result = notebook.run("x = 1")
    assert str(result.error_in_exec) == "it did not fit"
    assert "RuntimeError: it did not fit" in notebook.printed


def test_quiet(notebook):
    assert notebook.run("%%tpu_mode debug --quiet", "41 + 1").result == 42
    assert notebook.reports == []


def test_save(notebook, tmp_path):
    from torchtpu.report import Report

    notebook.run("%%tpu_mode debug --quiet --save 'my report.json'", "1")
    report = Report.from_json((tmp_path / "my report.json").read_text())
    assert report.mode == "debug"


def test_save_to_nowhere_fails_the_cell_but_not_the_work(notebook):
    result = notebook.run("%%tpu_mode debug --save missing/report.json", "x = 41 + 1")
    assert isinstance(result.error_in_exec, FileNotFoundError)
    assert notebook.shell.user_ns["x"] == 42
    assert len(notebook.reports) == 1


def test_save_by_another_suffix_does_not_run_the_cell(notebook):
    assert not notebook.run("%%tpu_mode debug --save report.pdf", "x = 1").success
    assert "UsageError: cannot save a report as 'report.pdf': the name must end in .json, .html, .txt" in notebook.printed
    assert "x" not in notebook.shell.user_ns
