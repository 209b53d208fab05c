"""Wrong answers to the tasks of chapter 09."""

from wrong_answers import Wrong

WRONG = {
    "cross_entropy": [
        Wrong("the logarithm to base 10", "np.log(np.exp(shifted)", "np.log10(np.exp(shifted)", "the loss of one target", "ratio"),
        Wrong("the mean of the first row", "-(log_p * one_hot).sum() / targets.size", "-(log_p * one_hot)[0].sum() / targets[:1].size", "the mean over all targets", "the loss for logits of shape (4, 3)"),
        Wrong("a gradient and no tuple", "return (dy * (np.exp(log_p) - one_hot) / targets.size,)", "return dy * (np.exp(log_p) - one_hot) / targets.size", "the gradient of the logits", "tuple"),
        Wrong("no shift", "logits - logits.real.max(axis=-1, keepdims=True)", "logits + 0", "large logits do not overflow", "exp(1000) is infinite"),
    ],
    "layer_norm": [
        Wrong("the mean of the magnitudes", "sigma = np.sqrt(variance + eps)", "sigma = abs(centred).mean(axis=-1, keepdims=True)", "each row has mean 0 and variance 1", "ratio"),
        Wrong("the weight squared", "x_hat * weight + bias", "x_hat * weight**2 + bias", "weight and bias act on the columns", "y is wrong"),
        Wrong("no eps", "np.sqrt(variance + eps)", "np.sqrt(variance)", "eps is added to the variance", "0 / 0"),
        Wrong("weight and bias swapped in the gradients", "(dy * x_hat).sum(axis=rows), dy.sum(axis=rows)", "dy.sum(axis=rows), (dy * x_hat).sum(axis=rows)", "all three gradients", "check the order"),
    ],
    "adamw_step": [
        Wrong("a list", "return p, m, v", "return [p, m, v]", "the first step has the size of the learning rate", "three arrays: p, m, v"),
        Wrong("corrected as in the first step", "(1 - beta1**t)", "(1 - beta1)", "later steps use the averages", "exponent"),
        Wrong("an L2 penalty", "m = beta1 * m + (1 - beta1) * g\n", "g = g + weight_decay * p\n    m = beta1 * m + (1 - beta1) * g\n", "the decay is separate from the averages", "as in Adam with an L2 penalty"),
        Wrong("eps inside the root", "np.sqrt(v_hat) + eps", "np.sqrt(v_hat + eps)", "eps is added to the root", "eps is inside the root"),
    ],
    "top_p": [
        Wrong("all tokens", "np.where(before < p, largest, 0.0)", "largest", "the most probable tokens share all probability", "worst entry"),
        Wrong("the original order is lost", "kept[order] = ", "kept[:] = ", "the order of the tokens does not matter", "sorted order"),
        Wrong("at most p, but at least one", "before < p", "before <= p", "exactly p is enough", "one token too many"),
    ],
}  # fmt: skip
