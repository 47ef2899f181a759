"""Variables that look like settings but are not."""

import pytest
from reduction.process import launch

from worker_plugin.config import PluginConfig, build
from worker_plugin.settings import environment


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("REDUCTION_REDUCER", "REDUCTION_REDUCER is not a setting; did you mean REDUCTION_REDUCERS?"),
        ("REDUCTION_TIMEOUT", "REDUCTION_TIMEOUT is not a setting; did you mean REDUCTION_TIMEOUT_S?"),
        ("REDUCTION_LOGS", "REDUCTION_LOGS is not a setting; did you mean REDUCTION_LOG?"),
        ("REDUCTION_FACTOR_OF_X", "REDUCTION_FACTOR_OF_X is not a setting and has no effect"),
    ],
)
@pytest.mark.usefixtures("nobody_warned")
def test_a_variable_that_is_not_a_setting_causes_one_warning(name, text, caplog):
    for _ in range(2):
        assert build({}, {name: "1", "HOME": "/"}) == PluginConfig()
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", text)]


@pytest.mark.usefixtures("nobody_warned")
def test_variables_of_our_other_processes_are_not_typos(caplog):
    build(
        {}, {"REDUCTION_START_PATH": "/a", "REDUCTION_LOG": "info", "REDUCTION_JOB": "x", "REDUCTIONS": "1"}
    )
    assert caplog.records == []
    assert launch.VARIABLE in environment.OTHERS
