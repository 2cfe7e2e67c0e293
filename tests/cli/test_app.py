"""The command line's manners: flag spellings, one-line errors, exit codes, a quick --help."""

import errno
import os
import subprocess
import sys

import pytest

from loopscope.cli.app import exit_code


def loopscope(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from loopscope.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


def test_underscores_in_flag_names_are_dashes_but_values_are_untouched(capsys: pytest.CaptureFixture[str]):
    assert exit_code(["report", "no_run", "--lens_questions=3"]) == 2
    assert "no_run" in capsys.readouterr().err


def test_no_arguments_show_the_help():
    done = loopscope()
    assert done.returncode == 0
    assert "Usage: loopscope" in done.stdout


def test_unknown_command_is_one_line_and_exit_code_two():
    done = loopscope("no-such-command")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "no-such-command" in done.stderr


def test_a_misspelt_command_is_told_its_name(capsys: pytest.CaptureFixture[str]):
    assert exit_code(["measur", "--model", "toy-ouro"]) == 2
    assert capsys.readouterr().err == "loopscope: there is no command 'measur': did you mean measure?\n"


def test_version_is_printed(capsys: pytest.CaptureFixture[str]):
    assert exit_code(["--version"]) == 0
    assert capsys.readouterr().out.startswith("loopscope ")


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from loopscope.cli.app import exit_code\n"
        "exit_code(['--help'])\n"
        "heavy = {'torch', 'numpy', 'polars', 'pyarrow', 'rich', 'pydantic', 'huggingface_hub'} & set(sys.modules)\n"
        "sys.exit(f'heavy imports: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["tasks", "measure"])
def test_ctrl_c_is_130_and_says_what_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("loopscope.cli.app._refuse_undecodable", interrupted)
    assert exit_code([command]) == 130
    assert ("the same command continues" in capsys.readouterr().err) == (command == "measure")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize("command", [("studies",), ("tasks",), ("models",), ("--help",), ("--version",)])
def test_a_full_disk_behind_the_output_is_one_line(command: tuple[str, ...]):
    code = "from loopscope.cli import main; main()"
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "loopscope: cannot write the output: No space left on device\n")


def test_names_that_are_not_utf_8_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):

    name = os.fsdecode(b"run\xff")
    assert exit_code(["verify", name]) == 2
    assert (
        capsys.readouterr().err
        == r"loopscope: 'run\udcff' is not UTF-8; give names in UTF-8, or rename the file" + "\n"
    )
    monkeypatch.setenv("LOOPSCOPE_OUTPUT", name)
    assert exit_code(["studies"]) == 2
    assert "LOOPSCOPE_OUTPUT=" in capsys.readouterr().err


def test_an_error_of_the_disk_is_one_line_and_any_other_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from loopscope.tasks import known_tasks

    def broken(code: int) -> None:
        raise OSError(code, os.strerror(code), "some/file")

    monkeypatch.setattr(known_tasks, "list_tasks", lambda: broken(errno.EROFS))
    assert exit_code(["tasks"]) == 2
    assert capsys.readouterr().err == "loopscope: cannot read or write some/file: Read-only file system\n"
    monkeypatch.setattr(known_tasks, "list_tasks", lambda: broken(errno.EBADF))
    with pytest.raises(OSError, match="Bad file descriptor"):
        exit_code(["tasks"])


def test_an_error_shows_no_control_characters_and_keeps_its_ends(capsys: pytest.CaptureFixture[str]):
    assert exit_code(["x\x1b[2J" + "y" * 5000]) == 2
    printed = capsys.readouterr().err
    assert "\x1b" not in printed
    assert len(printed) < 1100
    assert printed.endswith("(see `loopscope --help`)\n")
