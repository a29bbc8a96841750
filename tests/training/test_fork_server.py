"""What the fork server says of a process that an error has ended."""

from __future__ import annotations

from pipeline_ops.training.fork_server import name_final_file


def test_a_full_disk_names_the_file_as_it_would_be_called():
    text = "/x/variables/variables_temp/part-00000-of-00001.data-00000-of-00001; No space left"
    assert name_final_file(text) == (
        "/x/variables/variables_temp/part-00000-of-00001.data-00000-of-00001 (to become "
        "variables.data-00000-of-00001); No space left"
    )
    assert name_final_file("/x/_temp/a; No space left") == "/x/_temp/a; No space left"
