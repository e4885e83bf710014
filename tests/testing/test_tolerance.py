"""The test of digits lets roundings pass, and finds an answer that is wrong in the fourth digit."""

import pytest
import torch

from ttcnet.lqr import plan
from ttcnet.testing.errors import NAMES, differentiate
from ttcnet.testing.memory import unwritten_is_nan
from ttcnet.testing.tolerance import beyond, by, cases


def reference(family, horizon):
    return plan(family, horizon, backend="reference", check=False)


def test_the_reference_passes():
    what, family = cases(3, 2, scales=(1.0,))
    assert beyond(what, family, 8, by(reference)) == []


@pytest.mark.parametrize("unrolled", [False, True])
@pytest.mark.parametrize("name", ["u", *NAMES])
def test_a_wrong_output_is_found_in_its_case(name, unrolled):
    what, family = cases(3, 2, scales=(1.0,), costs=("full",))

    def slightly_wrong(family, horizon, g):
        found = differentiate(reference, family, horizon, g)
        each = found[name].reshape(len(what), -1)
        each[1] += 3e-4 * each[1].norm()
        return found | {name: each.reshape(found[name].shape)}

    failures = beyond(what, family, 8, slightly_wrong, unrolled=unrolled)
    assert {(case, output) for case, output, _, _ in failures} == {(what[1], name)}


def test_unwritten_memory_is_nan_inside_and_the_setting_is_put_back():
    with unwritten_is_nan():
        assert torch.empty(3).isnan().all()
        assert torch.ones(2).new_empty(2, 2).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
