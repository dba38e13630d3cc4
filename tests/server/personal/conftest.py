"""The images of every federation here."""

from pathlib import Path

import pytest

from tests.support.personal_federation import image_folder


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"))
