"""What the attacks share."""

import pytest
import skilljail
from harness import MakeSkill

from isolation.attacks import Attacks


@pytest.fixture
def attacks(client: skilljail.Client, make_skill: MakeSkill) -> Attacks:
    """Attacks on the daemon that tests share."""
    return Attacks(client, make_skill)
