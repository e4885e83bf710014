from tests.evaluate.conftest import _shared, graders  # noqa: F401
