"""A base class for layers with projections: access to the weights, in whichever form they are."""

from __future__ import annotations

from typing import Any

from minimha_autograd import backend

from ..nn import Module
from ..projections import Form


class WithProjections(Module):
    """A layer that stores the weights of Q, K and V in its attribute `projections`, in one of the
    forms of `projections.FORMS`, such as "stacked".

    The weights are also attributes of the layer: mha.w_q is mha.projections.w_q.
    """

    projections: Form

    def __getattr__(self, name: str) -> Any:
        """Look up an attribute that the layer lacks in its projections: mha.w_q is
        mha.projections.w_q."""
        # Python asks here for what the layer itself lacks, which may be the projections, before
        # they are made or while the layer is copied.
        if name == "projections":
            raise AttributeError(name)
        return getattr(self.projections, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the projections if they have one of this name, otherwise one of the
        layer. So mha.w_q = w replaces the matrix with which the layer computes."""
        projections = vars(self).get("projections")
        if projections is not None and name in vars(projections):
            object.__setattr__(projections, name, value)
        else:
            object.__setattr__(self, name, value)

    def _check_bilinear(self) -> None:
        """Raise ValueError for settings that the bilinear form cannot represent: qk_norm, rope, and
        a nonzero b_k together with a softcap or a sink."""
        # These two act on Q and K themselves, which the bilinear form does not make.
        between = ""
        if self.norm_q is not None:
            between = "qk_norm"
        if self.rope is not None:
            between = "rope"
        if between:
            raise ValueError(
                f"the bilinear form stores the product W^Q W^Kᵀ, but {between} is applied between "
                "the two: keep another form, or do without it"
            )

        # b_k adds q · b_k to all scores of a query. That leaves the weights as they are, except
        # after a softcap or beside a sink.
        changed = ""
        if self.sink is not None:
            changed = "sink"
        if self.softcap is not None:
            changed = "softcap"
        if changed and self.form != "bilinear":
            b_k = self.projections.mapped(lambda p: p.data).to_stacked().b_k
            if b_k is not None and backend.to_numpy(b_k).any():
                raise ValueError(
                    "the bilinear form leaves out b_k, which adds the same number to all scores of "
                    f"a query: that does not change softmax, but it changes a {changed}. Set b_k "
                    "to zero, or keep another form"
                )
