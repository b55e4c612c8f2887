"""What tests import. What has to be set up or torn down is a fixture, in a conftest.py."""
