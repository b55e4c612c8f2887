"""These modules are left alone where there is no torch: ``make test-oracles`` runs them."""

import importlib.util

HAS_TORCH = importlib.util.find_spec("torch") is not None


def pytest_ignore_collect(collection_path):
    """Leave out what needs torch."""
    return True if not HAS_TORCH and collection_path.name.startswith("test_") else None
