"""The shared remote-write samples, good and bad."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from core.clock import ManualClock
from tests import needs
from tests.push.site import drain, post, receiver

AT = 1_770_000_015_000


async def sent(folder: Path, name: str) -> tuple[int, str, list]:
    body = needs.shared(f"samples/remote-write/{name}").read_bytes()
    async with receiver(folder, ManualClock(AT)) as one:
        status, _, said = await post(one.port, "/api/v1/write", body)
        return status, said.decode().strip(), drain(one, AT + 10_000)[0]


def test_the_good_request_is_read_as_expected(tmp_path: Path) -> None:
    """All series and samples of the expected list, and nothing else."""
    wanted = json.loads(needs.shared("samples/remote-write/rw_good_expected.json").read_text())
    status, _, results = asyncio.run(sent(tmp_path, "rw1_good.pb.snappy"))
    found = {(s.name, s.labels, scrape.at, float(v)) for layout, scrape in results
             for s, v in zip(layout.series, scrape.values, strict=True) if not np.isnan(v)}
    rows = {(labels["__name__"], tuple(sorted((k, v) for k, v in labels.items() if k != "__name__")), at, float(value))
            for labels, samples in wanted for value, at in samples if value not in ("nan", "NaN", "STALE")}
    assert status == 204
    assert found == rows


@pytest.mark.parametrize(("name", "status", "sentence"), [
    ("bad_not_snappy.bin", 400, None),
    ("bad_truncated.snappy", 400, None),
    ("bad_decompression_bomb_4MB.snappy", 400, "the body is no remote write 1.0 request: 0 is no field number."),
    ("bad_duplicate_label.pb.snappy", 400, "the label 'a' stands twice in one series."),
    ("bad_missing_name.pb.snappy", 400, "a series has no __name__."),
    ("bad_unsorted_labels.pb.snappy", 204, ""),  # labels are taken in any order
    ("bad_out_of_order.pb.snappy", 204, ""),  # one minute back: within the window
])
def test_the_bad_requests(tmp_path: Path, name: str, status: int, sentence: str | None) -> None:
    """400 with one sentence for what is wrong; what other receivers are stricter about is taken."""
    found, said, _ = asyncio.run(sent(tmp_path, name))
    assert found == status
    assert sentence is None or said == sentence
