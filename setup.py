"""Which folder is which package. Everything else about the build is in pyproject.toml.

`notebook_ext/` and `profiler/` are installed inside `torchtpu`, so that a user's own `profiler.py` never shadows ours.
"""

from setuptools import find_packages, setup

FOLDERS = {"torchtpu.notebook_ext": "notebook_ext", "torchtpu.profiler": "profiler"}

packages = find_packages(include=["torchtpu", "torchtpu.*"])
for package, folder in FOLDERS.items():
    packages += [package, *(f"{package}.{name}" for name in find_packages(folder))]

setup(packages=packages, package_dir=FOLDERS)
