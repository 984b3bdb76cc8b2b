"""What can happen to a sample when a classifier is replaced."""

from flipguard.metrics.arrays import Array, as_codes, check_rows, namespace

OUTCOMES: tuple[str, ...] = (
    "both_right",
    "negative_flip",
    "positive_flip",
    "both_wrong_same",
    "both_wrong_different",
    "unlabelled_same",
    "unlabelled_different",
)
"""The outcomes by code. The first five are one multinomial over the labelled rows."""

BOTH_RIGHT, NEGATIVE_FLIP, POSITIVE_FLIP, BOTH_WRONG_SAME, BOTH_WRONG_DIFFERENT = range(5)
UNLABELLED_SAME, UNLABELLED_DIFFERENT = 5, 6


def outcomes(label: Array, old: Array, new: Array) -> Array:
    """The outcome of each row, as a code into `OUTCOMES`.

    `label`, `old` and `new` are (B,) integer class codes; -1 means no label, or no prediction. A missing prediction is
    wrong, and two missing ones agree. Negative flips are those of PCT (Yan et al. 2021), Eq. 2.

    >>> label = [0, 0, 0, 0, 0, -1, -1]
    >>> old   = [0, 0, 1, 1, 1,  2,  2]
    >>> new   = [0, 1, 0, 1, 2,  2,  0]
    >>> [OUTCOMES[code] for code in outcomes(label, old, new)]  # doctest: +NORMALIZE_WHITESPACE
    ['both_right', 'negative_flip', 'positive_flip', 'both_wrong_same', 'both_wrong_different',
     'unlabelled_same', 'unlabelled_different']
    """
    label, old, new = as_codes(label, name="label"), as_codes(old, name="old"), as_codes(new, name="new")
    check_rows(label=label, old=old, new=new)
    xp = namespace(label, old, new)

    def choose(condition: Array, yes: Array | int, no: Array | int) -> Array:
        return xp.where(condition, yes, no)

    same = old == new
    old_wrong = choose(new == label, POSITIVE_FLIP, choose(same, BOTH_WRONG_SAME, BOTH_WRONG_DIFFERENT))
    old_right = choose(same, BOTH_RIGHT, NEGATIVE_FLIP)
    labelled = choose(old == label, old_right, old_wrong)
    return choose(label >= 0, labelled, choose(same, UNLABELLED_SAME, UNLABELLED_DIFFERENT))
