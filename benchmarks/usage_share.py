"""Print the share of runs of open image models that refsd draws to a picture: python benchmarks/usage_share.py

Runs: the field `usage` of ComfyUI's workflow templates (comfyui-workflow-templates-json 0.1.123, November 2026),
grouped by model, in thousands. The index favours what is new. Edits and turbo variants count with their model.
"""

from refsd.families import VARIANTS

# Model -> (runs in thousands, refsd's family; "" if it has none)
RUNS = {
    "Qwen-Image 2.1": (24.8, "qwen-image21"),
    "Z-Image": (16.2, "zimage"),
    "Krea 2": (10.6, "krea2"),
    "Qwen-Image 1.x": (8.4, "qwen-image"),
    "FLUX.2": (5.0, "flux2-dev"),
    "FLUX.3 klein": (3.4, "flux3"),
    "FLUX.1": (2.1, "flux-dev"),
    "MOSS-Image": (1.2, ""),
    "Anima": (0.85, "anima"),
    "SDXL": (0.74, "sdxl"),
    "SD 3.5": (0.24, "sd3"),
    "Mage-Flow": (0.22, ""),
    "Lumina 2 and kin": (0.20, "lumina2"),
    "HiDream": (0.18, ""),
    "Ming-Image": (0.17, ""),
    "Ernie-Image": (0.10, "ernie-image"),
    "Ideogram 4": (0.09, "ideogram4"),
    "Lens": (0.06, ""),
    "LongCat": (0.05, ""),
    "SD 1.5": (0.01, "sd15"),
}


def main() -> None:
    drawn = {model: runs for model, (runs, family) in RUNS.items() if family and VARIANTS[family].draws}
    total = sum(runs for runs, _ in RUNS.values())
    for model, (runs, _) in RUNS.items():
        print(f"{model:18} {runs:6.2f}k  {'drawn' if model in drawn else '-'}")
    print(f"{sum(drawn.values()):.1f}k of {total:.1f}k runs: {sum(drawn.values()) / total:.0%}")


if __name__ == "__main__":
    main()
