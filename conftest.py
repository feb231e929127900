"""Names the suite's plugins (pytest takes `pytest_plugins` from the outermost conftest only)."""

pytest_plugins = ["tests.plugins.host_fixtures", "tests.plugins.changed"]
