"""How many tokens of each draft to verify: as many as give the batch the most tokens a second, perhaps none.

Does not know where drafts or probabilities come from.
"""

from __future__ import annotations

from collections.abc import Sequence

from python_llm.speculation.step_costs import StepCosts

_LEAST_GAIN = 0.03
"""Share by which a step with drafts must be expected to be more productive: costs and probabilities are estimates."""
_LEAST_PROBABILITY = 0.05


def choose_lengths(
    costs: StepCosts, num_rows: int, survivals: Sequence[Sequence[float]], *, extra_s: float = 0.0
) -> list[int]:
    """For each draft, how many of its first tokens to verify in a step of `num_rows` rows without any.

    `survivals[i][j]`: probability that the first j + 1 tokens of draft i are all accepted; never rises with j. A step
    of n rows is worth n tokens: a prompt's tokens must all be computed some time, too. `extra_s`: seconds that drafts
    cost besides, once for the step.
    """
    lengths = [0] * len(survivals)
    room = costs.max_rows - num_rows
    if room <= 0:
        return lengths
    # Stable: of one draft, an earlier token never comes after a later one.
    candidates = sorted(
        (
            (probability, index)
            for index, survival in enumerate(survivals)
            for probability in survival
            if probability >= _LEAST_PROBABILITY
        ),
        key=lambda candidate: -candidate[0],
    )
    best_rate, best_count = (1 + _LEAST_GAIN) * num_rows / costs.seconds(num_rows), 0
    expected = float(num_rows)
    for count, (probability, _) in enumerate(candidates[:room], start=1):
        expected += probability
        rate = expected / (costs.seconds(num_rows + count) + extra_s)
        if rate > best_rate:
            best_rate, best_count = rate, count
    for _, index in candidates[:best_count]:
        lengths[index] += 1
    return lengths


def can_pay(costs: StepCosts, num_rows: int) -> bool:
    """Whether any drafts could be worth while in a step of `num_rows` rows, if all of them were right."""
    room = costs.max_rows - num_rows
    return room > 0 and choose_lengths(costs, num_rows, [[1.0] * room]) != [0]
