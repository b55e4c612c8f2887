"""These modules are left alone where there is no JAX: ``make test-oracles`` runs them."""

import importlib.util

HAS_JAX = importlib.util.find_spec("jax") is not None


def pytest_ignore_collect(collection_path):
    """Leave out what needs JAX."""
    return True if not HAS_JAX and collection_path.name.startswith("test_") else None
