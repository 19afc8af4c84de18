"""One training step gives timm's gradients and timm's next parameters."""

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.parity

GRADIENT_TOLERANCE = 1e-4  # of the largest gradient in the tensor
RATE = 0.1


def step(network, images):
    network.train()
    loss = F.cross_entropy(network(images), torch.tensor([3, 141]))
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in network.named_parameters()}
    torch.optim.SGD(network.parameters(), lr=RATE).step()
    return loss.detach(), gradients


@pytest.mark.parametrize("name", ["vit_ti16", "vit_s32"])
def test_training_step(parity, weights, name):
    twins = parity.make_twins(name, weights)
    expected_loss, expected = step(twins.reference, twins.images)
    loss, gradients = step(twins.model, twins.images)

    parity.assert_same(loss, expected_loss, what="loss")
    assert gradients.keys() == expected.keys()
    for key, theirs in expected.items():
        largest = theirs.abs().max().item()
        assert largest > 0, key
        torch.testing.assert_close(
            gradients[key], theirs, rtol=0, atol=GRADIENT_TOLERANCE * largest, msg=key
        )
    for key, theirs in twins.reference.state_dict().items():
        parity.assert_same(twins.model.state_dict()[key], theirs, what=f"{key} after the step")
