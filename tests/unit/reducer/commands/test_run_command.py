"""Arguments of `reducer run` that are rejected before anything starts."""

from click.testing import CliRunner

from reducer.commands.run import run


def test_a_mistyped_option_is_not_taken_for_the_command():
    done = CliRunner().invoke(run, ["--reducer", "2", "--", "true"])
    assert done.exit_code == 2
    assert "No such option '--reducer'." in done.output
    assert "--reducers" in done.output
