import contextlib
import os
import re
import shutil
import socket

import numpy as np
import pytest

from loopscope.errors import LoopscopeError
from loopscope.report import write_report
from loopscope.stats import Bootstrap

FEW = Bootstrap(resamples=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, synthetic):
    folder = tmp_path_factory.mktemp("write")
    synthetic.write_run(folder / "run", synthetic.Made([synthetic.Question("q </script>", ["a b"])] * 3))
    return folder


def test_the_same_runs_give_the_same_bytes(folder):
    first = write_report([folder / "run"], folder / "one.html", FEW).read_bytes()
    assert write_report([folder / "run"], folder / "two.html", FEW).read_bytes() == first


def test_the_page_refers_to_nothing_outside(folder, without_figures):
    text = without_figures([folder / "run"], folder / "page.html", FEW).read_text(encoding="utf-8")
    assert re.findall(r'(?:src|href)="(?!#)[^"]*"', text) == []
    assert re.findall(r"https?://[^\s\"')]+", text) == ["http://www.w3.org/2000/svg"]
    assert text.count("<script>") == 1


def test_a_folder_as_output_is_a_users_mistake(folder, without_figures):
    with pytest.raises(LoopscopeError, match=r"is a folder: name a file, such as .*report\.html"):
        without_figures([folder / "run"], folder, FEW)


@pytest.mark.parametrize("kind", ["a symbolic link", "a FIFO", "a socket"])
def test_an_output_that_is_no_plain_file_is_left_alone(folder, tmp_path, kind, without_figures):
    output, kept = tmp_path / "report.html", tmp_path / "kept"
    kept.write_text("kept")
    if kind == "a symbolic link":
        output.symlink_to(kept)
    elif kind == "a FIFO":
        os.mkfifo(output)
    else:
        # A socket's path may have 108 bytes, a test's folder more.
        with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(tmp_path):
            server.bind(output.name)
    before = output.lstat()
    with pytest.raises(LoopscopeError, match="is not a plain file"):
        without_figures([folder / "run"], output, FEW)
    assert output.lstat() == before
    assert kept.read_text() == "kept"


@pytest.mark.parametrize(("runs", "line"), [(["nothing"], "no manifest"), ([], "no run given")])
def test_something_that_is_no_run_is_a_users_mistake(folder, without_figures, runs, line):
    with pytest.raises(LoopscopeError, match=line):
        without_figures([folder / name for name in runs], folder / "x.html", FEW)


def test_a_run_without_any_unit_is_a_users_mistake(folder, without_figures):
    empty = folder / "empty"
    shutil.copytree(folder / "run", empty)
    for path in (empty / "units").iterdir():
        path.unlink()
    with pytest.raises(LoopscopeError, match="holds no measured question yet"):
        without_figures([empty], folder / "x.html", FEW)


def test_runs_that_are_alike_keep_their_own_numbers(tmp_path, synthetic, unpack, without_figures):
    made = [synthetic.Made([synthetic.Question("q", ["a"])] * 8, tokens=False, seed=seed) for seed in (1, 2)]
    runs = [synthetic.write_run(tmp_path / name / "run", each) for name, each in zip("ab", made, strict=True)]
    page = without_figures([run.path for run in runs], tmp_path / "report.html", FEW).read_text(encoding="utf-8")
    packed = re.search(r'id="meta">([^<]+)<', page)
    assert packed is not None
    _, meta = unpack(packed[1])
    assert re.match(r"some/looped-model \([ab]/run\): loop ", meta["opening"]["title"])
    for run, each in zip(meta["runs"], made, strict=True):
        facts = run["sets"][0]["overview"]["updates"][1]["facts"]
        agree = (np.sign(each.A[1]) == np.sign(each.path(1, 1.0))).mean()
        assert next(fact for fact in facts if fact["key"] == "sign_slope")["value"] == agree
        means = [entry["value"] for entry in run["sets"][0]["overview"]["depth"]["means"]]
        np.testing.assert_allclose(means, each.utility.mean(axis=0))


def test_the_page_holds_no_folder_and_no_argument_unless_asked(tmp_path, synthetic, unpack, without_figures):
    """D10: pages are mailed; what was typed to make the run is nobody else's."""
    secret = "/home/somebody/private/mine.py:build"
    made = synthetic.Made([synthetic.Question("q", ["a"])] * 3, model={"name": "mine", "spec": secret})
    run = synthetic.write_run(tmp_path / "run", made)

    def words(**given):
        page = without_figures([run.path], tmp_path / "report.html", FEW, **given).read_text(encoding="utf-8")
        packs = re.findall(r'<script type="application/x-loopscope" id="[^"]*">([^<]*)<', page)
        return re.sub(r"<script.*?</script>", "", page, flags=re.S) + "".join(str(unpack(each)[1]) for each in packs)

    assert "/home/somebody" not in words()
    assert str(tmp_path) not in words()
    assert secret in words(with_command=True)
