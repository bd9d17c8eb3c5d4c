"""Records a real GPU at work as a case that `greylag replay` reads; needs an NVIDIA GPU, nvidia-ml-py and PyTorch.

`python record.py --out DIR` runs the trainer beside this file (see PLAN) and writes DIR/gpu.prom: NVML's values under the
names of dcgm-exporter's fields, and the trainer's own metrics, each with its time; DIR/trainer.<job>.log; DIR/truth.json:
what was done to the job and when. Identities are made up; values are as the driver gave them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import pynvml as nvml

NODE, JOB, UUID = "gpu-lab-1", "lab-train", "GPU-00000000-1ab0-4000-8000-000000000200"
EVERY_SECONDS = 5.0
TRAIN_NUMBERS = ("step", "last_step_timestamp_seconds", "step_seconds", "data_wait_seconds", "compute_seconds", "loss",
                 "grad_norm", "tokens_per_second", "nonfinite_total", "last_checkpoint_step")
# (seconds, arguments of the trainer or None for an idle GPU, what is the truth, seconds into the run at which it begins)
PLAN = (
    (20, None, None, 0),
    (160, ("--seconds", "150"), None, 0),
    (15, None, None, 0),
    (190, ("--seconds", "400", "--resume", "--hang-at", "40"), "stalled_loss", 40),
    (15, None, None, 0),
    (80, ("--seconds", "72", "--resume", "--nan-at", "45"), "nonfinite_loss", 45),
    (15, None, None, 0),
)


def gpu_values(gpu: object) -> dict[str, float]:
    """NVML's values by the names of DCGM's fields; what this GPU does not know is absent."""
    ask = {
        "DCGM_FI_DEV_SM_CLOCK": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        "DCGM_FI_DEV_MEM_CLOCK": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
        "DCGM_FI_DEV_GPU_TEMP": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        "DCGM_FI_DEV_MEMORY_TEMP": lambda: nvml.nvmlDeviceGetFieldValues(gpu, [nvml.NVML_FI_DEV_MEMORY_TEMP])[0].value.uiVal,
        "DCGM_FI_DEV_GPU_TEMP_LIMIT": lambda: nvml.nvmlDeviceGetMarginTemperature(gpu),
        "DCGM_FI_DEV_POWER_USAGE": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
        "DCGM_FI_DEV_POWER_MGMT_LIMIT": lambda: nvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1000,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu),
        "DCGM_FI_DEV_GPU_UTIL": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "DCGM_FI_DEV_MEM_COPY_UTIL": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).memory,
        "DCGM_FI_DEV_FB_USED": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).used >> 20,
        "DCGM_FI_DEV_FB_FREE": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).free >> 20,
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu),
        "DCGM_FI_DEV_POWER_VIOLATION": lambda: nvml.nvmlDeviceGetViolationStatus(gpu, 0).violationTime,
        "DCGM_FI_DEV_THERMAL_VIOLATION": lambda: nvml.nvmlDeviceGetViolationStatus(gpu, 1).violationTime,
        "DCGM_FI_DEV_PCIE_LINK_GEN": lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
        "DCGM_FI_DEV_PCIE_LINK_WIDTH": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": lambda: nvml.nvmlDeviceGetPcieReplayCounter(gpu),
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": lambda: nvml.nvmlDeviceGetTotalEccErrors(gpu, 0, 0),
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": lambda: nvml.nvmlDeviceGetTotalEccErrors(gpu, 1, 0),
    }
    found = {}
    for name, get in ask.items():
        try:
            found[name] = float(get())
        except (nvml.NVMLError, AttributeError):
            continue
    return found


def gpu_lines(values: dict[str, float], at: int) -> list[str]:
    labels = f'gpu="0",UUID="{UUID}",device="nvidia0",modelName="NVIDIA H200",Hostname="{NODE}"'
    return [f"{name}{{{labels}}} {value:.10g} {at}" for name, value in values.items()]


def trainer_lines(folder: Path, at: int) -> list[str]:
    try:
        state = json.loads((folder / "state.json").read_text())
    except (OSError, ValueError):
        return []
    labels = f'job="{JOB}",rank="0",node="{NODE}",gpu="0"'
    lines = [f"greylag_train_{name}{{{labels}}} {'NaN' if state[name] == 'nan' else state[name]} {at}"
             for name in TRAIN_NUMBERS if name in state]
    lines.append(f'greylag_train_phase{{{labels},phase="{state["phase"]}"}} 1 {at}')
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/gpu-lab"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    args.work.mkdir(parents=True, exist_ok=True)
    nvml.nvmlInit()
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    truth = []
    with (args.out / "gpu.prom").open("w") as prom, (args.out / f"trainer.{JOB}.log").open("a") as log:
        for seconds, command, fault, after in PLAN:
            began, child = time.time(), None
            (args.work / "state.json").unlink(missing_ok=True)
            if command is not None:
                child = subprocess.Popen([sys.executable, str(Path(__file__).parent / "train.py"), "--folder", str(args.work),
                                          *command], stdout=log)
            while time.time() - began < seconds:
                at = int(time.time() * 1000)
                lines = gpu_lines(gpu_values(gpu), at)
                if child is not None and child.poll():
                    raise SystemExit(f"the trainer ended with {child.returncode}; its errors are above")
                if child is not None and child.poll() is None:
                    lines += trainer_lines(args.work, at)
                prom.write("\n".join(lines) + "\n")
                prom.flush()
                time.sleep(max(0.0, EVERY_SECONDS - (time.time() - at / 1000)))
            if child is not None:
                killed = child.poll() is None
                child.kill()
                child.wait()
                truth.append({"fault": fault, "began": began, "fault_after_seconds": after if fault else None,
                              "ended": time.time(), "killed": killed, "command": list(command)})
    (args.out / "truth.json").write_text(json.dumps(truth, indent=1))


if __name__ == "__main__":
    main()
