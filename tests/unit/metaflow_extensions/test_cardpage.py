"""What the card of a gang shows."""

from metaflow_extensions.gangline.plugins.cardpage import choose_metrics


def test_each_metric_has_its_place() -> None:
    assert choose_metrics(["lr", "x_per_s", "val_loss", "loss"]) == ["loss", "val_loss", "x_per_s", "lr"]
    assert len(choose_metrics([f"m{number}" for number in range(20)])) == 6
