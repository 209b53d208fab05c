"""Wrong answers to the tasks of chapter 10."""

from wrong_answers import Wrong

WRONG = {
    "attention_entropy": [
        Wrong("one minus the sum of squares", "-(weights * logs).sum(axis=-1)", "1 - (weights**2).sum(axis=-1)", "the two tokens", "worst entry"),
        Wrong("the first batch for all", "-(weights * logs).sum(axis=-1)", "-(weights * logs).reshape(-1, *weights.shape[-2:])[0].sum(axis=-1) + np.zeros(weights.shape[:-1])", "one number for each query", "worst entry"),
        Wrong("infinite where hidden", "np.where(weights > 0, weights, 1.0)", "np.maximum(weights, 1e-3) * (1.0 - 0.5 * (weights.min(axis=-1, keepdims=True) == 0))", "hidden keys contribute nothing", "worst entry"),
    ],
    "update_ratio": [
        Wrong("twice the step", "(after - before) ** 2", "4 * (after - before) ** 2", "two numbers by hand", "ratio"),
        Wrong("only the last axis", "np.sum((after - before) ** 2)", "np.sum(((after - before) ** 2).reshape(-1, before.shape[-1])[-1])", "parameters of any shape", "worst entry"),
    ],
    "leaks": [
        Wrong("a number and no truth value", "return True", "return 1", "every leak is found and nothing else", "True or False, not"),
        Wrong("the first position is left out", "[:, :t] != before[:, :t]", "[:, 1:t] != before[:, 1:t]", "every leak is found and nothing else", "only the first at the next one"),
    ],
}  # fmt: skip
