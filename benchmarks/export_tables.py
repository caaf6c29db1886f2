"""The tables of exported files, from the raw files under results/; `tables.py` prints them with the others."""

from __future__ import annotations

from typing import Any

from harness import rows


def main() -> None:
    """All of them."""
    export_table()
    accuracy_table()
    parity_table()
    settings_table()


def export_table() -> None:
    """Exported files on a CPU: the slim model against its host in the same runtime."""
    print("| runtime | precision | batch | host, images/s | slim, images/s | speed-up | share | over the fp32 host |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows("export_speed_*.json"):
        rates = f"{row['baseline_throughput']:.1f} | {row['throughput']:.1f} | {row['speedup']:.2f}×"
        share = f"{row['share_of_ideal']:.0%} | {row['over_host_fp32']:.2f}×"
        print(f"| {row['runtime']} | {row['precision']} | {row['batch_size']} | {rates} | {share} |")
    print()


def settings_table() -> None:
    """Settings of INT8 (docs/decisions.md): KL and same answers, host and slim model."""
    found = rows("int8_settings_*.json")
    print("| runtime | setting | KL, host | KL, slim | same answer, host | same answer, slim |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in (row for row in found if row["model"] == "host"):
        pair = [row, next(own for own in found if own["model"] == "slim" and same_setting(own, row))]
        cells = [f"{own['kl']:.4f}" for own in pair] + [f"{own['agree']:.1f} %" for own in pair]
        print(f"| {row['runtime']} | {setting_name(row['setting'])} | " + " | ".join(cells) + " |")
    print()


def same_setting(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two rows differ in the model only."""
    return bool(a["runtime"] == b["runtime"] and a["setting"] == b["setting"])


def setting_name(setting: dict[str, Any]) -> str:
    """In words."""
    if "smooth" in setting:
        smooth = "no SmoothQuant" if setting["smooth"] < 0 else f"α = {setting['smooth']:g}"
        return smooth + (", biases corrected" if setting["correct_biases"] else "")
    more = setting.get("options", {})
    if "ranges" in setting:
        share = f" {more['CalibPercentile']:g} %" if "CalibPercentile" in more else ""
        return f"{setting['ranges'].lower()}{share}"
    if "ActivationSymmetric" in more:
        return "extremes, signed and symmetric"
    signed = ", signed" if setting.get("signed") else ""
    return ("extremes of batches, averaged" if more else "extremes of all images") + signed


def parity_table() -> None:
    """Exported fp32 files against PyTorch (docs/export.md)."""
    print("| plan | format | largest difference of a logit | agreement | ties | other answers |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows("export_parity_*.json"):
        cells = (
            row["refused"]
            if "refused" in row
            else f"{row['max_difference']:.1e} | {row['agreement']:.1f} % | {row['ties']} | {row['other_answers']}"
        )
        print(f"| {row['select']} {row['removed']} | {row['format']} | {cells} |")
    print()


def accuracy_table() -> None:
    """Plain, slim, quantised, both: top-1 of exported files (docs/results.md)."""
    print("| runtime | model | precision | top-1 | points against the host in PyTorch | MB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows("export_accuracy_*.json"):
        low, high = row["interval"]
        size = f"{row['megabytes']:.1f}" if "megabytes" in row else ""
        points = f"{row['points']:.2f} ({low:.2f} to {high:.2f})"
        print(f"| {row['runtime']} | {row['model']} | {row['precision']} | {row['top1']:.2f} | {points} | {size} |")
    print()


if __name__ == "__main__":
    main()
