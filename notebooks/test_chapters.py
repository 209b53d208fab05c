"""Every chapter runs from top to bottom with its solutions.

python -m pytest notebooks
"""

import re
from pathlib import Path

import nbclient
import pytest
from make import SOURCES, exercises, notebook

TWO_TOKENS = {  # worked by hand in the text
    "01_arrays": [
        "(2, 1) (2, 1) (2, 1)",
        "[[1.09861229 0.        ]\n [0.         0.        ]]",
        "[[7.]\n [6.]]",
        "dy        [16. 14.]\ndb        [30.]",
        "Array([[0.75, 0.25],\n       [0.5 , 0.5 ]]",
    ],
    "02_autograd": [
        "out [7. 6.]",
        "dV [0.75 0.25]\ndw [8. 4. 0. 0.]",
        "dV ours [0.75 0.25]   the package's [0.75 0.25]",
        "c = b + b     da = 6.0 at once",
        "c = b + b     da = 4.0 newest first",
        "h + h * h          right              WRONG              WRONG",
    ],
    "03_gradient_checks": [
        "1.1e+00  0.54614353597610    0.72819138130147",
        "[ 1.5 -0.4  1.5] complex step of x.max(): [1. 0. 1.]",
        "all of it to each       is wrong\na half to each          is wrong",
        "x      (3, 5)  complex step  5.0e-13  1.1e-12",
        "the usual check passes: True\nmisremembered: the gradient of x is wrong",
        "GradcheckError: swish: the gradient of x is wrong",
    ],
    "04_projections": [
        "Q [1.09861229 0.        ]  K [1. 0.]  V [8. 4.]",
        "dW^V [0.75 1.  ]",
        "dx\n [[3. 3.]\n [1. 1.]]",
    ],
    "05_attention": [
        "[[0.75 0.25]\n [0.5  0.5 ]]",
        "[[7.]\n [6.]]",
        "dQ [0.75 0.  ]",
        "weights  [[0.75, 0.25], [0.5, 0.5]]     gradient [[8.0, 4.0], [0.0, 0.0]]",
        "scores   [[1.0986, 0.0], [0.0, 0.0]]    gradient [[0.75, -0.75], [0.0, 0.0]]",
        "dV [0.75 0.25]",
        "located      between scores and weights",
    ],
    "06_masks": [
        "[[1.  0. ]\n [0.5 0.5]]",
        "[[8.]\n [6.]]",
        "dQ, dK, dV [0. 0.] [0. 0.] [1. 0.]",
        "dQ, dK, dV [0. 1.] [0. 0.] [0.5 0.5]",
    ],
    "07_multi_head": [
        "merged\n [[7. 5.]\n [6. 6.]]",
        "a = 8, b = 4\ntwo heads\n [[8. 4.]\n [4. 8.]]\n"
        "head 0 with wider values\n [[ 8.          4.        ]\n [ 2.66666667 12.        ]]",
        "out\n [[8. 4.]\n [6. 6.]]",
        "[1.125 0.375]",
        "[[ 1.125 -0.125]\n [ 0.375 -0.375]]",
        "summed over the heads [1. 0.]",
        "two heads: left letter correct in 100%, right letter in 100%",
        "first  term: rows outside the columns of W^K   0%, columns outside those of W^Q  85%\n"
        "second term: rows outside the columns of W^K  81%, columns outside those of W^Q   0%",
    ],
    "08_positions": [
        "in order\n [[7.]\n [6.]]\nswapped\n [[6.]\n [7.]]",
        "n = 32: mean |cos| 0.10, positions recovered with error 0%\n"
        "n = 33: mean |cos| 0.10, positions recovered with error 7%",
        "M = 2: error 0%, A =\n[[0. 0.]\n [0. 1.]]",
        "63 tokens, 2 positions: recovered with error 0%\n"
        "64 tokens, 2 positions: recovered with error 1%",
        "dot products\n [[1.   0.54]\n [0.54 1.  ]]",
        "periods from 6.3 to 35,333 positions",
        "weights\n [[0.75 0.25]\n [0.25 0.75]]\nout\n [[7.]\n [5.]]",
        "rotated back: dq of token 2   [-0.75 -0.75]",
        "out [7. 5.]",
        "learned, positions 15 to 19: 100% 13%",
        "sinusoidal, positions 15 to 19: 100% 88%",
        "offset 1: visible [[1 1]] out [6.]\noffset 0: visible [[1 0]] out [8.]",
        "right at positions [0]",
        "learned     in pieces = whole: False\nsinusoidal  in pieces = whole: True\n",
        "halves, W^Q and W^K:     100%",
    ],
    "09_training": [
        "loss 0.4904\ndlogits\n [[-0.125  0.125]\n [ 0.25  -0.25 ]]",
        "dx [ 0.5 -0.5  0.   0. ]",
        "tied = input + output: True",
        "momentum p = 1, then 0.6 -0.16\nAdam     p = 1, then 0.9 0.8\n",
        "AdamW    p = 1, then 0.89 0.7811",
        "g = 0.004: Adam's first step moves p by 0.1000\n"
        "g = 1e-08: Adam's first step moves p by 0.0500\n"
        "g = 1e-10: Adam's first step moves p by 0.0010\n"
        "g = 0: Adam's first step moves p by 0.0000\n",
        "τ = 0.5: [0.9 0.1]",
        "causal mask: earlier rows change by 0.00%",
        "the same losses, bit for bit: True\nthe same weights: True",
    ],
    "10_debugging": [
        "entropy [0.56233514 0.69314718]",
        "loss 0.693147",
        "GPT: no findings",
        "lowest possible 0.069",
        "GPT 0 of 35\nCut 32 of 35",
        "lr = 0.1    step 1  516",
        "lr = 0.001  step 1    5.1",
        "Unmasked: 1 finding\nleak from the future",
        "the result parameters missing from the optimiser\nPatient: no findings",
    ],
    "11_speed": [
        "score 1.0986: shrink 0.3333 peak 1.0986 total 1.3333 acc 9.3333\nout 7.0",
        "score 0.0000: shrink 1.0000 peak 1.0986 total 1.3333 acc 9.3333\nout 7.0",
        "new subtracted: total nan\n0 subtracted:   total 0.0   acc / total nan\n",
        "peak + ln total -inf",
        f"flops         {1073.742:13}{1073.742:13}",
        f"moved         {205.521:13}{205.718:13}",
        f"kept          {16.777:13}{16.777:13}",
        "query 0 key 1:  P 0.25   dS -0.75",
        "zigzag, 0 1 1 0          tiles [68, 68]",
    ],
    "12_gpu": [
        "[[ 3. 20.]\n [ 7. 40.]\n [11. 60.]]",
        "wrong_offset  tile (2, 0) of shape (2, 2) is outside",
        "same_place    two stores to the same place",
        "running_sum   a block loads what another block stored",
        "column_means  no error, but 3 of 3 rows wrong; y[2] is [nan nan]",
        "errors reported: no guess, the result 4",
        "column_means  with two tokens and one block right: True",
        "peak   [1.0986 0.    ]\ntotal  [1.3333 2.    ]\nacc    [ 9.3333 12.    ]\nout [7. 6.]",
        "hidden scores: no guess, the result 28",
        "128 queries, 128 keys, D =  64:  24576 registers, may fit",
        "128 queries, 128 keys, D = 128:  32768 registers, cannot fit",
        "Step(parameters=429824, flops=2869690368, state=6877184, update=12035072, kept=4194304)",
        "scores in memory       8.9 MB,  30 flops per byte: 10% of the peak",
        "edge = True\nj = 1\nedge = False\nj = 0\nscores = ct.where(seen, scores, -math.inf)",
        "last tile of keys left out           right                         off by",
        "edge tiles counted as middle         right                         off by",
        "mistakes that pass the first test: no guess, the result 3",
        "16 queries, 16 keys: right right right right right right",
        "8 × 128: 54% of the activations belong to the perceptrons\n4 × 256: 48% of",
    ],
    "13_many_machines": [
        "to train the model: 112 GB\nkeys and values of the layer: 33 GB",
        "2 ranks: each sends 9,600 bytes in 2 messages; exercise 1: 9,600\n"
        "3 ranks: each sends 12,800 bytes in 4 messages; exercise 1: 19,200",
        "[array([8.]), array([8.])]",
        "shares               dw  5.0 and  5.0   dx 10.0 and 15.0",
        "the whole loss       dw  5.0 and  5.0   dx 25.0 and 25.0",
        "mixed                dw 10.0 and 10.0   dx 20.0 and 30.0",
        "rank 0: (2, 1, 1) -> (1, 2, 1), attention [7. 6.], out [7. 5.]",
        "rank 1: (2, 1, 1) -> (1, 2, 1), attention [5. 6.], out [6. 6.]",
        "merged: out 7.0000, e^lse 4.0000",
        "zigzag True   shares of the pairs: 25%, 25%, 25%, 25%",
        "4 ranks  ulysses  formula   1920   counted  1920",
        "loss not divided by the number of ranks    first loss the same         second loss off by +",  # noqa: E501
        "gradient of own weights summed             first loss the same         second loss off by -",  # noqa: E501
        "mistakes that change the first loss: no guess, the result 1",
        "gradients times 1: after three steps, p is 0.796912",
        "gradients times 2: after three steps, p is 0.796912",
    ],
    "14_real_models": [
        "weights [0.25 0.75] out [5.]",
        "keys from the token itself                     the same token wins for   0%",
        "without any rule 4.85, all tokens of the text equally likely 2.69",
        "eigenvalues [-1.  1.] copying score 0, tokens that raise themselves most: 0\n"
        "eigenvalues [1. 1.] copying score 1, tokens that raise themselves most: 1",
        "after 1 layers, right in the second half: 1%\n",
        "nothing off: 100%",
        "no folder given: this is the model of this chapter, saved and loaded again",
    ],
    "15_since_2023": [
        "plain [7.]\nabsorbed query [1.0986 0.    ] mean latent [0.75 1.  ] out [7.]",
        "numbers in the cache for each token: 24 instead of 128",
        "window of 1      [8. 4.]\nwindow and sink  [8. 6.]",
        "cache = mask: True  held at most: 5",
        "positions that reach the last output: no guess, the result 10",
        "linear attention: [10.4] [8.8]   delta rule: [7.52] [4.]",
        "β‖k‖² = 2: error 0.8 after 40 writes\nβ‖k‖² = 2.1: error 36 after 40 writes",
        "32 orthogonal keys recalled exactly, linear attention and delta rule: [True, True]",
        "u [ 8.  -0.8]  dv [-0.6  1. ]  dbeta [-4.8 -0.8]",
        "does evicting too early change the output: no guess, the result False, True",
    ],
}


def run(chapter, folder):
    """Run all cells; what they printed."""
    client = nbclient.NotebookClient(
        chapter, timeout=1200, startup_timeout=600, resources={"metadata": {"path": str(folder)}}
    )
    try:
        client.execute()
    except RuntimeError as error:
        if "before replying" not in str(error):
            raise
        client.execute()  # another process took a port of the kernel before it started
    return "".join(out.get("text", "") for cell in chapter.cells for out in cell.get("outputs", []))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_chapter_runs_with_its_solutions(source, tmp_path):
    text = run(notebook(source, solved=True), tmp_path)
    assert "to do " not in text
    for name in exercises(source):
        assert re.search(f"^ok +{name}: ", text, re.MULTILINE)
        assert not re.search(f"^wrong +{name}: ", text, re.MULTILINE)
    for line in TWO_TOKENS.get(Path(source).stem, []):
        assert line in text
