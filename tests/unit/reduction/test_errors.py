"""The error tree: its wire codes, the way back from them, and the docstring that draws it."""

import inspect
import re

import pytest
from reduction import errors
from reduction.errors import JobAborted, JobBusy, ReductionError, RetryableError, from_code
from reduction.v1 import reduction_pb2 as pb

CLASSES = {
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, ReductionError) and cls.__module__ == errors.__name__
}
#: Classes with their own number on the wire; all others are sent as INTERNAL.
CODED = {cls for cls in CLASSES if "code" in vars(cls) and cls is not ReductionError}


def schema_name(cls):
    return "ERROR_CODE_" + re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()


def test_codes_are_those_of_the_schema_one_to_one():
    ours = {schema_name(cls): cls.code for cls in CODED}
    ours |= {"ERROR_CODE_UNSPECIFIED": 0, "ERROR_CODE_INTERNAL": ReductionError.code}
    assert ours == dict(pb.ErrorCode.items())


@pytest.mark.parametrize("cls", sorted(CODED, key=lambda cls: cls.code))
def test_a_code_maps_back_to_its_class(cls):
    error = from_code(cls.code, "rank 3 did it")
    assert type(error) is cls
    assert str(error) == "rank 3 did it"


@pytest.mark.parametrize("code", [-1, 0, 14, 99, 1 << 31])
def test_an_unknown_code_becomes_the_root_error(code):
    error = from_code(code, "from a newer version")
    assert type(error) is ReductionError
    assert str(error) == "from a newer version"
    assert error.code == pb.ERROR_CODE_INTERNAL


def test_the_docstring_draws_the_actual_class_tree():
    parents = {}
    path = []
    for line in errors.__doc__.splitlines():
        match = re.fullmatch(r" {4}((?:\|   |    )*)(?:[|`]-- )?([A-Z]\w+)(?: .*)?", line)
        if match:
            depth = len(match[1]) // 4 + ("-- " in line)
            path[depth:] = [match[2]]
            parents[match[2]] = path[depth - 1] if depth else None
    assert parents == {
        cls.__name__: None if cls is ReductionError else cls.__bases__[0].__name__ for cls in CLASSES
    }


def test_config_error_is_a_value_error():
    assert issubclass(errors.ConfigError, ValueError)


def test_callers_can_catch_errors_by_how_to_react():
    assert issubclass(errors.RankTaken, JobBusy)
    assert {cls for cls in CODED if issubclass(cls, RetryableError)} == {
        errors.ReducerUnavailable,
        errors.ReducerDraining,
        errors.ResourceExhausted,
        errors.JobBusy,
        errors.RankTaken,
        errors.CollectiveTimeout,
        errors.WorkersMissing,
        errors.DataCorrupted,
    }
    assert {cls for cls in CODED if issubclass(cls, JobAborted)} == {
        errors.StaleInstance,
        errors.WorkerLost,
        errors.WorkerFailed,
        errors.ReplicasDiffer,
        errors.PeerLeft,
    }


def test_an_error_without_a_code_is_sent_as_the_ranks_own_failure():
    own = errors.ConfigError("x"), errors.LocalProtocolError("x"), errors.ClosedError("x")
    assert {errors.code_to_others(error) for error in own} == {errors.WorkerFailed.code}
    told = errors.ReductionError("of a newer version"), errors.WorkerLost("x")
    assert [errors.code_to_others(error) for error in told] == [14, 12]
