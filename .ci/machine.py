"""Prints the processor, and what torch's libraries chose on it, so that a difference in last bits can be told by it."""

import os
import platform
import subprocess
import sys
from pathlib import Path

ASK = """
import torch

a = torch.rand(64, 64)
a @ a
a.bfloat16() @ a.bfloat16()
print("torch", torch.__version__, *(line for line in torch.__config__.show().splitlines() if "capability" in line))
"""
CHOSEN = (
    "torch ",
    "MKL_VERBOSE oneMKL",
    "onednn_verbose,v1,info,oneDNN",
    "onednn_verbose,v1,info,cpu",
)

info = Path("/proc/cpuinfo")
names = (
    [line for line in info.read_text().splitlines() if line.startswith("model name")]
    if info.exists()
    else []
)
name = names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
print(f"processor: {name}, {os.cpu_count()} cores; {platform.platform()}")
verbose = {**os.environ, "MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1"}
told = subprocess.run([sys.executable, "-c", ASK], env=verbose, capture_output=True, text=True)
print(*(line for line in told.stdout.splitlines() if line.startswith(CHOSEN)), sep="\n")
