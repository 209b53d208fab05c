"""What an installed minimha does in a project of somebody else, where .ci/smoke runs this file."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import minimha as mh
from minimha.course import CHAPTERS

ANSWER = "import numpy as np\n" + mh.homework.course()["softmax"].code(solved=True)
WRONG_ANSWER = ANSWER.replace(" - (dy * y).sum(axis=-1, keepdims=True)", "")


def softmax(answer):
    """The function that an answer defines."""
    names = {}
    exec(answer, names)
    return names["softmax"]


def minimha(*arguments):
    """Exit code and output of the command, which is installed beside this Python."""
    command = [Path(sys.executable).with_name("minimha"), *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_installed_package_is_imported():
    assert Path(sys.prefix) in Path(mh.__file__).parents
    assert mh.__version__ == version("minimha")


@pytest.mark.parametrize("arguments", [(), ("homework",), ("homework", "grade"), ("train",)])
def test_the_command_explains_itself(arguments):
    code, output = minimha(*arguments, "--help")
    assert code == 0
    assert output.startswith("usage: minimha")


def test_the_command_copies_the_chapters(tmp_path):
    assert minimha("notebooks", "--no-open", tmp_path)[0] == 0
    assert len(list(tmp_path.glob("*.ipynb"))) == len(CHAPTERS)


@pytest.mark.gradcheck(axes=["row column"])
def test_the_plugin_checks_what_a_test_returns(rng):
    return softmax(ANSWER), rng.standard_normal((3, 5))


def test_a_wrong_gradient_is_found_and_explained(gradcheck, rng):
    with pytest.raises(mh.GradcheckError, match="the sum over each row is missing"):
        gradcheck(softmax(WRONG_ANSWER), rng.standard_normal((3, 5)))


@pytest.mark.parametrize(("answer", "code", "message"), [
    (ANSWER, 0, "ok     softmax: large entries do not overflow"),
    (WRONG_ANSWER, 1, "the sum over each row is missing"),
])  # fmt: skip
def test_homework_accepts_a_right_answer_and_explains_a_wrong_one(answer, code, message, tmp_path):
    (tmp_path / "softmax.py").write_text(answer, encoding="utf-8")
    found, output = minimha("homework", "check", "softmax", "--from", tmp_path)
    assert (found, message in output) == (code, True), output


@pytest.mark.parametrize("name", ["fused", "tiled"])
def test_kernels_that_numba_compiles_agree_with_the_reference(name, rng):
    query, key, value = rng.standard_normal((3, 1, 2, 64, 8)).astype("float32")
    with mh.implementation(name):
        out = mh.scaled_dot_product_attention(query, key, value, mh.masks.causal())
    with mh.implementation("reference"):
        expected = mh.scaled_dot_product_attention(query, key, value, mh.masks.causal())
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
