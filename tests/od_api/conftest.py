"""The files of the Object Detection API that the tests here read."""

from od_api_files import api_folder  # noqa: F401
