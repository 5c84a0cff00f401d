"""CBML under the names of its variants: the same options with another default."""

from functools import partialmethod

from cbml.losses.contrastive_bayesian import CBMLLoss

__all__ = ["VARIANTS"]


class CBMLSqrt(CBMLLoss):
    """The paper's CBML-sqrt: f(x) = √x instead of log x."""

    __init__ = partialmethod(CBMLLoss.__init__, averaging="sqrt")


class CBMLConst(CBMLLoss):
    """The paper's CBML-const: f(x) = x instead of log x."""

    __init__ = partialmethod(CBMLLoss.__init__, averaging="const")


class CBMLAuthors(CBMLLoss):
    """What the authors' program computes: a summed variance, and easy anchors left out."""

    __init__ = partialmethod(CBMLLoss.__init__, variance_reduction="sum", skip_easy_anchors=True)


VARIANTS: dict[str, type[CBMLLoss]] = {
    "cbml_authors": CBMLAuthors,
    "cbml_const": CBMLConst,
    "cbml_sqrt": CBMLSqrt,
}
